"""Steps that name meshes, for a `Lowered` whose module is replaced: only its types matter.

Owns taking out of a jaxpr what is over a mesh of the step itself, and lowering where no mesh is set: jax would want
these meshes' devices to be those of the call. One of the files that may use jax's private modules: jaxprs have no
public way to be rewritten. Tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax._src import core
from jax._src.interpreters import mlir
from jax._src.mesh import get_abstract_mesh, get_concrete_mesh, thread_resources
from jax._src.sharding_impls import UNSPECIFIED
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_COMPUTATION = "shard_map"
_LAYOUTS = ("sharding_constraint", "reshard", "mesh_cast", "layout_constraint")

_stand_in = jax.extend.core.Primitive("rhino_stand_in")
_stand_in.multiple_results = True
_stand_in.def_abstract_eval(lambda *operands, avals: list(avals))


def _lower(ctx: Any, *nodes: Any, avals: Any) -> Sequence[Any]:
    types, _ = mlir.ir_tree_registry.flatten([mlir.aval_to_ir_types(ctx.module_context, a) for a in ctx.avals_out])
    op = stablehlo.CustomCallOp(list(types), list(nodes), call_target_name=ir.StringAttr.get("rhino.manual"))
    return list(op.results)


mlir.register_lowering(_stand_in, _lower)

_copy = jax.extend.core.Primitive("rhino_copy")
_copy.def_abstract_eval(lambda operand: operand)
mlir.register_lowering(_copy, lambda ctx, operand: [operand])


def is_mesh_set() -> bool:
    """Whether `jax.set_mesh` or `with mesh:` are around."""
    there = thread_resources.env.physical_mesh, get_concrete_mesh(), get_abstract_mesh()
    return not all(mesh.empty for mesh in there)


@contextlib.contextmanager
def no_mesh() -> Iterator[None]:
    """Run the block as if neither `jax.set_mesh` nor `with mesh:` were around it."""
    if not is_mesh_set():
        yield
        return
    empty = jax.sharding.Mesh(np.empty((), object), ())
    with contextlib.ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            stack.enter_context(empty)
        stack.enter_context(jax.set_mesh(None))
        yield


def function_of(closed: Any) -> Callable[..., Any]:
    """The flat function of a closed jaxpr; one of the same types where it has meshes.

    Host callbacks must stay what they are: jax keeps them for the executable. Where there are some, only what is over a
    mesh has a stand-in.
    """
    if not _has(closed.jaxpr):
        return jaxpr_as_fun(closed)
    if _calls_back(closed.jaxpr):
        return jaxpr_as_fun(closed.replace(jaxpr=_changed(closed.jaxpr, _typed)))
    avals = tuple(map(_plain, closed.out_avals))
    return lambda *args: _stand_in.bind(*args, avals=avals)


def without_layouts(fn: Callable[..., Any], step: Any, args: Any, kwargs: Any) -> Callable[..., Any]:
    """A function that makes the state of a step, without the constraints it has on meshes of its own.

    Args:
      step: the closed jaxpr of the step: one without meshes has a state without.
      args, kwargs: of the function, for its shapes.
    """
    if not (is_mesh_set() or _has(step.jaxpr)):
        return fn
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args, **kwargs)
    if not _has(closed.jaxpr):
        return fn
    flat, tree = jaxpr_as_fun(closed.replace(jaxpr=_changed(closed.jaxpr, _alike))), jax.tree.structure(shapes)
    return lambda *args, **kwargs: jax.tree.unflatten(tree, flat(*jax.tree.leaves((args, kwargs))))


def _alike(eqn: Any) -> Any:
    """The equation of a constraint as one that copies; a computation stays what it is."""
    return (
        eqn if eqn.primitive.name == _COMPUTATION else eqn.replace(primitive=_copy, params={}, effects=core.no_effects)
    )


def _plain(aval: Any) -> Any:
    """The abstract value without the mesh that it may be over."""
    return core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _has(jaxpr: Any) -> bool:
    return any(_is_over(eqn) or any(map(_has, core.jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns) or any(
        _is_typed(v.aval) for v in (*jaxpr.invars, *jaxpr.outvars)
    )


def _is_over(eqn: Any) -> bool:
    given = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return eqn.primitive.name in (_COMPUTATION, *_LAYOUTS) or any(hasattr(sharding, "mesh") for sharding in given)


def _is_typed(aval: Any) -> bool:
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty


def _calls_back(jaxpr: Any) -> bool:
    return any(
        "callback" in eqn.primitive.name
        or "debug" in eqn.primitive.name
        or any(map(_calls_back, core.jaxprs_in_params(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _changed(jaxpr: Any, change: Callable[[Any], Any]) -> Any:
    return jaxpr.replace(eqns=[_equation(eqn, change) for eqn in jaxpr.eqns])


def _typed(eqn: Any) -> Any:
    """An equation of the same types."""
    avals = tuple(_plain(v.aval) for v in eqn.outvars)
    return eqn.replace(primitive=_stand_in, params={"avals": avals}, effects=core.no_effects)


def _equation(eqn: Any, change: Callable[[Any], Any]) -> Any:
    inner = list(core.jaxprs_in_params(eqn.params))
    if _is_over(eqn) and not (inner and eqn.primitive.name != _COMPUTATION):
        return change(eqn)
    if not _is_over(eqn) and not any(map(_has, inner)):
        return eqn
    params = {name: _value(value, change) for name, value in eqn.params.items()}
    for side in ("in_shardings", "out_shardings"):
        if side in params:
            params[side] = tuple(UNSPECIFIED if hasattr(one, "mesh") else one for one in params[side])
    return eqn.replace(params=params)


def _value(value: Any, change: Callable[[Any], Any]) -> Any:
    # From jax 0.12 on a closed one is a Jaxpr, too.
    if isinstance(value, core.Jaxpr):
        return _changed(value, change) if _has(value) else value
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=_changed(value.jaxpr, change)) if _has(value.jaxpr) else value
    if isinstance(value, tuple | list):
        return type(value)(_value(one, change) for one in value)
    return value

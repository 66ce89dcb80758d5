"""Steps with `jax.shard_map` in them, for a `Lowered` whose module is replaced: only its types matter.

Owns taking the computations out of a jaxpr: jax would want the devices of their meshes to be those of the call. One of
the files that may use jax's private modules: jaxprs have no public way to be rewritten. Tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core
from jax._src import core
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_NAME = "shard_map"

_stand_in = jax.extend.core.Primitive("rhino_manual_computation")
_stand_in.multiple_results = True
_stand_in.def_abstract_eval(lambda *operands, avals: list(avals))


def _lower(ctx: Any, *nodes: Any, avals: Any) -> Sequence[Any]:
    types, _ = mlir.ir_tree_registry.flatten([mlir.aval_to_ir_types(ctx.module_context, a) for a in ctx.avals_out])
    op = stablehlo.CustomCallOp(list(types), list(nodes), call_target_name=ir.StringAttr.get("rhino.manual"))
    return list(op.results)


mlir.register_lowering(_stand_in, _lower)


def without_meshes(closed: Any) -> Any:
    """The closed jaxpr with a call of the same types in place of each `shard_map`; itself if there is none."""
    if not _has(closed.jaxpr):
        return closed
    return closed.replace(jaxpr=_changed(closed.jaxpr))


def _has(jaxpr: Any) -> bool:
    return any(eqn.primitive.name == _NAME or any(map(_has, core.jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns)


def _changed(jaxpr: Any) -> Any:
    return jaxpr.replace(eqns=[_equation(eqn) for eqn in jaxpr.eqns])


def _equation(eqn: Any) -> Any:
    if eqn.primitive.name == _NAME:
        avals = tuple(core.ShapedArray(v.aval.shape, v.aval.dtype) for v in eqn.outvars)
        return eqn.replace(primitive=_stand_in, params={"avals": avals}, effects=core.no_effects)
    if not any(map(_has, core.jaxprs_in_params(eqn.params))):
        return eqn
    return eqn.replace(params={name: _value(value) for name, value in eqn.params.items()})


def _value(value: Any) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        return without_meshes(value)
    if isinstance(value, core.Jaxpr):
        return _changed(value) if _has(value) else value
    if isinstance(value, tuple | list):
        return type(value)(map(_value, value))
    return value

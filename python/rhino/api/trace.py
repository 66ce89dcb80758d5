"""From a call to a StableHLO module with the user's names on its arguments, and back to a `Lowered` of jax.

Owns tracing and lowering through jax's public stages. Knows nothing of plans, clusters or devices.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
from jax.extend.source_info_util import register_exclusion
from jax.tree_util import keystr, tree_flatten_with_path
from jaxlib.mlir import ir

from rhino.api.foreign import check_arguments, held_unchanged
from rhino.api.objects import object_paths, path_name
from rhino.api.returned import FlatPlace, places
from rhino.api.signature import Signature, UserCall, abstract
from rhino.compile._jax_callbacks import Callbacks, callbacks_of
from rhino.compile._jax_kernels import Kernels, as_on
from rhino.compile._jax_manual import function_of, no_mesh
from rhino.compile.local_kernels import Platform
from rhino.dialect import functions
from rhino.dialect.attributes import RhinoReturned
from rhino.dialect.callbacks import callbacks_in
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.dialect.locations import location_text
from rhino.errors import RhinoError

# What jax lowers is then at the lines of the user's program that led to it, and at none of rhino's.
register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """One flat argument: its name, the keys that lead to it inside its argument, and what jax knows of it."""

    name: str
    argument: str
    path: tuple[str, ...]
    aval: Any


def is_key(aval: Any) -> bool:
    """Whether an abstract value is an array of PRNG keys, which has more dimensions in the module than in jax."""
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended))


@dataclass(frozen=True, slots=True)
class Trace:
    """A traced call.

    Attributes:
      name: the function's name.
      place: the file and line where it is defined; ("", 0) where that is not known.
      jaxpr: the closed jaxpr, flat.
      in_tree: of (traced positional arguments, traced keyword arguments).
      leaves: the flat arguments.
      donated: indices of the leaves whose buffers may be reused.
      info: pytrees of what it takes, (args, kwargs), and of what it returns, as `jax.stages.Traced` has them.
      kept: of a step over objects, the leaves that it only reads; see `rhino.api.objects`.
      bytecode: the module as jax lowered it for one device, kernels as calls.
      kernels: what these calls stand for.
      callbacks: the Python functions that the module calls.
    """

    name: str
    place: tuple[str, int]
    jaxpr: Any
    in_tree: Any
    out_tree: Any
    leaves: tuple[ArgumentLeaf, ...]
    places: tuple[FlatPlace, ...]
    donated: tuple[int, ...]
    info: tuple[Any, Any]
    kept: tuple[int, ...]
    bytecode: bytes
    kernels: Kernels
    callbacks: Callbacks


def trace(fn: Callable[..., Any], signature: Signature, call: UserCall, target: str = "cpu") -> Trace:
    """Trace the function on abstract values; no array is read or made.

    Args:
      target: what it is lowered for, as `rhino.compile` names it, whether it is here or not.

    Raises:
      What jax raises when the function cannot be traced.
    """
    kernels = Kernels(Platform.of(target))

    # Of a function of its own: jax remembers what it traced, and a trace may depend on the GPU.
    @functools.wraps(fn)
    def step(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    jitted = signature.jit(step)
    args = tuple(value if i in signature.static else jax.tree.map(abstract, value) for i, value in enumerate(call.args))
    kwargs = {
        name: jax.tree.map(abstract, value) if name in call.traced_kwargs else value
        for name, value in call.kwargs.items()
    }
    check_arguments(call)
    with held_unchanged(fn), as_on(target), warnings.catch_warnings():
        # Whether a donated buffer is of use is known only when the plan is: the partitioned module decides.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        traced = jitted.trace(*args, **kwargs)
        lowered = kernels.lower(traced)
    infos = jax.tree.leaves(traced.args_info)
    avals = traced.jaxpr.in_avals
    flat, in_tree = tree_flatten_with_path((call.traced_args, call.traced_kwargs))
    keywords = [call.traced_kwargs[name] for name in sorted(call.traced_kwargs)]  # as jax flattens them
    if len(flat) != len(avals):
        raise RhinoError(f"jax traced {len(avals)} arguments, but the call has {len(flat)} arrays")
    return Trace(
        name=name_of(fn),
        place=place_of(fn),
        jaxpr=traced.jaxpr,
        in_tree=in_tree,
        out_tree=jax.tree.structure(traced.out_info),
        leaves=tuple(_leaves(call, flat, avals)),
        places=places(
            [jax.tree.structure(value) for value in (*call.traced_args, *keywords)],
            [(a.shape, a.dtype) for a in avals],
            jax.tree.structure(traced.out_info),
            [(a.shape, a.dtype) for a in jax.tree.leaves(traced.out_info)],
        ),
        donated=tuple(i for i, info in enumerate(infos) if info.donated),
        kept=tuple(at for at in getattr(traced.out_info, "kept", ()) if at >= 0) if call.opened else (),
        info=(traced.args_info, traced.out_info),
        bytecode=to_bytecode(lowered.compiler_ir("stablehlo")),
        kernels=kernels,
        callbacks=callbacks_of(lowered),
    )


def name_of(fn: Any) -> str:
    """What a function, a `functools.partial` of one or a callable object is called."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def place_of(fn: Any) -> tuple[str, int]:
    """The file and line of the function behind partials, decorators and callable objects; ("", 0) of a built-in one."""
    while isinstance(fn, functools.partial) or hasattr(fn, "__wrapped__"):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    code = getattr(fn if hasattr(fn, "__code__") else type(fn).__call__, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


def _leaves(call: UserCall, flat: Sequence[tuple[Any, Any]], avals: Sequence[Any]) -> Iterator[ArgumentLeaf]:
    objects = object_paths((call.traced_args, call.traced_kwargs))
    for (path, _), aval in zip(flat, avals, strict=True):
        argument = path[1].key if path[0].idx == 1 else call.names[path[1].idx]
        yield ArgumentLeaf(
            f"{argument}{path_name(path, objects, 2)}", argument, tuple(keystr((key,)) for key in path[2:]), aval
        )


def import_module(trace: Trace) -> ir.Module:
    """The traced program as a module in a fresh rhino context, `rhino.name` on every argument.

    Where jax says nothing of @main's place, it is that of the function: what is wrong with all of it is said there.
    Weak types leave no trace in it, so that a Python number and an array make one program.

    Raises:
      RhinoError: jax gave @main other arguments than the function has (ordered effects do that).
    """
    module = parse_bytes(trace.bytecode, make_context())
    main = functions.find(module, "main")
    assert main is not None
    file, line = trace.place
    if file:
        main.location = ir.Location.file(file, line, 1, module.context)
    attributes = functions.argument_attributes(main)
    if token := next((op for op in callbacks_in(module) if any(map(_is_token, (*op.operands, *op.results)))), None):
        raise RhinoError(
            f"{location_text(token.location)}: an ordered callback cannot be planned: jax runs ordered effects on one "
            "device only",
            "call it with ordered=False, which is the default",
        )
    if len(attributes) != len(trace.leaves):
        raise RhinoError(
            f"{trace.name} lowers to {len(attributes)} arguments, but takes {len(trace.leaves)} arrays",
            "ordered effects cannot be planned: leave them out of the step",
        )
    for given, leaf, place in zip(attributes, trace.leaves, trace.places, strict=True):
        given["rhino.name"] = ir.StringAttr.get(leaf.name, module.context)
        given[RhinoReturned.name] = RhinoReturned.to_attr(asdict(place), module.context)
    functions.set_argument_attributes(main, attributes)
    _drop_converts(module)
    return module


def _is_token(value: ir.Value) -> bool:
    return str(value.type) == "!stablehlo.token"


def _drop_converts(module: ir.Module) -> None:
    """Without conversions of a type to itself, which jax writes where a weak type becomes a strong one."""
    for op in [op for op in functions.walk(module.operation) if op.name == "stablehlo.convert"]:
        if op.operands[0].type == op.results[0].type:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def lower(trace: Trace, in_shardings: Any, keyword_shardings: Any, out_shardings: Any) -> jax.stages.Lowered:
    """The traced program lowered over real or compile-only devices, called with the user's pytrees.

    Keyword-only arguments, which jit cannot take with shardings, are one dictionary after the positional ones.
    """
    flat = function_of(trace.jaxpr)
    has_kwargs = bool(keyword_shardings)

    def step(*args: Any) -> Any:
        kwargs = args[-1] if has_kwargs else {}
        positional = args[:-1] if has_kwargs else args
        return jax.tree.unflatten(trace.out_tree, flat(*jax.tree.leaves((positional, kwargs))))

    step.__name__ = step.__qualname__ = trace.name
    structs = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype, weak_type=a.aval.weak_type) for a in trace.leaves]
    args, kwargs = jax.tree.unflatten(trace.in_tree, structs)
    donated = set(trace.donated)
    counts = [len(jax.tree.leaves(arg)) for arg in (*args, *((kwargs,) if has_kwargs else ()))]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    donate = tuple(i for i, (start, n) in enumerate(zip(starts, counts, strict=True)) if n and start in donated)
    shardings = (*in_shardings, keyword_shardings) if has_kwargs else in_shardings
    jitted = jax.jit(step, in_shardings=shardings, out_shardings=out_shardings, donate_argnums=donate, keep_unused=True)
    with warnings.catch_warnings(), no_mesh():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        return Kernels(trace.kernels.platform, only_types=True).lower(
            jitted.trace(*args, *((kwargs,) if has_kwargs else ()))
        )

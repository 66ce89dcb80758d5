"""Checks that run before a C++ pass which would otherwise end the whole process: an abort or a segmentation fault.

Owns the list of such cases, each found by feeding every sdy pass small odd modules under jaxlib 0.10.2 and 0.12.0.1.
Must be cheap: they run before every C++ pass, on modules of any size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from jaxlib import version
from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.ir.diagnostics import PassError
from rhino.ir.layouts import sharding_of
from rhino.passes.native import PASSES
from rhino.program.operations import WINDOWED

# They look up the entry function: @main, or the only function there is. Without it a C++ check fails.
_NEED_ENTRY = frozenset(
    """sdy-propagation-pipeline sdy-export-pipeline sdy-basic-propagate sdy-aggressive-propagate
    sdy-op-priority-propagate sdy-user-priority-propagate
    sdy-remove-sub-axes-in-input-output-shardings sdy-propagate-to-func-results
    sdy-add-func-data-flow-edges""".split()
)
# They visit the terminator of every function, and a declaration has none.
_NEED_BODIES = frozenset(
    """sdy-export-pipeline sdy-user-priority-propagate sdy-insert-explicit-reshards sdy-convert-global-to-local
    sdy-inline-meshes sdy-lift-inlined-meshes sdy-update-non-divisible-input-output-shardings sdy-close-shardings
    sdy-propagate-to-func-results""".split()
)
# They look a mesh up by its name, and a mesh written inside a sharding has none.
_NEED_NAMED_MESHES = frozenset(
    """sdy-basic-propagate sdy-aggressive-propagate sdy-op-priority-propagate sdy-user-priority-propagate
    sdy-export-pipeline sdy-insert-explicit-reshards""".split()
)
_SHARDINGS = ("arg_attrs", "res_attrs", "sdy.sharding", "sharding", "in_shardings", "out_shardings", "out_sharding")
_INLINED = re.compile(r"<mesh<\[([^\]]*)\]")
# They index tables by the number of a sharding group, and count devices in 32 bits.
_PROPAGATE = frozenset(n for n in _NEED_NAMED_MESHES if n.endswith("-propagate"))
_MANUAL = "sdy.manual_computation"
_FLOW_OF_ARGUMENTS = frozenset({_MANUAL, "sdy.named_computation"})
_FLOW = _FLOW_OF_ARGUMENTS.union("stablehlo.while stablehlo.case stablehlo.if stablehlo.optimization_barrier".split())
_MOST_GROUPS = 2**20
_COUNT_DEVICES = frozenset(
    {"sdy-propagation-pipeline", "sdy-export-pipeline", "sdy-update-non-divisible-input-output-shardings"}
)
_MOST_DEVICES = 2**31 - 1
# They go into what is called: without a body it is a null pointer, and recursion fills the stack.
_NEED_CALLEES = frozenset({"sdy-propagation-pipeline", "sdy-import-pipeline"})
_NO_RECURSION = frozenset({"sdy-propagation-pipeline", "sdy-flatten-call-graph", "sdy-import-func-calls"})
# Of jaxlib 0.12, not of 0.10: its sdy-apply-sharding-constraints looks the entry up as well.
_NEED_ENTRY_SINCE_0_11 = frozenset({"sdy-apply-sharding-constraints"})
_JAXLIB = tuple(version.__version_info__[:2])
# Documented, but their checks fail on modules that other passes did not prepare; and options that bring such checks.
_FRAGILE = frozenset({"sdy-convert-global-to-local", "sdy-insert-explicit-reshards"})
_FRAGILE_OPTION = re.compile(r"[{ ](debug-|enable-insert-explicit-collectives)")
_RESHARDS = "sdy-insert-explicit-reshards"


def check(step: str, module: ir.Module) -> None:
    """Raise PassError at the operation that would make the C++ pass in `step` (pipeline text) crash."""
    for name in _leaf_names(step):
        if name in _NEED_ENTRY or (name in _NEED_ENTRY_SINCE_0_11 and _JAXLIB >= (0, 11)):
            _check_entry(name, module)
        if name in _NEED_BODIES:
            _check_bodies(name, module)
        if name in _NEED_CALLEES or name in _NO_RECURSION:
            _check_calls(name, module)
        if name in _NEED_NAMED_MESHES:
            _check_names(name, module)
        if name in _PROPAGATE:
            _check_groups(name, module)
        if name in _PROPAGATE or name == "sdy-propagation-pipeline":
            _check_edges(name, module)
        if name in _COUNT_DEVICES:
            _check_devices(name, module)
        if name == "sdy-convert-global-to-local":
            _check_divisible(name, module)
            _check_windows(name, module)


def check_order(step: str, earlier: Sequence[str]) -> str | None:
    """Why `step` must not follow the `earlier` steps of its pipeline, or None."""
    if _adds_all_reduces(step) and any(map(_adds_all_reduces, earlier)):
        return f"'{_RESHARDS}' must run once: each run with enable-full-version adds its all-reduces again"
    return None


def _adds_all_reduces(step: str) -> bool:
    return _RESHARDS in _leaf_names(step) and bool(re.search(r"enable-full-version(=(true|1)\b|[\s}])", step))


def may_end_the_process(step: str) -> bool:
    """Whether a C++ step (pipeline text) may end the process in ways that `check` does not foresee.

    Passes that --help documents were tried on many odd modules. Others, and some options of these, rely on what the
    passes before them leave.
    """
    return bool(_FRAGILE_OPTION.search(step)) or any(n not in PASSES or n in _FRAGILE for n in _leaf_names(step))


def _leaf_names(step: str) -> list[str]:
    """The pass names in pipeline text, without anchors and options."""
    return re.findall(r"[\w.-]+(?![\w.(-])", re.sub(r"\{.*?\}", "", step))


def _has_body(function: ir.Operation) -> bool:
    return len(function.regions[0].blocks) > 0


def _check_entry(name: str, module: ir.Module) -> None:
    found = functions.all_functions(module)
    if (entry := _entry_of(found)) is None:
        raise PassError(
            module.operation,
            f"'{name}' needs a function @main, and the module has none",
            ["rename the entry function to @main"],
        )
    if not _has_body(entry):
        raise PassError(entry, f"'{name}' needs the entry function to have a body")
    if name == "sdy-propagation-pipeline":
        # It drops the private functions that nobody calls, looks the entry up, and after inlining once more.
        public = [f for f in found if functions.is_public(f)]
        if _entry_of(_called_from(public, found)) is None or _entry_of(public) is None:
            message = f"'{name}' drops private functions, and the entry function @{functions.name_of(entry)} is one"
            raise PassError(entry, message, ["make it public"])


def _entry_of(found: Sequence[ir.Operation]) -> ir.Operation | None:
    """@main, or the only function there is."""
    only = found[0] if len(found) == 1 else None
    return next((f for f in found if functions.name_of(f) == "main"), only)


def _called_from(roots: Sequence[ir.Operation], found: Iterable[ir.Operation]) -> list[ir.Operation]:
    """The `roots` and the functions of `found` that they call, directly or not."""
    named = {functions.name_of(f): f for f in found}
    reached = {functions.name_of(f): f for f in roots}
    todo = list(roots)
    while todo:
        for _, symbol in functions.calls_of(todo.pop()):
            if symbol in named and symbol not in reached:
                reached[symbol] = named[symbol]
                todo.append(named[symbol])
    return list(reached.values())


def _check_bodies(name: str, module: ir.Module) -> None:
    for function in functions.all_functions(module):
        if not _has_body(function):
            symbol = functions.name_of(function)
            message = f"'{name}' cannot run on a module with a function that has no body, @{symbol}"
            raise PassError(function, message, ["define the function or remove the declaration"])


def _check_calls(name: str, module: ir.Module) -> None:
    """Refuse calls of declarations and of functions that call themselves, where something may run them."""
    named = {functions.name_of(f): f for f in functions.all_functions(module)}
    done: set[str] = set()
    # Of each function being followed, the calls that are left to follow.
    path: dict[str, Iterator[tuple[ir.Operation, str]]] = {}

    def enter(symbol: str) -> None:
        done.add(symbol)
        path[symbol] = iter(functions.calls_of(named[symbol]))

    for root, function in named.items():
        if not functions.is_public(function) or root in done or not _has_body(function):
            continue
        enter(root)
        while path:
            call, symbol = next(path[next(reversed(path))], (None, ""))
            if call is None:
                path.popitem()
            elif symbol in path and call.name == "func.call" and name in _NO_RECURSION:
                message = f"'{name}' cannot run on functions that call themselves, such as @{symbol}"
                raise PassError(call, message, ["write the recursion as stablehlo.while"])
            elif symbol in named and not _has_body(named[symbol]) and name in _NEED_CALLEES:
                message = f"'{name}' cannot run where a function is called that has no body, @{symbol}"
                raise PassError(call, message, ["define the function, or call it as a stablehlo.custom_call"])
            elif symbol in named and symbol not in done:
                enter(symbol)


def _check_names(name: str, module: ir.Module) -> None:
    for function in functions.all_functions(module):
        for op in (function, *functions.walk(function)):
            if _inlined_meshes(op):
                message = f"'{name}' needs meshes with a name, and here is one inside a sharding"
                raise PassError(op, message, ["run sdy-lift-inlined-meshes first"])


def _check_groups(name: str, module: ir.Module) -> None:
    group_of: dict[ir.Value, int] = {}
    for function in functions.all_functions(module):
        for op in functions.walk(function):
            if op.name != "sdy.sharding_group":
                continue
            number = ir.IntegerAttr(op.attributes["group_id"]).value
            before = group_of.setdefault(op.operands[0], number)
            remedy = "run sdy-sharding-group-import first, which numbers them"
            if not 0 <= number <= _MOST_GROUPS:
                message = f"'{name}' takes sharding groups from 0 to {_MOST_GROUPS}, and this is {number}"
                raise PassError(op, message, [remedy])
            if before != number:
                message = f"'{name}' takes one sharding group of a value, and this is in {before} and {number}"
                raise PassError(op, message, [remedy])


def _check_edges(name: str, module: ir.Module) -> None:
    for function in functions.all_functions(module):
        if name == "sdy-propagation-pipeline" and not functions.is_public(function):
            continue  # what is called is inlined, and the rest dropped
        for op in functions.walk(function):
            if op.name != "sdy.data_flow_edge":
                continue
            owner = op.operands[0].owner
            inside = isinstance(owner, ir.Block)
            kind = (owner.owner if inside else owner).operation.name
            remedy = "let sdy-add-data-flow-edges make them"
            if kind not in _FLOW:
                message = f"'{name}' takes data flow edges of loops, branches and the like, not of '{kind}'"
                raise PassError(op, message, [remedy])
            if inside and kind not in _FLOW_OF_ARGUMENTS:
                message = f"'{name}' takes data flow edges of the results of '{kind}', not of arguments in its regions"
                raise PassError(op, message, [remedy])
            # The pipeline itself refuses all edges of this operation.
            if inside and kind == _MANUAL and "sharding" not in op.attributes and name in _PROPAGATE:
                message = f"'{name}' takes data flow edges of arguments in '{kind}' with a sharding, and this has none"
                raise PassError(op, message, [remedy])


def _inlined_meshes(op: ir.Operation) -> list[str]:
    """The axes of the meshes that are written inside the shardings of one operation, as text."""
    texts = (str(op.attributes[key]) for key in _SHARDINGS if key in op.attributes)
    return [axes for text in texts for axes in _INLINED.findall(text)]


def _check_devices(name: str, module: ir.Module) -> None:
    def check(op: ir.Operation, sizes: Iterable[int]) -> None:
        if (devices := prod(sizes)) > _MOST_DEVICES:
            message = f"'{name}' takes meshes of {_MOST_DEVICES} devices at most, and this has {devices}"
            raise PassError(op, message, ["give the mesh the sizes of real axes"])

    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            check(op.operation, [size for _, size in sdy.axes_of_mesh(op.attributes["mesh"])])
    for function in functions.all_functions(module):
        for inner in (function, *functions.walk(function)):
            for axes in _inlined_meshes(inner):
                check(inner, map(int, re.findall(r"=(\d+)", axes)))


def _check_divisible(name: str, module: ir.Module) -> None:
    meshes = {mesh: dict(axes) for mesh, axes in sdy.mesh_axes(module).items()}
    for where, shape, sharding in sdy.sharded_values(module):
        sizes = meshes.get(sdy.mesh_of(sharding), {})
        for dim, (size, axes) in enumerate(zip(shape, sdy.dims_of(sharding), strict=False)):
            parts = 1
            for axis in axes:
                parts *= sdy.axis_size(axis, sizes)
            if size % parts:
                message = f"'{name}' needs even shards: dim {dim} with size {size} is not divisible by {parts}"
                raise PassError(where, message, ["run sdy-pad-for-divisibility first, or shard another dimension"])


def _check_windows(name: str, module: ir.Module) -> None:
    """Refuse windows along sharded dimensions that reach over into another shard."""
    for function in functions.all_functions(module):
        for op in functions.walk(function):
            if op.name not in WINDOWED:
                continue
            # A scalar start comes last and has no dimensions.
            shardings = [*map(sharding_of, op.operands), *sdy.results_of(op)]
            for sharding in [found for found in shardings if found is not None]:
                for dim, axes in enumerate(sdy.dims_of(sharding)):
                    if axes and not _stays_in_shard(op, dim):
                        message = f"'{name}' cannot split dim {dim} of '{op.name}': its windows reach into other shards"
                        raise PassError(op, message, ["shard a dimension that no window moves along"])


def _stays_in_shard(op: ir.Operation, dim: int) -> bool:
    """Whether a dimension's windows, as jaxlib knows them, are of one element, or in 0.12 side by side."""

    def of(key: str) -> int:
        return int(list(ir.DenseI64ArrayAttr(op.attributes[key]))[dim]) if key in op.attributes else 1

    padded = "padding" in op.attributes and any(list(ir.DenseIntElementsAttr(op.attributes["padding"]))[2 * dim :][:2])
    if padded or of("base_dilations") != 1 or of("window_dilations") != 1:
        return False
    return of("window_dimensions") == of("window_strides") == 1 or (
        _JAXLIB >= (0, 11) and of("window_dimensions") == of("window_strides")
    )

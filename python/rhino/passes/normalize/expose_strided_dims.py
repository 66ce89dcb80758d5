"""The pass rhino-expose-strided-dims: dimensions that are cut into equal chunks get a dimension for the chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoName, RhinoRole, RhinoStrided
from rhino.dialect.locations import argument_name
from rhino.dialect.sdy import SHARDING
from rhino.ir.strided.flow import StridedFlow, dim_classes
from rhino.ir.strided.program import read_program
from rhino.ir.strided.rewrite import Split, StridedRewriter, stored_shape
from rhino.ir.strided.rules import trace
from rhino.passes.entry import main_function, require_static_shapes
from rhino.passes.registry import Pass, PassLog, option, register
from rhino.program.data import STATE
from rhino.program.strided import Choice, DimClass, choose

ALIAS = "tf.aliasing_output"


@register
class ExposeStridedDims(Pass):
    """Split dimensions of parameters that the program cuts into equal chunks, so that every chunk is sharded alike.

    A fused projection `x @ W` with W of [H, 3H] is cut into queries, keys and values. Sharding 3H over devices cuts
    across them, and every use pays for moving data. With W stored as [H, 3, H], its last dimension is sharded and the
    cuts, now along the 3, move nothing. The chunks are found by dataflow: slices, `split`, reshapes whose leading
    dimension is indexed, concatenations, and the pads of the backward pass. The dimension is split wherever it flows:
    in activations, gradients, optimizer state and loops.

    A dimension stays whole if pieces differ in length or do not cover it, if no contraction reads it as a dimension of
    a parameter, if an operation needs it whole (a convolution, a sort, a window that moves along it), or if a sharding
    is given for it.

    Requires: a function @main with static shapes and no calls (run `rhino-inline`). Roles (run `rhino-classify-args`)
    say which arguments are parameters; without them donated arguments and matrices count as such.

    Ensures: each argument stored split, and the result that aliases it, has `rhino.strided`; its values are those of
    the original, reshaped. All other arguments and results keep their types. Running it again changes nothing.

    Example:
      ```mlir
      func.func @main(%w: tensor<16x48xf32> {rhino.role = "param"}, %x: tensor<8x16xf32>) ...
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (..) -> tensor<8x48xf32>
        %q = stablehlo.slice %0 [0:8, 0:16] : (tensor<8x48xf32>) -> tensor<8x16xf32>
      // becomes
      func.func @main(%w: tensor<16x3x16xf32> {rhino.role = "param", rhino.strided = {shape = [16, 48], ..}}, ..) ...
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (..) -> tensor<8x3x16xf32>
        %1 = stablehlo.slice %0 [0:8, 0:1, 0:16] : (tensor<8x3x16xf32>) -> tensor<8x1x16xf32>
        %q = stablehlo.reshape %1 : (tensor<8x1x16xf32>) -> tensor<8x16xf32>
      ```
    """

    name: ClassVar[str] = "rhino-expose-strided-dims"

    max_chunks: int = option(16, "the most chunks a dimension is split into")
    explain: bool = option(
        False, "emit a remark at each argument that is cut into chunks: how it is stored, or why not"
    )

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Find, decide, rewrite."""
        main = main_function(module, self.name)
        signature = _Signature.of(main)
        program = read_program(main, signature.having(("param",)), signature.aliases())
        if program.dynamic:
            require_static_shapes(main, self.name)
        flow = trace(program)
        log.unchanged = True
        if not flow.pieces:
            return
        signature.keep_pinned(flow)
        storable = signature.storable()
        classes, index = dim_classes(flow, {i: list(range(len(program.shapes[i]))) for i in storable})
        choice = choose(classes, self.max_chunks)
        if choice.refusals:
            log.count("refused", len({i for k in choice.refusals for i, _ in classes[k].arguments}))
        if self.explain:
            for i, said in _remarks(classes, choice):
                log.remark(program.values[i].location, f"{signature.name(i, program.values[i])}: {said}")
        if any(choice.chunks):
            splits = _splits(flow, choice, index)
            stored = {i: split for i in storable if (split := splits[i]) is not None}
            reshapes = signature.rewrite(flow, splits, stored)
            log.unchanged = False
            log.count("arguments", len(stored))
            log.count("reshapes", reshapes)


@dataclass(frozen=True, slots=True)
class _Signature:
    """@main with its arguments and results: types and attributes."""

    main: Any
    inputs: list[Any]
    outputs: list[Any]
    arguments: list[dict[str, Any]]
    results: list[dict[str, Any]]

    @classmethod
    def of(cls, main: Any) -> _Signature:
        """As written."""
        kind = main.attributes["function_type"].value
        attributes = functions.argument_attributes(main), functions.result_attributes(main)
        return cls(main, list(kind.inputs), list(kind.results), *attributes)

    def aliases(self) -> dict[int, int]:
        """By argument, the result that takes its buffer."""
        return {i: a[ALIAS].value for i, a in enumerate(self.arguments) if ALIAS in a}

    def having(self, roles: Sequence[str]) -> list[bool]:
        """Per argument, whether it has one of the roles; without roles, what is donated or a matrix has all of them."""
        return [_has_role(a, kind, roles) for a, kind in zip(self.arguments, self.inputs, strict=True)]

    def storable(self) -> list[int]:
        """The arguments whose type may change: floating-point parameters and state that are not split already."""
        state = self.having(STATE)
        return [
            i
            for i, (kind, given) in enumerate(zip(self.inputs, self.arguments, strict=True))
            if state[i] and _is_float(kind) and RhinoStrided.name not in given
        ]

    def name(self, i: int, value: Any) -> str:
        """What the user calls an argument."""
        given = self.arguments[i].get(RhinoName.name)
        return argument_name(value, i) if given is None else str(given.value)

    def keep_pinned(self, flow: StridedFlow) -> None:
        """Arguments and results with a sharding keep their types: it numbers their dimensions."""
        for v, given in [*enumerate(self.arguments), *zip(flow.program.outputs, self.results, strict=True)]:
            if SHARDING in given or "mhlo.sharding" in given:
                flow.block_all((v,), "a sharding is given for it")

    def rewrite(self, flow: StridedFlow, splits: Sequence[Split | None], stored: Mapping[int, Split]) -> int:
        """Rewrites the body, then the signature and its attributes. Returns how many reshapes were put in."""
        aliases = {o: i for i, o in self.aliases().items() if i in stored}
        with self.main.location:
            reshapes = StridedRewriter(flow, splits, frozenset(stored), frozenset(aliases)).run()
            for i, split in stored.items():
                shape = flow.program.shapes[i]
                self.inputs[i] = ir.RankedTensorType.get(stored_shape(shape, split), self.inputs[i].element_type)
                self.arguments[i][RhinoStrided.name] = RhinoStrided.to_attr(_record(shape, split), self.main.context)
            for o, i in aliases.items():
                self.outputs[o] = self.inputs[i]
                self.results[o][RhinoStrided.name] = self.arguments[i][RhinoStrided.name]
            self.main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(self.inputs, self.outputs))
        functions.set_argument_attributes(self.main, self.arguments)
        functions.set_result_attributes(self.main, self.results)
        return reshapes


def _has_role(given: Mapping[str, ir.Attribute], kind: Any, roles: Sequence[str]) -> bool:
    if RhinoRole.name in given:
        return RhinoRole.from_attr(given[RhinoRole.name]) in roles
    donated = ALIAS in given or "jax.buffer_donor" in given
    return isinstance(kind, ir.RankedTensorType) and (donated or len(kind.shape) >= 2)


def _is_float(kind: Any) -> bool:
    return isinstance(kind, ir.RankedTensorType) and isinstance(kind.element_type, ir.FloatType)


def _remarks(classes: Sequence[DimClass], choice: Choice) -> list[tuple[int, str]]:
    """Per dimension of an argument that has chunks, the argument and what became of it, in the order of arguments."""
    found: list[tuple[int, int, str]] = []
    for k, c in enumerate(classes):
        if chunks := choice.chunks[k]:
            said = f"is stored as {chunks} x {c.size // chunks}"
        elif k in choice.refusals:
            said = f"stays whole: {choice.refusals[k]}"
        else:
            continue
        found += [(i, dim, f"dim {dim} with size {c.size} {said}") for i, dim in c.arguments]
    return [(i, said) for i, _, said in sorted(found)]


def _splits(flow: StridedFlow, choice: Choice, index: Mapping[int, int]) -> list[Split | None]:
    """The split of every value; values of one group share it."""
    chunks = {root: choice.chunks[k] for root, k in index.items() if choice.chunks[k]}
    find, group = flow.sets.find, flow.program.groups.find
    found: list[Split | None] = []
    for v, shape in enumerate(flow.program.shapes):
        root = group(v)
        if root != v:
            found.append(found[root])
            continue
        base = flow.base[v]
        split = tuple([chunks.get(find(base + dim), 0) for dim in range(len(shape))])
        found.append(split if any(split) else None)
    return found


def _record(shape: Sequence[int], split: Split) -> dict[str, Any]:
    """The data of `rhino.strided`."""
    dims = [
        {"dim": dim, "factors": [chunks, size // chunks]}
        for dim, (size, chunks) in enumerate(zip(shape, split, strict=True))
        if chunks
    ]
    return {"shape": list(shape), "dims": dims}

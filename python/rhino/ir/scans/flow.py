"""Which arrays have a dimension of layers, and how each operation on one is done layer by layer.

Owns the dataflow: from the stacked arrays of the loops that are split, through every operation that treats the layers
alike, in both directions. Changes nothing; `scan_rewrite` does what is found here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.ir.scans.loops import LOOP, READ, WRITE, Scan, Stack, is_constant
from rhino.program.data import Graph, Op, Rule
from rhino.program.elementwise import ELEMENTWISE
from rhino.program.operations import PLACEMENT, SOURCES

BARRIER = "stablehlo.optimization_barrier"
# Done piece by piece by another result type, wherever Shardy's rule says the layers are parallel.
_BY_RULE = ELEMENTWISE | {
    f"stablehlo.{name}"
    for name in """transpose broadcast_in_dim reshape reduce dot_general gather scatter bitcast_convert cholesky
    triangular_solve""".split()
} | {"sdy.sharding_constraint"}  # fmt: skip
# Dimension d of every tensor is dimension d of all others, unless the operation works along it.
_POSITIONAL = frozenset(
    f"stablehlo.{name}"
    for name in "slice pad dynamic_slice dynamic_update_slice concatenate reverse sort reduce_window".split()
)
# What puts the reductions of pieces together, and the start value that makes reducing each from it right.
_COMBINERS: dict[str, float | None] = {
    "add": 0, "multiply": 1, "maximum": None, "minimum": None, "and": None, "or": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScanCut:
    """A dimension that is `units` layers, each as many elements, and is cut between layers."""

    dim: int
    units: int


@dataclass(frozen=True, slots=True)
class Cloning:
    """How one operation is done piece by piece: the dimension cut per operand and per result, -1 for those taken whole.

    `combine`: the operation that puts the results together, for one that reduces over the layers.
    """

    units: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    combine: str = ""


@dataclass(slots=True)
class ScanFlow:
    """The facts. `cuts` are per value, `clonings` per operation, `active` the loops to split.

    `tied` are, per region operation or barrier that is not split itself, the positions where pieces are passed.
    """

    graph: Graph
    ops: Sequence[Any]
    scans: dict[int, Scan]
    cuts: dict[int, ScanCut] = field(default_factory=dict)
    clonings: dict[int, Cloning] = field(default_factory=dict)
    active: dict[int, Scan] = field(default_factory=dict)
    tied: dict[int, dict[int, ScanCut]] = field(default_factory=dict)


def trace(flow: ScanFlow, seeds: Sequence[Scan]) -> None:
    """Follow the layers of the `seeds` through the program. Linear: every operation is decided once."""
    _Tracer(flow).run(seeds)


class _Tracer:
    """State of one propagation."""

    def __init__(self, flow: ScanFlow) -> None:
        self.flow, self.graph = flow, flow.graph
        self.readers = self.graph.users()
        self.pending: list[int] = []
        # Operations that are repeated as they are, in the body of a loop that may be split.
        self.inside = [False] * len(self.graph.ops)
        self.stacks: dict[int, list[tuple[Scan, Stack]]] = {}
        self.ties: dict[int, list[tuple[Op, int]]] = {}
        for scan in flow.scans.values():
            end = self.graph.ops[scan.op].region_end
            self.inside[scan.op + 1 : end] = [True] * (end - scan.op - 1)
            for stack in scan.stacks:
                for v in (stack.value, stack.result):
                    self.stacks.setdefault(v, []).append((scan, stack))
        for op in self.graph.ops:
            if op.index not in flow.scans and not self.inside[op.index]:
                for position, tie in enumerate(op.ties):
                    for v in dict.fromkeys(tie):
                        self.ties.setdefault(v, []).append((op, position))

    def run(self, seeds: Sequence[Scan]) -> None:
        for scan in seeds:
            self.activate(scan)
        for v in self.pending:  # grows
            cut = self.flow.cuts[v]
            for scan, stack in self.stacks.get(v, ()):
                if cut == ScanCut(stack.dim, scan.trips):
                    self.activate(scan)
            for op, position in self.ties.get(v, ()):
                self.tie(op, position, cut)
            producer = self.graph.values[v].producer
            for index in (producer, *self.readers[v]) if producer >= 0 else self.readers[v]:
                if not self.inside[index] and index not in self.flow.clonings:
                    self.decide(self.graph.ops[index], v, cut)

    def cut(self, v: int, cut: ScanCut) -> None:
        if v not in self.flow.cuts:
            self.flow.cuts[v] = cut
            self.pending.append(v)

    def activate(self, scan: Scan) -> None:
        if scan.op in self.flow.active:
            return
        self.flow.active[scan.op] = scan
        for stack in scan.stacks:
            self.cut(stack.value, ScanCut(stack.dim, scan.trips))
            if stack.position >= 0:
                self.cut(stack.result, ScanCut(stack.dim, scan.trips))

    def tie(self, op: Op, position: int, cut: ScanCut) -> None:
        """A value that a region or a barrier passes on is passed in pieces."""
        positions = self.flow.tied.setdefault(op.index, {})
        if position not in positions:
            positions[position] = cut
            for v in op.ties[position]:
                self.cut(v, cut)

    def decide(self, op: Op, v: int, cut: ScanCut) -> None:
        cloning = _cloning(self.flow, op, v, cut)
        if cloning is None:
            return
        self.flow.clonings[op.index] = cloning
        for values, dims in ((op.operands, cloning.operands), (op.results, cloning.results)):
            for other, dim in zip(values, dims, strict=True):
                if dim >= 0:
                    self.cut(other, ScanCut(dim, cut.units))


def _cloning(flow: ScanFlow, op: Op, v: int, cut: ScanCut) -> Cloning | None:
    """How an operation is done piece by piece when one of its values is cut, None if it needs that value whole."""
    graph, ops, cuts = flow.graph, flow.ops, flow.cuts
    if op.name in SOURCES:
        return Cloning(cut.units, (), (cut.dim,)) if _is_cuttable_source(ops[op.index]) else None
    if op.name in _POSITIONAL or op.tag == PLACEMENT:
        return _positional(graph, ops[op.index], op, cut)
    if op.rule is None or not (op.name in _BY_RULE or op.name.startswith("chlo.")):
        return None
    rule = op.rule
    pairs = [*zip(op.operands, rule.operands, strict=True), *zip(op.results, rule.results, strict=True)]
    factors = next(dims[cut.dim] for value, dims in pairs if value == v)
    factor = next((f for f in factors if rule.factor_sizes[f] > 1), -1)
    if factor < 0 or rule.factor_sizes[factor] % cut.units or factor in (*rule.replicate, *rule.permutation):
        return None
    known: list[int] = []
    for value, mapping in pairs:
        dim = _dim_of(graph, value, mapping, factor, rule.factor_sizes)
        # Cut along another dimension, it mixes the layers: once for all is as good as once per piece.
        if dim is None or (dim >= 0 and cuts.get(value, ScanCut(dim, cut.units)) != ScanCut(dim, cut.units)):
            return None
        known.append(dim)
    operands, results = tuple(known[: len(op.operands)]), tuple(known[len(op.operands) :])
    if op.name == "stablehlo.gather" and not _gathers_all(graph, ops[op.index], op, operands[0]):
        return None
    if op.name == "stablehlo.scatter" and min(operands[0], operands[-1]) < 0:
        return None
    if factor not in rule.reduction:
        return Cloning(cut.units, operands, results) if min(results) >= 0 else None
    combine = _combiner(graph, ops, op)
    return Cloning(cut.units, operands, results, combine) if combine else None


def _dim_of(graph: Graph, v: int, mapping: Sequence[Sequence[int]], factor: int, sizes: Sequence[int]) -> int | None:
    """The dimension of a value that a factor is the major part of; -1 if it has none, None if it is a minor part."""
    for dim, factors in enumerate(mapping):
        if factor in factors:
            size = 1
            for f in factors:
                size *= sizes[f]
            major = next(f for f in factors if sizes[f] > 1)
            return dim if major == factor and size == graph.values[v].shape[dim] else None
    return -1


def _is_cuttable_source(op: Any) -> bool:
    """Whether pieces of a constant can be made; those of an iota always can."""
    if op.name == "stablehlo.iota":
        return True
    try:
        value = ir.DenseElementsAttr(op.attributes["value"])
        return value.is_splat or np.array(value).shape == tuple(value.type.shape)
    except (ValueError, TypeError):  # a resource, elided, or of a type that numpy has not
        return False


def _positional(graph: Graph, handle: Any, op: Op, cut: ScanCut) -> Cloning | None:
    """Operations that leave the other dimensions alone."""
    tensors = {"stablehlo.pad": 1, READ: 1, WRITE: 2, "stablehlo.slice": 1}.get(op.name, len(op.operands))
    if op.name == "stablehlo.reduce_window":
        tensors = len(op.results)
    if "dimension" in handle.attributes and handle.attributes["dimension"].value == cut.dim:
        return None
    if op.name == "stablehlo.reverse" and cut.dim in list(handle.attributes["dimensions"]):
        return None
    if op.name == "stablehlo.reduce_window" and list(handle.attributes["window_dimensions"])[cut.dim] != 1:
        return None
    if op.name == "stablehlo.pad" and any(
        list(handle.attributes[name])[cut.dim] for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    ):
        return None
    sizes = {graph.values[v].shape[cut.dim] for v in (*op.operands[:tensors], *op.results)}
    if len(sizes) != 1 or (op.name == "stablehlo.slice" and list(handle.attributes["strides"])[cut.dim] != 1):
        return None
    operands = (cut.dim,) * tensors + (-1,) * (len(op.operands) - tensors)
    return Cloning(cut.units, operands, (cut.dim,) * len(op.results))


def _gathers_all(graph: Graph, handle: Any, op: Op, dim: int) -> bool:
    """Whether a gather takes the whole dimension of its operand, or one element per batch of indices."""
    if dim < 0:
        return True
    numbers = stablehlo.GatherDimensionNumbers(handle.attributes["dimension_numbers"])
    whole = graph.values[op.operands[0]].shape[dim]
    return dim in list(numbers.operand_batching_dims) or list(handle.attributes["slice_sizes"])[dim] == whole


def _combiner(graph: Graph, ops: Sequence[Any], op: Op) -> str:
    """The operation that puts reductions of pieces together, or nothing."""
    if op.name == "stablehlo.dot_general":
        return "stablehlo.add"
    if op.name != "stablehlo.reduce" or len(op.operands) != 2 or op.tag not in _COMBINERS:
        return ""
    wanted = _COMBINERS[op.tag]
    return f"stablehlo.{op.tag}" if wanted is None or _is_splat(graph, ops, op.operands[1], wanted) else ""


def _is_splat(graph: Graph, ops: Sequence[Any], v: int, wanted: float) -> bool:
    """Whether a value is a constant with one number in all places."""
    if not is_constant(graph, v):
        return False
    try:
        value = ir.DenseElementsAttr(ops[graph.values[v].producer].attributes["value"])
        return value.is_splat and float(value.get_splat_value().value) == wanted
    except (ValueError, TypeError, AttributeError):
        return False


def reads_parameters(scan: Scan, dims: Sequence[frozenset[int]]) -> bool:
    """Whether what the loop reads a layer of has its layers from parameters."""
    return any(stack.dim in dims[stack.value] and not stack.written for stack in scan.stacks)


def parameter_dims(graph: Graph) -> list[frozenset[int]]:
    """Per value, the dimensions that are those of parameters: all of what is made of parameters and constants alone.

    Of what is made of data too, those that only leading dimensions of parameters bring, whole: one input projected for
    all layers at once. (Heads, which layers have too, are seldom in front.)
    """
    constant = [False] * len(graph.values)
    pure = [False] * len(graph.values)
    leading: list[frozenset[int]] = [frozenset()] * len(graph.values)
    for argument in graph.arguments:
        if argument.role == "param":
            pure[argument.value] = True
            leading[argument.value] = frozenset(range(min(1, len(graph.values[argument.value].shape))))
    for op in graph.ops:
        if op.name in (LOOP, BARRIER):
            kept = [(tie[0], tie[2]) for tie in op.ties if tie[2] == tie[3]] if op.name == LOOP else op.ties
            for operand, result in kept:
                pure[result], leading[result] = pure[operand], leading[operand]
        elif op.region_end == op.index + 1:
            alone = all(pure[v] or constant[v] for v in op.operands)
            made = any(pure[v] for v in op.operands)
            brought = _brought(op, op.rule, constant, leading) if op.rule is not None else frozenset()
            for r, v in enumerate(op.results):
                pure[v], constant[v] = alone and made, alone and not made
                if brought and op.rule is not None:
                    found = enumerate(op.rule.results[r])
                    leading[v] = frozenset(d for d, factors in found if factors and brought.issuperset(factors))
    return [frozenset(range(len(value.shape))) if pure[value.index] else leading[value.index] for value in graph.values]


def _brought(op: Op, rule: Rule, constant: Sequence[bool], leading: Sequence[frozenset[int]]) -> frozenset[int]:
    """The factors that are whole dimensions of operands, parameters' in all operands that have them."""
    found: set[int] = set()
    lost: set[int] = set(rule.replicate)
    for v, mapping in zip(op.operands, rule.operands, strict=True):
        for d, factors in enumerate(mapping):
            if not constant[v]:
                (found if d in leading[v] and len(factors) == 1 else lost).update(factors)
    return frozenset(found - lost)

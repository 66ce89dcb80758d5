"""How the arguments of @main flow: what each reaches, what it is combined with, and what is made of it first.

Owns the facts, gathered in one walk, linear in the operations of the inlined program. Decides no role. Sets of
arguments are integers with a bit per argument. Loops are followed for one iteration: the next one belongs to the next
step of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoReturned
from rhino.program.operations import PLACEMENT
from rhino.program.roles import ArgumentFlow, ProgramFlow

# Results keep the elements of operand 0 (and what is merged in), possibly moved, cut or converted.
_LAYOUT = frozenset(
    f"stablehlo.{name}"
    for name in """reshape transpose slice dynamic_slice dynamic_update_slice concatenate pad reverse convert
    bitcast_convert optimization_barrier reduce_precision select clamp copy real imag complex scatter""".split()
)
_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in """abs add and atan2 cbrt ceil compare cosine count_leading_zeros divide exponential
    exponential_minus_one floor is_finite log log_plus_one logistic map maximum minimum multiply negate not or popcnt
    power remainder round_nearest_afz round_nearest_even rsqrt shift_left shift_right_arithmetic shift_right_logical
    sign sine sqrt subtract tan tanh xor""".split()
)
# Summaries of their operands: what flows on is no longer the argument itself.
_SUMMARY = frozenset(f"stablehlo.{name}" for name in "reduce reduce_window sort select_and_scatter".split())
_TRANSPARENT_CALLS = frozenset({"Sharding", PLACEMENT, "LayoutConstraint", "xla.sdy.FuncResultSharding"})
_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return", "mpmd.return"})


def program_flow(module: ir.Module, main: ir.Operation) -> ProgramFlow:
    """The facts about @main."""
    block = main.regions[0].blocks[0]
    walk = _ArgumentWalk({functions.name_of(f): f for f in functions.all_functions(module)}, block.arguments)
    walk.bind(block.arguments, [(1 << i, 1 << i) for i in range(len(block.arguments))])
    outputs = walk.block(block)
    types = [argument.type for argument in block.arguments]
    becomes: list[list[int]] = [[] for _ in types]
    for o, (kind, (own, _)) in enumerate(zip(main.attributes["function_type"].value.results, outputs, strict=True)):
        for i in _members(own):
            if types[i] == kind:
                becomes[i].append(o)
    flows = []
    for i, attributes in enumerate(functions.argument_attributes(main)):
        alias = attributes["tf.aliasing_output"].value if "tf.aliasing_output" in attributes else -1
        donated = alias >= 0 or "jax.buffer_donor" in attributes
        computes = bool(walk.computes >> i & 1)
        shape, dtype = walk.shape(types[i])
        first_use = walk.first_use.get(i, "")
        beside = frozenset(_members(walk.beside.get(i, 0)))
        place = RhinoReturned.from_attr(attributes[RhinoReturned.name]) if RhinoReturned.name in attributes else {}
        block, returned = place.get("block", -1), tuple(place.get("results", ()))
        source = frozenset(becomes[i])
        flows.append(ArgumentFlow(shape, dtype, alias, donated, computes, first_use, source, beside, block, returned))
    return ProgramFlow(tuple(flows), tuple(everything for _, everything in outputs))


def _members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


# For a value: the arguments whose elements it is made of, and all arguments it depends on.
_Sets = tuple[int, int]
_NONE: _Sets = (0, 0)


class _ArgumentWalk:
    """One walk over the program. `sets` maps values to their sets; constants are absent."""

    def __init__(self, callees: dict[str, ir.Operation], arguments: Sequence[Any]) -> None:
        self.callees = callees
        self.sets: dict[Any, _Sets] = {}
        self.computes = 0
        self.first_use: dict[int, str] = {}
        self.beside: dict[int, int] = {}
        self.shapes: dict[Any, tuple[tuple[int, ...], str]] = {}
        self.leading = [self.shape(a.type)[0][:1] for a in arguments]
        self.undecided = (1 << len(arguments)) - 1

    def shape(self, value_type: Any) -> tuple[tuple[int, ...], str]:
        """Shape and element type of a tensor type; a rank-0 one for anything else."""
        known = self.shapes.get(value_type)
        if known is None:
            tensor = isinstance(value_type, ir.RankedTensorType)
            known = (tuple(value_type.shape), str(value_type.element_type)) if tensor else ((), str(value_type))
            self.shapes[value_type] = known
        return known

    def bind(self, values: Sequence[Any], sets: Sequence[_Sets]) -> None:
        for value, given in zip(values, sets, strict=True):
            self.sets[value] = given

    def operands(self, op: Any) -> list[_Sets]:
        get = self.sets.get
        return [get(v, _NONE) for v in op.operands]

    def block(self, block: Any) -> list[_Sets]:
        """Walk a block; returns the sets of what its terminator passes on."""
        for view in block.operations:
            op = view.operation
            if op.name in _TERMINATORS:
                return self.operands(op)
            self.op(op, op.name)
        return []

    def op(self, op: Any, name: str) -> None:
        given = self.operands(op)
        own = everything = 0
        for mine, all_ in given:
            own |= mine
            everything |= all_
        # Most operations of a backward pass touch no argument directly: nothing to look at.
        if name in _ELEMENTWISE or name in _LAYOUT:
            pass
        elif len(op.regions) and name not in _SUMMARY and name != "stablehlo.map":
            self.regions(op, name, given, everything)
            return
        elif name == "func.call":
            self.call(op, given)
            return
        elif name == "stablehlo.broadcast_in_dim":
            if own:
                self.broadcast(op, own)
        elif name in _SUMMARY:
            own = 0
        elif own and not self.is_transparent(op, name):
            self.compute(op, name, given)
            own = 0
        if everything:
            for result in op.results:
                self.sets[result] = (own, everything)

    def is_transparent(self, op: Any, name: str) -> bool:
        """Whether an operation of no other kind works element by element."""
        if name == "stablehlo.custom_call":
            return op.attributes["call_target_name"].value in _TRANSPARENT_CALLS
        if name.startswith("stablehlo.") and name != "stablehlo.composite":
            return False
        shapes = {self.shape(v.type)[0] for v in (*op.operands, *op.results)}
        return len(shapes - {()}) <= 1

    def regions(self, op: Any, name: str, given: list[_Sets], everything: int) -> None:
        """Loops, branches, computations with a body: their results are what their blocks pass on."""
        passed: list[list[_Sets]] = []
        for index, region in enumerate(op.regions):
            for block in region.blocks:
                arguments = list(block.arguments)
                if len(arguments) == len(given):
                    self.bind(arguments, given)
                out = self.block(block)
                if name != "stablehlo.while" or index == 1:  # region 0 is the condition
                    passed.append(out)
        if name == "stablehlo.while":
            passed.append(given)
        # A branch depends on its predicate; a computation's block already sees the operands.
        outer = everything if name in ("stablehlo.case", "stablehlo.if") else 0
        for i, result in enumerate(op.results):
            own, all_ = 0, outer
            for out in passed:
                if i < len(out):
                    own |= out[i][0]
                    all_ |= out[i][1]
            self.sets[result] = (own, all_)

    def call(self, op: Any, given: list[_Sets]) -> None:
        callee = self.callees.get(op.attributes["callee"].value)
        if callee is None or not len(callee.regions[0].blocks):
            return
        block = callee.regions[0].blocks[0]
        # A callee may have been walked before with other arguments: every value is set anew, so nothing is left over.
        for inner in block.arguments:
            self.sets.pop(inner, None)
        self.bind(block.arguments, given)
        self.bind(op.results, self.block(block))

    def broadcast(self, op: Any, own: int) -> None:
        operand, result = self.shape(op.operands[0].type)[0], self.shape(op.results[0].type)[0]
        if prod(operand) == prod(result):
            return
        self.computes |= own
        dims = list(op.attributes["broadcast_dimensions"])
        keeps = bool(dims) and dims[0] == 0 and operand[0] == result[0]
        for i in self.new(own):
            kept = keeps and self.leading[i] == operand[:1]
            self.first_use[i] = "spread" if kept else "weight"

    def compute(self, op: Any, name: str, given: list[_Sets]) -> None:
        """Record a contraction, convolution, gather, or an operation nothing is known about."""
        for position, (own, _) in enumerate(given):
            if not own:
                continue
            self.computes |= own
            for i in self.new(own):
                use = self.role_in(op, name, position, i)
                if use:
                    self.first_use[i] = use
                    if position == 1 and self.keeps_leading(op, name, i):
                        self.beside[i] = given[0][0]
                else:
                    self.undecided |= 1 << i

    def role_in(self, op: Any, name: str, position: int, argument: int) -> str:
        if name in ("stablehlo.dot_general", "stablehlo.dot"):
            left, right = self.contracting(op, name)
            shape = self.shape(op.operands[0].type)[0]
            if 0 in left and 0 in right and len(left) < len(shape):
                return "data"  # the gradient of a weight: both sides are summed over the data
            if position == 1:
                return "weight"
            return "weight" if 0 in left and shape[:1] == self.leading[argument] else "data"
        if name == "stablehlo.convolution":
            return "data" if position == 0 else "weight"
        if name in ("stablehlo.gather", "stablehlo.dynamic_gather"):
            return "weight" if position == 0 else "data"
        return ""

    def keeps_leading(self, op: Any, name: str, argument: int) -> bool:
        """Whether a product has the leading dimension of an argument that is its right-hand side."""
        if name not in ("stablehlo.dot_general", "stablehlo.dot"):
            return False
        shape = self.shape(op.operands[1].type)[0]
        return shape[:1] == self.leading[argument] and 0 not in self.contracting(op, name)[1]

    def contracting(self, op: Any, name: str) -> tuple[list[int], list[int]]:
        """The contracting dimensions of the left-hand and of the right-hand side."""
        if name == "stablehlo.dot":
            return [len(self.shape(op.operands[0].type)[0]) - 1], [0]
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)

    def new(self, own: int) -> Iterator[int]:
        """The arguments of a set whose first use is still unknown; they count as known from here on."""
        fresh = own & self.undecided
        self.undecided &= ~fresh
        yield from _members(fresh)

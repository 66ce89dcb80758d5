"""Which operations keep a sum over micro-batches a sum: applied to each part, they give the parts of the result.

Owns the table of linear operations (and of the ones that commute with maximum, minimum, and, or). A partial value in
any other place is needed whole: the step synchronises there.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.microbatch.facts import BatchFacts
from rhino.microbatch.forms import Form, Partial, Whole
from rhino.program.data import Graph, Op
from rhino.program.element_types import FLOATS, dtype_bytes
from rhino.program.operations import COMBINERS, CONTRACTIONS

# They move elements of their first operand about; other operands say where.
_MOVES = frozenset(
    """stablehlo.transpose stablehlo.reshape stablehlo.broadcast_in_dim stablehlo.slice stablehlo.dynamic_slice
    stablehlo.reverse stablehlo.gather sdy.sharding_constraint sdy.reshard stablehlo.copy""".split()
)
_JOINS = frozenset(
    {"stablehlo.add", "stablehlo.subtract", "stablehlo.add_any", "stablehlo.concatenate", "stablehlo.complex"}
)
_SIGNS = frozenset({"stablehlo.negate", "stablehlo.real", "stablehlo.imag"})
# Linear in each of their operands, but not in both at once.
PRODUCTS = CONTRACTIONS | {"stablehlo.multiply"}


def keeps_partial(
    graph: Graph, facts: BatchFacts, op: Op, forms: Sequence[Form], zero: Sequence[bool], nested: bool
) -> Partial | None:
    """The form of the result of an op with partial operands and whole ones, or None if it needs them finished.

    A conversion to fewer bits is better done to the finished sum; in a loop (`nested`) it is done to the parts.
    """
    partial = [i for i, form in enumerate(forms) if isinstance(form, Partial)]
    kind = forms[partial[0]]
    if not isinstance(kind, Partial) or any(forms[i] != kind for i in partial):
        return None
    name, first = op.name, partial == [0]
    # A zero is the sum of zeros.
    summed = [isinstance(f, Partial) or (z and kind.kind == "add") for f, z in zip(forms, zero, strict=True)]
    if name in _MOVES:
        return kind if first else None
    if name == "stablehlo.concatenate" or COMBINERS.get(name) == kind.kind:
        return kind if all(summed) else None
    if name == "stablehlo.select":
        return kind if isinstance(forms[0], Whole) and all(summed[1:]) else None
    if name == "stablehlo.dynamic_update_slice":
        return kind if all(summed[:2]) and all(isinstance(f, Whole) for f in forms[2:]) else None
    if kind.kind != "add":
        return None
    linear = (
        name in _SIGNS
        or (name in _JOINS and all(summed))
        or (name == "stablehlo.convert" and _converts(graph, op, nested))
        or (name == "stablehlo.pad" and first and zero[1])
        or (name in PRODUCTS and len(partial) == 1)
        or (name == "stablehlo.divide" and first and graph.values[op.results[0]].dtype in FLOATS)
        or (_adds(facts, op) and name == "stablehlo.reduce" and first and zero[-1] and len(forms) == 2)
        or (_adds(facts, op) and name == "stablehlo.scatter" and scattered(forms, summed))
    )
    return kind if linear else None


def scattered(forms: Sequence[Form], summed: Sequence[bool]) -> bool:
    """Whether a scatter of one operand adds summed updates to a summed operand at whole indices."""
    return len(forms) == 3 and summed[0] and summed[2] and isinstance(forms[1], Whole)


def _adds(facts: BatchFacts, op: Op) -> bool:
    return facts.combiners.get(op.index) == "stablehlo.add"


def _converts(graph: Graph, op: Op, nested: bool) -> bool:
    """Whether parts may be converted: to a float of more bits or, inside a loop, to any float."""
    source, target = (graph.values[v].dtype for v in (op.operands[0], op.results[0]))
    return FLOATS.issuperset((source, target)) and (nested or dtype_bytes(source) < dtype_bytes(target))


def is_late(graph: Graph, op: Op, operand: int) -> bool:
    """Whether a result made of one sum is better made once, of the finished sum: doing it before saves no memory."""
    return op.name != "stablehlo.convert" and graph.values[operand].nbytes <= graph.values[op.results[0]].nbytes


def keeps_zero(op: Op, zero: Sequence[bool]) -> bool:
    """Whether the result is zero everywhere, given which operands are."""
    if op.name in _MOVES or op.name in _SIGNS or op.name == "stablehlo.convert":
        return zero[0]
    return bool(zero) and op.name in (*_JOINS, "stablehlo.pad") and all(zero)

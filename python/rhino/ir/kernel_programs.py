"""What a device computes for a call: by default the same call with its own shapes.

Owns making the local call. Builders of what is more than that stand in files of their own, listed here by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.ir.kernel_calls import (
    CUSTOM_CALL,
    RULE,
    kernel_of,
    read_call,
    renumbered,
    rule_attribute,
    rule_of,
    target_of,
    write_config,
    write_kernel,
)
from rhino.ir.layouts import NamedMesh
from rhino.kernels.bodies import TARGET
from rhino.kernels.table import find
from rhino.program.data import Dims


@dataclass(frozen=True, slots=True)
class Local:
    """One call on one device: its local operands, the types of its local results, and what splits which factor.

    `reads` and `makes` are the axes per dimension of whole operands and results. `mesh` is None, and nothing is split,
    where there is only one device. `begins` are, of split factors that are ordered, the place in the whole where the
    device's part begins, as a tensor<i32>.
    """

    op: ir.Operation
    operands: Sequence[Any]
    results: Sequence[Any]
    mesh: NamedMesh | None
    axes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    reads: Sequence[Dims] = ()
    makes: Sequence[Dims] = ()
    begins: Mapping[int, Any] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        """Into how many parts the arithmetic is divided."""
        return prod(self.mesh.ways(axes) for _, axes in self.axes) if self.mesh is not None else 1


Program = Callable[[Local], Sequence[Any]]


# Entry.program -> "module:function" of its builder.
_PROGRAMS = {
    TARGET: "rhino.passes.kernels.traced:traced",
    "ragged": "rhino.passes.kernels.ragged:ragged",
    "own-positions": "rhino.passes.kernels.selection:own_positions",
    "cublas-product": "rhino.passes.kernels.products:product",
}


def program_of(op: ir.Operation) -> Program:
    """The builder of the local program of a call; it builds at the current insertion point."""
    target = target_of(op)
    entry = find(target)
    key = target if target == TARGET else "" if entry is None else entry.program
    if not key:
        return same_call
    module, _, name = _PROGRAMS[key].partition(":")
    found: Program = getattr(import_module(module), name)
    return found


def same_call(local: Local) -> Sequence[Any]:
    """The call itself with other types, and its configuration changed to suit them."""
    op = local.op
    made = op.clone()
    for name in (RULE, sdy.SHARDING):
        if name in made.attributes:
            del made.attributes[name]
    for position, operand in enumerate(local.operands):
        made.operands[position] = operand
    for result, kind in zip(made.results, local.results, strict=True):
        result.set_type(kind)
    suit_shapes(op, made, local.parts)
    return made.results


def suit_shapes(op: ir.Operation, made: ir.Operation, parts: int) -> None:
    """Makes a copy of a call whose operands and results have other shapes a call with these: configuration, costs.

    Args:
      parts: how much less arithmetic it is. Of memory traffic it has its share of operands and results.
    """
    call, now = read_call(op), read_call(made)
    entry = find(call.target)
    if entry is not None and entry.resize is not None and op.name == CUSTOM_CALL:
        write_config(made, entry.resize(call, now.operands, now.results))
    kernel = kernel_of(made)
    nbytes = kernel.nbytes * now.nbytes // max(1, call.nbytes)
    write_kernel(made, replace(kernel, flops=kernel.flops // parts, nbytes=nbytes))


def suit_rule(op: ir.Operation, made: ir.Operation, factor: int, parts: int) -> None:
    """The same for the rule of a call that works on a part of one factor: a micro-batch."""
    rule = rule_of(op)
    rule = replace(rule, factor_sizes=tuple(n // parts if f == factor else n for f, n in enumerate(rule.factor_sizes)))
    made.attributes[RULE] = rule_attribute(rule, op.context)
    kernel = kernel_of(op)
    held = tuple(replace(m, nbytes=m.nbytes // (parts if factor in m.factors else 1)) for m in kernel.held)
    write_kernel(made, renumbered(replace(kernel, held=held), rule))

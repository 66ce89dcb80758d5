"""Ragged products: `chlo.ragged_dot`, which `jax.lax.ragged_dot` and its gradients are lowered to for GPUs.

Owns what their dimension numbers mean. What a device computes is built by `rhino.ir.local_kernels.ragged`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from rhino.kernels.data import Entry, KernelCall, Known
from rhino.kernels.rules import make_rule
from rhino.program.data import KernelMemory

_LIST = re.compile(r"(\w+) = \[([\d, ]*)\]")


@dataclass(frozen=True, slots=True)
class Ragged:
    """Factors of the dimensions of a ragged product, by name.

    Rows ("r") are cut into groups: `sizes` are their numbers, one list for each index of what stands before "q". A
    group has a right-hand side of its own ("g" of `rhs`), or a result of its own ("g" of `result`: rows are then summed
    within each group).
    """

    lhs: tuple[str, ...]
    rhs: tuple[str, ...]
    sizes: tuple[str, ...]
    result: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sharding rule."""
        return f"{', '.join(' '.join(side) for side in (self.lhs, self.rhs, self.sizes))} -> {' '.join(self.result)}"


def read(call: KernelCall) -> Ragged:
    """The factors of a call of `chlo.ragged_dot`, which its verifier found to be one of the three kinds."""
    numbers = {
        name: [int(d) for d in text.split(",") if d.strip()]
        for name, text in _LIST.findall(str(call.config_of("ragged_dot_dimension_numbers")))
    }

    def of(name: str) -> list[int]:
        return numbers.get(name, [])

    lhs = [f"m{d}" for d in range(len(call.operands[0].shape))]
    rhs = [f"n{d}" for d in range(len(call.operands[1].shape))]
    for kind, letter in (("batching", "b"), ("contracting", "k")):
        for i, (left, right) in enumerate(zip(of(f"lhs_{kind}_dimensions"), of(f"rhs_{kind}_dimensions"), strict=True)):
            lhs[left] = rhs[right] = f"{letter}{i}"
    (rows,) = of("lhs_ragged_dimensions")
    named = lhs[rows]
    lhs, rhs = ([("r" if f == named else f) for f in side] for side in (lhs, rhs))
    for group in of("rhs_group_dimensions"):
        rhs[group] = "g"
    batch = [lhs[d] for d in of("lhs_batching_dimensions")]
    contracted = [lhs[d] for d in of("lhs_contracting_dimensions")]
    kept = [f for f in lhs if f not in (*batch, *contracted)]
    others = [f for f in rhs if f not in (*batch, *contracted, "g")]
    # Sizes of groups may differ along the dimensions that stand before the ragged one among those of its kind.
    before = batch[: batch.index("r")] if "r" in batch else [*batch]
    for side in (contracted, kept):
        before += side[: side.index("r")] if "r" in side else []
    before = before if len(call.operands[2].shape) > 1 else []
    each = ["g"] if "r" in contracted else []
    return Ragged(
        tuple(lhs), tuple(rhs), (*before, "q"), (*each, *batch, *kept, *others)
    )  # fmt: skip


def _describe(call: KernelCall) -> Known:
    found = read(call)
    named = (*found.lhs, *found.rhs, *found.result)
    summed = tuple(dict.fromkeys(f for f in (*found.lhs, *found.rhs) if f not in found.result))
    rule, names = make_rule(found.text, call.operands, call.results, reduction=summed, whole=("q",), made=("g",))
    groups = call.operands[2].shape[-1] if "g" in named else 1
    sizes = dict(zip(names, rule.factor_sizes, strict=True))
    # XLA computes every group with all rows, those of other groups set to zero, and writes these operands out; where
    # each group has a matrix once more with groups and rows in another order, since gradients read the first.
    copies = 1 if "g" in found.result else 2
    masked = [(found.lhs, call.operands[0]), (found.rhs, call.operands[1])][: 1 + ("g" in found.result)]
    held = tuple(
        KernelMemory(tuple(names.index(f) for f in (*factors, "g")), copies * groups * tensor.nbytes)
        for factors, tensor in (masked if "g" in named else ())
    )
    return Known(
        rule=rule,
        names=names,
        flops=2 * groups * prod(sizes[f] for f in dict.fromkeys(named) if f != "g"),
        nbytes=call.nbytes + 2 * sum(one.nbytes for one in held),
        dtype=call.operands[0].dtype,
        whole={"q": "where a group begins depends on the sizes of all before it"},
        ordered=tuple(names.index(f) for f in ("r", "g") if f in names),
        held=held,
    )


ENTRIES = (
    Entry(
        "ragged-dot",
        ("chlo.ragged_dot",),
        "Products of groups of rows with a matrix for each group, forward and gradients. Splits rows, groups, columns "
        "and what is summed over: a device finds out which of its rows are in which of its groups. For CPUs jax writes "
        "out an ordinary product instead.",
        _describe,
        program="ragged",
    ),
)

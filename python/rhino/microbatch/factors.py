"""Where the batch is among the factors of an op: from a split dimension to a factor, and from a factor to dimensions.

Owns this arithmetic, and the rules Shardy has not got. Knows nothing of what an op computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from rhino.microbatch.forms import Coarser, Split
from rhino.program.data import Graph, Manual, Op, Rule

Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The batch inside one factor: the factor is `before` x `count` x `after`."""

    factor: int
    before: int
    count: int
    after: int


def rule_of(graph: Graph, op: Op) -> Rule | None:
    """The op's factor rule; that of top_k, which Shardy has not got, keeps all dimensions but the last."""
    if op.manual is not None and op.rule is not None:
        return _merged(op.rule, op.manual)
    if op.rule is not None or op.name != "chlo.top_k":
        return op.rule
    shape = graph.values[op.operands[0]].shape
    dims = tuple((i,) for i in range(len(shape)))
    return Rule(shape, (dims,), (dims,) * len(op.results), replicate=(len(shape) - 1,))


def _merged(rule: Rule, manual: Manual) -> Rule:
    """A manual computation's rule with one factor for a batch and for what its axes split of it.

    Whichever examples a device has, the body does the same to each. Where the axes split the batch in some places only,
    in others it is there once for each of them.
    """
    sizes = list(rule.factor_sizes)
    heads: dict[int, set[tuple[int, ...]]] = {}
    for dim in (dim for m in (*rule.operands, *rule.results) for dim in m):
        for at, f in enumerate(dim):
            if f in manual.free:
                heads.setdefault(f, set()).add(dim[:at])
    known: dict[int, int] = {}

    def mapped(dim: tuple[int, ...]) -> tuple[int, ...]:
        at = next((i for i, f in enumerate(dim) if f in manual.free), 0)
        if not at or len(heads[dim[at]]) > 1:
            return dim
        if dim[at] not in known:
            known[dim[at]] = len(sizes)
            sizes.append(prod(rule.factor_sizes[f] for f in dim[: at + 1]))
        return (known[dim[at]], *dim[at + 1 :])

    operands, results = (tuple(tuple(map(mapped, m)) for m in side) for side in (rule.operands, rule.results))
    # What its axes alone split has to stay whole.
    given = {f for _, f in manual.taken if f >= 0} - set(manual.free)
    return replace(
        rule, factor_sizes=tuple(sizes), operands=operands, results=results, replicate=(*rule.replicate, *sorted(given))
    )


def find(rule: Rule, dims: Dims, split: Split, size: int) -> Span | None:
    """The factor that holds the batch of a split dimension of that size; None if no single factor does.

    Raises:
      Coarser: the batch is spread over several factors, so only groups of examples can be told apart.
    """
    factors = dims[split.dim] if split.dim < len(dims) else ()
    sizes = [rule.factor_sizes[f] for f in factors]
    if prod(sizes) != size:
        return None
    before = 1
    for factor, length in zip(factors, sizes, strict=True):
        after = size // (before * length)
        if split.before % before == 0 and split.after % after == 0:
            return Span(factor, split.before // before, split.count, split.after // after)
        if split.before % before == 0 and after > split.after:
            groups = before * length // split.before
            if groups > 1:
                if split.before * groups == before * length and split.count % groups == 0:
                    raise Coarser(split.count // groups)
                return None
        before *= length
    return None


def place(rule: Rule, dims: Dims, span: Span) -> Split | None:
    """The split of the first dimension that contains the factor of the batch, or None."""
    for d, factors in enumerate(dims):
        if span.factor in factors:
            at = factors.index(span.factor)
            before = prod(rule.factor_sizes[f] for f in factors[:at])
            after = prod(rule.factor_sizes[f] for f in factors[at + 1 :])
            return Split(d, before * span.before, span.count, span.after * after)
    return None

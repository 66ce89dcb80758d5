"""From one layout of a value to another: which collectives, over which axes, on how many bytes.

A layout is a tuple with, per mesh axis, the sharded dimension, REPLICATED or PARTIAL. Owns the reduction of partial
values; what follows is the cheapest route of `rhino.sharding.routes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Literal

from rhino.program.data import Op
from rhino.sharding.problem import PARTIAL, REPLICATED
from rhino.sharding.routes import Layout, Order, Placed, Route, RouteStep, cheapest, local, placements, weight
from rhino.sharding.uneven import Odd, padded, ways

# Ops that leave partial sums, by what XLA does with them.
Form = Literal["dot", "batched", "reduction", "scatter"]

_FORMS: dict[str, Form] = {"stablehlo.reduce": "reduction", "stablehlo.scatter": "scatter"}

__all__ = ["Form", "Layout", "Order", "Placed", "Route", "RouteStep", "convert", "form_of", "route", "shards"]


def form_of(op: Op) -> Form:
    """What kind of op leaves partial sums. The parts of a kernel are stacked and reduced."""
    if op.name == "stablehlo.dot_general" and op.rule is not None:
        left, right, result = ({f for dim in m for f in dim} for m in (*op.rule.operands, op.rule.results[0]))
        if left & right & result:
            return "batched"
    return "reduction" if op.kernel is not None else _FORMS.get(op.name, "dot")


def shards(layout: Layout, sizes: tuple[int, ...], shape: Sequence[int] = ()) -> float:
    """Into how many parts a value is split: less where the parts of a value of this shape differ."""
    total: float = 1
    for state, size in zip(layout, sizes, strict=True):
        if state >= 0:
            total *= ways(shape[state], size) if shape else size
    return total


def convert(
    source: Layout, target: Layout, sizes: tuple[int, ...], nbytes: float, reduce_scatter: bool
) -> list[RouteStep]:
    """The collectives that turn `source` into `target`, the axes on a dimension in whatever order suits them.

    Args:
      sizes: devices along each mesh axis.
      nbytes: bytes of the whole value.
      reduce_scatter: `XLA: reduce-scatters`, on the target; else it reduces, then slices.
    """
    return [s.scaled(nbytes) for s in route(source, target, sizes, reduce_scatter).steps]


def route(
    source: Layout,
    target: Layout,
    sizes: tuple[int, ...],
    reduce_scatter: bool,
    *,
    weights: Sequence[float] = (),
    form: Form = "dot",
    orders: tuple[Order | None, Order | None] = (None, None),
    odd: Odd = (),
) -> Route:
    """The cheapest way from `source` to `target` for one byte.

    Args:
      weights: cost of a byte sent along each axis; all equal by default.
      form: how XLA treats the op that leaves partial sums: a "dot", or a "batched" one, by
        `XLA: dot-divided-further, dots-reduced-axis-by-axis`, a "reduction" by
        `XLA: reductions-over-all-axes-at-once`; a "scatter" it would do in another way if told at once where the result
        goes, so it is told first to reduce.
      orders: how axes on one dimension are nested at both ends, major first, and partial ones by the dims whose sums
        they hold; None where that is free.
      odd: dimensions that are split into parts that differ, and their sizes.
    """
    weights = tuple(weights) or (1.0,) * len(sizes)
    best: Route | None = None
    goals = placements(target, orders[1])
    for start in placements(tuple(REPLICATED if s == PARTIAL else s for s in source), orders[0]):
        for steps, left, stops in _reductions(source, target, start, orders[0], sizes, reduce_scatter, form, odd):
            cost = sum(weight(step, sizes, weights) for step in steps)
            if best is not None and cost >= best.cost:
                continue
            rest = cheapest(stops[-1] if stops else left, goals, source, target, sizes, weights, odd)
            if best is None or cost + rest.cost < best.cost - 1e-12:
                best = Route(cost + rest.cost, (*steps, *rest.steps), left, (*stops, *rest.stops))
    assert best is not None
    return best


def ranked(source: Layout, target: Layout, odd: Odd) -> tuple[Layout, Layout, Odd]:
    """The same with dimensions numbered in their order, which changes no step of a route."""
    numbers = {d: i for i, d in enumerate(sorted({d for d in (*source, *target) if d >= 0}))}
    return (
        tuple([numbers.get(d, d) for d in source]),
        tuple([numbers.get(d, d) for d in target]),
        tuple([(numbers[d], size) for d, size in odd]),
    )


def _reductions(
    source: Layout,
    target: Layout,
    start: Placed,
    order: Order | None,
    sizes: tuple[int, ...],
    reduce_scatter: bool,
    form: Form,
    odd: Odd,
) -> Iterator[tuple[list[RouteStep], Placed, list[Placed]]]:
    """Ways to make partial sums whole: collectives, where the first leaves the value, and further stops."""
    partial = [a for a, s in enumerate(source) if s == PARTIAL]
    if not partial:
        yield [], start, []
        return
    free = {t for s, t in zip(source, target, strict=True) if s == REPLICATED and t >= 0}
    # A dot that leaves parts whole which are wanted sliced computes only the slice, before anything is sent.
    sliced = start
    is_dot = form in ("dot", "batched")
    for a, t in enumerate(target if is_dot else ()):
        if source[a] == REPLICATED and t >= 0 and _room(sliced, t, a, source, target):
            sliced = _onto(sliced, t, (a,))
    yield [RouteStep("all-reduce", tuple(sorted(partial)), local(sliced, sizes, odd))], sliced, []
    if order is not None:
        # The members of a group take their parts in the order in which the reduced dims are split.
        partial.sort(key=order.index)
    onto = {d: tuple(a for a in partial if target[a] == d) for d in sorted({target[a] for a in partial} - {REPLICATED})}
    rest = tuple(a for a in partial if target[a] == REPLICATED)
    # XLA: uneven-parts-not-scattered
    if not reduce_scatter or not onto or any(padded(odd, [(d, axes)], sizes) > 1 for d, axes in onto.items()):
        return
    # All but dots: all of that is scattered, or nothing. XLA: reductions-over-all-axes-at-once
    if not is_dot and (len(onto) > 1 or free or (rest and not _splits(source, onto, rest, sizes))):
        return
    # Over an axis that holds copies the op would be divided: a smaller all-reduce, a permute. XLA: dot-divided-further
    idle = any(s == t == REPLICATED and n > 1 for s, t, n in zip(source, target, sizes, strict=True))
    told_first = idle or bool(free & set(onto)) or form == "scatter"
    # What a first reduce-scatter leaves XLA reduces over all axes at once, as they are in the mesh. Where the dot is
    # told first, or the first would be onto a dimension that is split already, there can only be one.
    if len(onto) + bool(rest) > (1 if told_first and is_dot else 2):
        return
    split = {d for d, _ in sliced}
    for dims in permutations(onto):
        if len(dims) + bool(rest) > 1 and dims[0] in split:
            continue
        steps: list[RouteStep] = []
        stops: list[Placed] = []
        now = sliced
        for d in dims:
            axes = tuple(sorted(onto[d])) if stops else onto[d]
            if not all(_room(now, d, a, source, target) for a in axes):
                break
            steps.append(RouteStep("reduce-scatter", tuple(sorted(axes)), local(now, sizes, odd)))
            now = _onto(now, d, axes)
            stops.append(now)
        else:
            if rest:
                steps.append(RouteStep("all-reduce", tuple(sorted(rest)), local(now, sizes, odd)))
            # Told at once to divide a batching dimension further, XLA would gather all of the result.
            told = told_first or (form == "batched" and dims[0] in split)
            yield (steps, sliced, stops) if told else (steps, stops[0], stops[1:])


def _splits(source: Layout, onto: Mapping[int, tuple[int, ...]], rest: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether XLA splits an all-reduce over all devices; training steps reduce over the groups that it needs.

    `XLA: all-reduce-split`.
    """
    everywhere = all(s == PARTIAL or n == 1 for s, n in zip(source, sizes, strict=True))
    inner = next(iter(onto.values()))
    # Devices take their parts in the order of the mesh: where the parts are nested otherwise nothing is scattered.
    return everywhere and max(rest) < min(inner) and list(inner) == sorted(inner)


def _room(placed: Placed, d: int, a: int, source: Layout, target: Layout) -> bool:
    """Whether dim d can take axis a beside those it has: such splits are only sure to divide at either end."""
    axes = {a, *next((on for dim, on in placed if dim == d), ())}
    return all(target[b] == d for b in axes) or all(source[b] == d for b in axes)


def _onto(placed: Placed, d: int, axes: tuple[int, ...]) -> Placed:
    found = dict(placed)
    found[d] = (*found.get(d, ()), *axes)
    return tuple(sorted(found.items()))


def stacked(layout: Layout) -> bool:
    """Whether several axes split one dimension."""
    split = [s for s in layout if s >= 0]
    return len(split) != len(set(split))

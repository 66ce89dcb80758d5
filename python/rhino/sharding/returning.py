"""The way of a parameter's next value from its update, which is laid out apart, to the buffer of the parameter.

Owns which layouts it goes through under a plan, and what a device holds meanwhile. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rhino.sharding.layout import Layout, Order, Placed, shards
from rhino.sharding.problem import REPLICATED, LayoutTransfer
from rhino.sharding.routes import local
from rhino.sharding.stacks import outermost
from rhino.sharding.symmetry import transfers_where
from rhino.sharding.uneven import share

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs, States


def returned(costs: Costs, states: Sequence[States]) -> Iterator[tuple[LayoutTransfer, Layout, Layout]]:
    """The next values of parameters whose updates have a cone of their own, as they are made and as they are kept."""
    klass = costs.quotient.klass
    for transfer in transfers_where(costs.problem, costs.quotient, "return", lambda tied: True):
        (source,), (target,) = transfer.sources, transfer.targets
        made = costs.layout(source, states[klass[source.node]])
        yield transfer, made, costs.layout(target, states[klass[target.node]])


def returns(
    costs: Costs, states: Sequence[States], nesting: Sequence[Order]
) -> Iterator[tuple[int, tuple[Placed, ...]]]:
    """Results that are made in another layout than they are returned in: what they go through, the last one included.

    Args:
      nesting: per class, how its axes are nested where several split one dimension (`rhino.sharding.nesting`).
    """
    klass = costs.quotient.klass
    for transfer, made, kept in returned(costs, states):
        source, target = transfer.sources[0].node, transfer.targets[0].node
        orders = costs.orders(transfer, klass[source], klass[target], made, kept, states, nesting)
        route = costs.route(transfer.value, made, kept, costs.form(transfer), orders)
        if route.stops:
            yield transfer.value, route.stops


def made_bytes(costs: Costs, v: int, made: Layout, kept: Layout) -> int:
    """Of a next value as it is made, on one device: there until the step ends, beside the parameter."""
    return _bytes(costs, v, made) if made != kept else 0


def passing_bytes(costs: Costs, v: int, made: Layout, kept: Layout) -> int:
    """What a device holds on the way besides, at the update: layouts in between, and what is gathered anew.

    A gather along the outermost dimension works in the parameter's buffer, any other in one of its own.
    `XLA: gathered-apart`.
    """
    if made == kept:
        return 0
    value = costs.problem.graph.values[v]
    stops = costs.route(v, made, kept).stops
    between = max((local(stop, costs.sizes) for stop in stops[:-1]), default=0.0)
    changed = [(s, e) for s, e in zip(made, kept, strict=True) if s not in (e, REPLICATED)]
    first = outermost(value.shape)
    anew = any(e != REPLICATED or s > first for s, e in changed)
    return max(round(value.nbytes * between), _bytes(costs, v, kept) if anew else 0)


def _bytes(costs: Costs, v: int, layout: Layout) -> int:
    value = costs.problem.graph.values[v]
    return share(value.nbytes, shards(layout, costs.sizes, value.shape))

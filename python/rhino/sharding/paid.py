"""Which conversions a transfer makes under the states of a plan, each paid once.

Owns what counts as the same conversion. Prices are those of `rhino.sharding.costs`; chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.sharding.costs import FREE, Costs, States
from rhino.sharding.layout import Layout, Order, RouteStep
from rhino.sharding.problem import LayoutTransfer


def paid(
    costs: Costs, transfer: LayoutTransfer, states: Sequence[States], nesting: Sequence[Order] = ()
) -> list[tuple[float, tuple[RouteStep, ...], Layout, Layout]]:
    """The conversions a transfer makes under given states, each once: (seconds, steps, from, to).

    Args:
      nesting: per class, how its axes are nested where several split one dimension; by default as it suits each.
    """
    found: list[tuple[float, tuple[RouteStep, ...], Layout, Layout]] = []
    seen: set[tuple[Layout, Layout, Order | None, tuple[RouteStep, ...]]] = set()
    for s in transfer.sources:
        source = costs.layout(s, states[s.node])
        for t in transfer.targets:
            target = costs.layout(t, states[t.node]) if t.node >= 0 else (-1,) * len(costs.sizes)
            orders = costs.orders(transfer, s.node, t.node, source, target, states, nesting) if nesting else FREE
            if source == target and orders[0] == orders[1]:
                continue
            seconds, steps = costs.transfer(transfer, source, target, orders)
            key = (source, target, orders[1], steps)
            if key in seen and costs.once(transfer, source, target):
                continue
            seen.add(key)
            found.append((seconds, steps, source, target))
    return found

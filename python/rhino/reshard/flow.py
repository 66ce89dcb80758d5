"""The least time in which hosts can carry demands that some of them share, by maximum flows.

Owns the parametric search. Knows nothing about tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

from rhino.program.max_flow import FlowGraph

Demand = tuple[int, tuple[int, ...], tuple[int, ...]]


def least_time(demands: Sequence[Demand], speed: Mapping[int, Fraction]) -> tuple[Fraction, list[dict[int, Fraction]]]:
    """The least T in which hosts send all demands, host h no more than T speed(h), and what each sends of each demand.

    A demand (V, holders, relays) is V that only holders can send, and V more for every relay but one, which the relays
    can send too: copies for all of k hosts, when each can pass on what it got.

    Exact. T grows from 0 by Newton's iteration: a minimum cut is a set of hosts that needs longer than T, which gives
    the next T, until the flow carries everything.
    """
    hosts = sorted({host for _, holders, relays in demands for host in (*holders, *relays)})
    node_of = {host: 2 + at for at, host in enumerate(hosts)}
    time = Fraction(0)
    while True:
        # Everything is scaled so that capacities are whole numbers.
        scale = lcm(*((time * speed[host]).denominator for host in hosts), 1)
        graph = FlowGraph(2 + len(hosts) + 2 * len(demands))
        for host in hosts:
            graph.add(node_of[host], 1, int(time * speed[host] * scale))
        edges: list[list[tuple[int, int]]] = []
        everything = scale * sum(amount * max(1, len(relays)) for amount, _, relays in demands)
        wanted = 0
        for at, (amount, holders, relays) in enumerate(demands):
            node, relayed = 2 + len(hosts) + 2 * at, 3 + len(hosts) + 2 * at
            more = max(0, len(relays) - 1) * amount * scale
            total = amount * scale + more
            wanted += total
            graph.add(0, node, total)
            if more:
                graph.add(node, relayed, more)
            edges.append(
                [(host, graph.add(relayed, node_of[host], everything)) for host in relays if more]
                + [(host, graph.add(node, node_of[host], everything)) for host in holders]
            )
        if graph.maximise() == wanted:
            return time, [
                {host: Fraction(graph.room[edge ^ 1], scale) for host, edge in each if graph.room[edge ^ 1]}
                for each in edges
            ]
        cut = graph.reached()
        load = Fraction(0)
        for at, (amount, _, relays) in enumerate(demands):
            more = max(0, len(relays) - 1) * amount
            if cut[2 + len(hosts) + 2 * at]:
                load += amount + (more if not more or cut[3 + len(hosts) + 2 * at] else 0)
        time = load / sum((speed[host] for host in hosts if cut[node_of[host]]), Fraction(0))

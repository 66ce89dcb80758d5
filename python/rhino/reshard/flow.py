"""Maximum flow in whole numbers, and the least time in which hosts can carry demands that some of them share.

Owns Dinic's algorithm and the parametric search around it. Knows nothing about tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm


class FlowGraph:
    """A directed graph with whole-number capacities. Nodes are 0 .. n - 1; node 0 is the source, node 1 the sink."""

    def __init__(self, nodes: int) -> None:
        self.to: list[int] = []
        self.room: list[int] = []
        self.edges_of: list[list[int]] = [[] for _ in range(nodes)]

    def add(self, start: int, stop: int, capacity: int) -> int:
        """A new edge. Its number e; its flow, afterwards, is `room[e ^ 1]`."""
        edge = len(self.to)
        self.to += [stop, start]
        self.room += [capacity, 0]
        self.edges_of[start].append(edge)
        self.edges_of[stop].append(edge + 1)
        return edge

    def maximise(self) -> int:
        """Pushes a maximum flow from node 0 to node 1 and returns it (Dinic 1970: blocking flows by levels)."""
        total = 0
        while True:
            level = self._levels()
            if level[1] < 0:
                return total
            at = [0] * len(self.edges_of)
            while pushed := self._push(level, at):
                total += pushed

    def reached(self) -> list[bool]:
        """After `maximise`: the nodes on the source's side of the minimum cut."""
        return [depth >= 0 for depth in self._levels()]

    def _levels(self) -> list[int]:
        level = [-1] * len(self.edges_of)
        level[0] = 0
        queue = [0]
        for node in queue:
            for edge in self.edges_of[node]:
                if self.room[edge] and level[self.to[edge]] < 0:
                    level[self.to[edge]] = level[node] + 1
                    queue.append(self.to[edge])
        return level

    def _push(self, level: Sequence[int], at: list[int]) -> int:
        """One path with room along the levels, filled; 0 if there is none. `at` remembers dead ends."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self.edges_of[node]
            while at[node] < len(edges):
                edge = edges[at[node]]
                if self.room[edge] and level[self.to[edge]] == level[node] + 1:
                    break
                at[node] += 1
            else:
                if not path:
                    return 0
                node = self.to[path.pop() ^ 1]
                at[node] += 1
                continue
            path.append(edge)
            node = self.to[edge]
        amount = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= amount
            self.room[edge ^ 1] += amount
        return amount


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

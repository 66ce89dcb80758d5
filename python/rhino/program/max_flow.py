"""Maximum flow in whole numbers, and the minimum cut that it shows.

Owns Dinic's algorithm. Knows nothing of what flows.
"""

from __future__ import annotations

from collections.abc import Sequence


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

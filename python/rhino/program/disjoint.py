"""Disjoint sets of integers, joined pair by pair. Owns that structure alone."""

from __future__ import annotations


class DisjointSets:
    """Sets of 0, 1, ..., at first one each. The smallest member stands for its set: the outcome depends on no order."""

    def __init__(self, size: int = 0) -> None:
        self._parent = list(range(size))

    def __len__(self) -> int:
        """How many integers there are, in whatever sets."""
        return len(self._parent)

    def add(self) -> int:
        """The next integer, in a set of its own."""
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def find(self, x: int) -> int:
        """The smallest member of the set that x is in."""
        parent = self._parent
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def join(self, a: int, b: int) -> int:
        """Makes one set of the sets of a and b; returns its smallest member."""
        a, b = self.find(a), self.find(b)
        if a > b:
            a, b = b, a
        self._parent[b] = a
        return a

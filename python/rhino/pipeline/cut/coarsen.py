"""Units: groups of forward ops that are never divided, of about equal time, whose quotient graph has no cycles.

Owns the contraction. Only edges are contracted of which no other path exists (the tail feeds nothing else, or the head
reads nothing else), and fans whose heads do not reach each other. Light ops join what reads them, so that the cheap
places to cut, such as the residual stream before a normalisation, stay between units. Only what pins leave to the same
stages is joined.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import chain, groupby

# An op is light if it takes less than this share of a unit.
_LIGHT = 0.02
# How much larger units become when there are too many of them.
_GROWTH = 1.5


# The first and the last stage that an op can be on.
Range = tuple[int, int]


def coarsen(
    items: Sequence[int],
    edges: Mapping[int, Sequence[int]],
    seconds: Mapping[int, float],
    target: int,
    limit: int,
    ranges: Mapping[int, Range] | None = None,
) -> list[list[int]]:
    """Groups of the items, in a topological order of the groups; about `target` of equal time, at most `limit`.

    Args:
      items: in program order.
      edges: for each item, the items that read its results.
      ranges: by item, where it can be, never before what it reads. Groups are of one range and in their order: each can
        then be on the first stage of its own. By default all is one range.
    """
    total = sum(seconds[i] for i in items)
    share = total / max(1, target)
    ranges = ranges or dict.fromkeys(items, (0, 0))
    groups = _Contraction(items, edges, seconds, ranges).run(share)
    while len(groups) > limit and share < total:
        share *= _GROWTH
        groups = _Contraction(items, edges, seconds, ranges).run(share)
    if len(groups) > limit:
        # Neighbours in a topological order have no cycles through others.
        size = -(-len(groups) // limit)
        alike = [list(found) for _, found in groupby(groups, key=lambda group: ranges[group[0]])]
        groups = [sorted(chain(*found[k : k + size])) for found in alike for k in range(0, len(found), size)]
    return groups


class _Contraction:
    """A graph whose nodes merge. A node is named by the item it grew from."""

    def __init__(
        self,
        items: Sequence[int],
        edges: Mapping[int, Sequence[int]],
        seconds: Mapping[int, float],
        ranges: Mapping[int, Range],
    ) -> None:
        self.ranges = ranges
        self.members = {i: [i] for i in items}
        self.weight = {i: seconds[i] for i in items}
        self.after: dict[int, dict[int, None]] = {i: dict.fromkeys(edges.get(i, ())) for i in items}
        self.before: dict[int, dict[int, None]] = {i: {} for i in items}
        for i in items:
            for j in self.after[i]:
                self.before[j][i] = None

    def run(self, share: float) -> list[list[int]]:
        """Contract until nothing more fits in a share."""
        changed = True
        while changed:
            changed = self._tails(share)
            changed |= self._fans(share)
        return self._ordered()

    def _light(self, node: int, share: float) -> bool:
        return self.weight[node] <= _LIGHT * share

    def _alike(self, *nodes: int) -> bool:
        """Whether pins leave nodes to the same stages."""
        return all(self.ranges[node] == self.ranges[nodes[0]] for node in nodes)

    def _fit(self, nodes: Sequence[int], share: float) -> bool:
        return sum(self.weight[node] for node in nodes) <= share

    def _tails(self, share: float) -> bool:
        """What feeds one node only joins it."""
        changed = False
        for node in list(self.members):
            if node not in self.members or len(self.after[node]) != 1:
                continue
            reader = next(iter(self.after[node]))
            if not self._alike(node, reader):
                continue
            if self._light(node, share) or self.weight[node] + self.weight[reader] <= share:
                self._merge(node, reader)
                changed = True
        return changed

    def _fans(self, share: float) -> bool:
        """A light node joins all its readers, or what it alone reads if it has none that it can join."""
        changed = False
        for node in list(self.members):
            if node not in self.members or not self._light(node, share):
                continue
            readers = list(self.after[node])
            if not readers:
                if len(self.before[node]) == 1 and self._alike(node, *self.before[node]):
                    self._merge(node, next(iter(self.before[node])))
                    changed = True
            elif self._alike(node, *readers) and self._fit(readers, share) and self._apart(readers):
                for reader in readers[1:]:
                    self._merge(reader, readers[0])
                self._merge(node, readers[0])
                changed = True
        return changed

    def _apart(self, nodes: Sequence[int]) -> bool:
        """Whether no node reaches another one, so that they can be merged."""
        wanted = set(nodes)
        seen: set[int] = set()
        front = [r for n in nodes for r in self.after[n]]
        while front:
            node = front.pop()
            if node in wanted:
                return False
            if node not in seen:
                seen.add(node)
                front.extend(self.after[node])
        return True

    def _merge(self, node: int, into: int) -> None:
        self.members[into] += self.members.pop(node)
        self.weight[into] += self.weight.pop(node)
        for j in self.after.pop(node):
            del self.before[j][node]
            if j != into:
                self.before[j][into] = None
                self.after[into][j] = None
        for j in self.before.pop(node):
            del self.after[j][node]
            if j != into:
                self.after[j][into] = None
                self.before[into][j] = None

    def _ordered(self) -> list[list[int]]:
        """The groups in a topological order, of those that can be next the one of the earliest stages, and of these the
        one that begins first in the program.
        """
        first = {node: (self.ranges[node], min(found)) for node, found in self.members.items()}
        missing = {node: len(found) for node, found in self.before.items()}
        ready = [(first[node], node) for node, count in missing.items() if not count]
        heapq.heapify(ready)
        groups = []
        while ready:
            _, node = heapq.heappop(ready)
            groups.append(sorted(self.members[node]))
            for j in self.after[node]:
                missing[j] -= 1
                if not missing[j]:
                    heapq.heappush(ready, (first[j], j))
        return groups

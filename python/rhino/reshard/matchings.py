"""Loads between ports as matchings, one after another, in exactly the time of the busiest port.

Owns the preemptive open shop (Gonzalez and Sahni 1976; Birkhoff and von Neumann). Knows neither bytes nor programs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

Edge = tuple[int, int]

# With more edges the longest matching is not looked for, only a long one.
_SMALL = 256


def port_load(weights: Mapping[Edge, int]) -> int:
    """The most that one source sends or one target receives."""
    out: dict[int, int] = {}
    into: dict[int, int] = {}
    for (source, target), weight in weights.items():
        out[source] = out.get(source, 0) + weight
        into[target] = into.get(target, 0) + weight
    return max((*out.values(), *into.values()), default=0)


def matchings(weights: Mapping[Edge, int]) -> list[tuple[int, tuple[Edge, ...]]]:
    """Matchings (length, edges) that give each edge its weight, the lengths adding up to `port_load`.

    Each is one of the longest there are: all ports that could not wait that long are in it, by edges that heavy. After
    it an edge is done, or one more port is in all that follow, so that there are no more than edges and ports.
    """
    left = {edge: weight for edge, weight in sorted(weights.items()) if weight}
    total = port_load(left)
    found: list[tuple[int, tuple[Edge, ...]]] = []
    hint = total
    while left:
        length, edges = _longest(left, total, hint)
        found.append((length, edges))
        total -= length
        hint = length
        for edge in edges:
            left[edge] -= length
            if not left[edge]:
                del left[edge]
    return found


def _longest(left: Mapping[Edge, int], total: int, hint: int) -> tuple[int, tuple[Edge, ...]]:
    """The longest matching after which `total` less its length still suffices (a long one if there are many edges)."""
    sources: dict[int, int] = {}
    targets: dict[int, int] = {}
    for (source, target), weight in left.items():
        sources[source] = sources.get(source, 0) + weight
        targets[target] = targets.get(target, 0) + weight
    slacks = {total - load for load in (*sources.values(), *targets.values())}
    lengths = sorted({length for length in (*left.values(), *slacks) if length > 0})
    best: tuple[Edge, ...] | None = None
    if len(left) > _SMALL:
        # Mostly the next matching is about as long as the last.
        at = max(0, bisect_right(lengths, hint) - 1)
        while (best := _covering(left, sources, targets, total, lengths[at])) is None and at:
            at //= 2
    else:
        # What is too long stays so for all that is longer. The longest first: where all weights are equal it will do.
        low, at, high = 0, len(lengths) - 1, len(lengths) - 1
        while low <= high:
            edges = _covering(left, sources, targets, total, lengths[at])
            if edges is None:
                high = at - 1
            else:
                best, low = edges, at + 1
            at = (low + high) // 2
    assert best is not None, "a matching that covers all busiest ports always exists (Mendelsohn and Dulmage 1958)"
    return _length(left, sources, targets, total, best), best


def _length(
    left: Mapping[Edge, int],
    sources: Mapping[int, int],
    targets: Mapping[int, int],
    total: int,
    edges: Sequence[Edge],
) -> int:
    """How long a matching can last: until an edge is done, or a port outside of it can wait no longer."""
    length = min(left[edge] for edge in edges)
    inside_sources, inside_targets = {source for source, _ in edges}, {target for _, target in edges}
    for ports, inside in ((sources, inside_sources), (targets, inside_targets)):
        for port, load in ports.items():
            if port not in inside:
                length = min(length, total - load)
    return length


def _covering(
    left: Mapping[Edge, int], sources: Mapping[int, int], targets: Mapping[int, int], total: int, length: int
) -> tuple[Edge, ...] | None:
    """A maximal matching by edges of at least `length` with every port that cannot wait so long; None if there is none.

    First the sources that cannot wait, by augmenting paths; then the targets that cannot, by paths that may end at a
    target that can; then whoever else finds a place. None of these takes a port that cannot wait out again.
    """
    by_source: dict[int, list[int]] = {source: [] for source in sources}
    by_target: dict[int, list[int]] = {target: [] for target in targets}
    for (source, target), weight in sorted(left.items(), key=lambda each: (-each[1], each[0])):
        if weight >= length:
            by_source[source].append(target)
            by_target[target].append(source)
    of_source: dict[int, int] = {}
    of_target: dict[int, int] = {}
    hurried = {target for target, load in targets.items() if total - load < length}
    for source, load in sources.items():
        if total - load < length and not _augment(source, by_source, of_source, of_target, None):
            return None
    for target in targets:
        if (
            target in hurried
            and target not in of_target
            and not _augment(target, by_target, of_target, of_source, hurried)
        ):
            return None
    for source in sources:
        if source not in of_source:
            _augment(source, by_source, of_source, of_target, None)
    return tuple(sorted(of_source.items()))


def _augment(
    start: int,
    near: Mapping[int, Sequence[int]],
    of_near: dict[int, int],
    of_far: dict[int, int],
    keep: set[int] | None,
) -> bool:
    """Matches a port of the near side along an alternating path, breadth first.

    The path ends at a port of the far side that is not matched or, if `keep` is given, at one of the near side that is
    not in it and is let go.
    """
    came: dict[int, int] = {}
    queue = [start]
    for port in queue:
        for other in near[port]:
            if other in came:
                continue
            came[other] = port
            owner = of_far.get(other)
            if owner is None or (keep is not None and owner not in keep):
                if owner is not None:
                    del of_near[owner]
                step: int | None = other
                while step is not None:
                    holder = came[step]
                    before = of_near.get(holder)
                    of_near[holder], of_far[step] = step, holder
                    step = before if holder != start else None
                return True
            queue.append(owner)
    return False

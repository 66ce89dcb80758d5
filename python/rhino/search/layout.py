"""From one layout of a value to another: which collectives, over which axes, on how many bytes.

A layout is a tuple with, per mesh axis, the sharded dimension, REPLICATED or PARTIAL. Owns the order of the steps,
which is the order XLA's partitioner takes them in: slice, reduce-scatter, all-gather, all-to-all, all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.search.problem import PARTIAL, REPLICATED

Layout = tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Step:
    """One collective: its kind, the mesh axes it runs over, and the bytes of the full tensor within its group."""

    kind: str
    axes: tuple[int, ...]
    nbytes: float


def shards(layout: Layout, sizes: tuple[int, ...]) -> int:
    """Into how many parts a value is split."""
    total = 1
    for state, size in zip(layout, sizes, strict=True):
        if state >= 0:
            total *= size
    return total


def convert(source: Layout, target: Layout, sizes: tuple[int, ...], nbytes: float, reduce_scatter: bool) -> list[Step]:
    """The collectives that turn `source` into `target`; equal steps over several axes are one.

    Args:
      sizes: devices along each mesh axis.
      nbytes: bytes of the whole value.
      reduce_scatter: whether XLA reduces and scatters at once on the target; else it reduces, then slices.
    """
    now = list(source)
    steps: list[Step] = []
    count = len(sizes)
    # A dimension that leaves a partial value whole is sliced for free, before anything is sent.
    for a in range(count):
        if now[a] == REPLICATED and target[a] >= 0:
            now[a] = target[a]
    scatter = [a for a in range(count) if now[a] == PARTIAL and target[a] >= 0]
    reduce_ = [a for a in range(count) if now[a] == PARTIAL and target[a] < 0]
    # A reduce-scatter divides one dimension; onto several, XLA reduces everything and slices.
    if not reduce_scatter or len({target[a] for a in scatter}) > 1:
        reduce_, scatter, sliced = sorted(reduce_ + scatter), [], scatter
    else:
        sliced = []
    if scatter:
        steps.append(Step("reduce-scatter", tuple(scatter), _local(now, sizes, nbytes)))
        for a in scatter:
            now[a] = target[a]
    moved = [a for a in range(count) if now[a] >= 0 and target[a] >= 0 and now[a] != target[a]]
    if any(now[a] == now[b] or target[a] in (now[b], target[b]) for a in moved for b in range(count) if b != a):
        # XLA cannot move one of two axes that share a dimension, before or after: it gathers the whole tensor and
        # slices it again ("involuntary full rematerialization").
        gathered = tuple(a for a in range(count) if now[a] >= 0)
        now = [REPLICATED if s >= 0 else s for s in now]
        steps.append(Step("all-gather", gathered, _local(now, sizes, nbytes)))
        now = [t if s == REPLICATED else s for s, t in zip(now, target, strict=True)]
        moved = []
    gather = [a for a in range(count) if now[a] >= 0 and target[a] < 0]
    for a in gather:
        now[a] = REPLICATED
    if gather:
        steps.append(Step("all-gather", tuple(gather), _local(now, sizes, nbytes)))
    for a in moved:
        steps.append(Step("all-to-all", (a,), _local(now, sizes, nbytes) * sizes[a]))
        now[a] = target[a]
    if reduce_:
        steps.append(Step("all-reduce", tuple(reduce_), _local(now, sizes, nbytes)))
        for a in reduce_:
            now[a] = target[a] if a in sliced else REPLICATED
    return steps


def _local(now: list[int], sizes: tuple[int, ...], nbytes: float) -> float:
    """Bytes one group works on: the value without the parts other axes hold."""
    for state, size in zip(now, sizes, strict=True):
        if state >= 0:
            nbytes /= size
    return nbytes

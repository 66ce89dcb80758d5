"""What collectives take that XLA combines: one start for all of them.

Owns which may be combined, and each one's share of the seconds. `XLA: collectives-combined,
gathers-combined, threshold-keeps-apart, sums-joined`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from rhino.machine.collectives import CommModel
from rhino.program.data import Op
from rhino.program.siblings import NEAR, reaches
from rhino.sharding.problem import LayoutTransfer, Problem
from rhino.sharding.symmetry import Quotient

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Combined:
    """What a collective is a part of: one of `times` its own bytes, but of `least` bytes.

    `awaited`: the program waits for it, so that it is a part of what is made beside it, and of nothing else.
    """

    times: float = 1.0
    least: float = 0.0
    awaited: bool = False

    def bytes_of(self, nbytes: float, most: float) -> float:
        """Bytes of the one that a collective of so many becomes a part of, of which XLA makes none of over `most`."""
        return max(nbytes, min(most, max(self.times * nbytes, self.least)))

    def share(self, nbytes: float, most: float) -> float:
        """What part it is of that one: its own start is worth so many."""
        return nbytes / self.bytes_of(nbytes, most) if nbytes else 1.0


ALONE = Combined()


def combinable(problem: Problem, quotient: Quotient, stored: Collection[int]) -> dict[int, Combined]:
    """Per tied transfer, what its collectives may be combined with.

    Those of parameters, of gradients, or of parameters' next values: nothing waits for one of them before another
    starts. No layout is known yet: all count as divided alike, but vectors, which plans seldom divide as they divide
    matrices, have a start of their own. In a loop over layers a whole matrix does, too: it is often near the limit. Of
    its shards so many become one as make up a whole.

    Args:
      stored: the tied transfers that move parameters or gradients (`rhino.sharding.overlap`).
    """
    ops, values = problem.graph.ops, problem.graph.values
    tied = [(transfer, count) for transfer, count in quotient.transfers if transfer.index in stored]

    def matrix(transfer: LayoutTransfer) -> bool:
        return sum(n > 1 for n in values[transfer.value].shape) > 1

    def alike(transfer: LayoutTransfer) -> Hashable:
        layer = ops[transfer.op].parent if transfer.trips > 1 else -1
        return transfer.kind, layer, transfer.trips, values[transfer.value].dtype, matrix(transfer)

    total: dict[Hashable, float] = defaultdict(float)
    for transfer, count in tied:
        total[alike(transfer)] += count * values[transfer.value].nbytes
    found = {}
    for transfer, count in tied:
        own = max(1, values[transfer.value].nbytes)
        in_loop = transfer.trips > 1 and matrix(transfer)
        found[transfer.index] = Combined(least=count * own) if in_loop else Combined(total[alike(transfer)] / own)
    return found


@dataclass(slots=True)
class _Beside:
    """Sums of one cone none of which follows from another: the ops that leave them, and bytes of all."""

    nbytes: int = 0
    members: list[tuple[LayoutTransfer, Op]] = field(default_factory=list)


def made_together(problem: Problem, quotient: Quotient, stored: Collection[int]) -> dict[int, Combined]:
    """Per tied transfer of a sum that the program waits for, those beside it: the mean, say, and that of the squares.

    They are reductions in one block, of one cone, and kept by one cone alike, so that any plan moves all as it moves
    one; and none of them follows from another.

    Args:
      stored: the tied transfers that nothing waits for.
    """
    graph = problem.graph
    users = graph.users()
    groups: dict[Hashable, _Beside] = {}
    done: list[_Beside] = []
    for transfer in problem.transfers:
        if transfer.kind != "define" or len(transfer.sources) > 1 or quotient.tied[transfer.index] in stored:
            continue
        source, op, value = transfer.sources[0], graph.ops[transfer.op], graph.values[transfer.value]
        if problem.nodes[source.node].kind != "cone":
            continue
        alike = source, transfer.targets[0], op.parent, op.tag, value.dtype
        group = groups.setdefault(alike, _Beside())
        if any(op.index - o.index > NEAR or reaches(graph, users, o, op) for _, o in group.members):
            done.append(group)
            group = groups[alike] = _Beside()
        group.nbytes += value.nbytes
        group.members.append((transfer, op))
    # Tied ones may have more beside them, or fewer.
    shares: dict[int, list[float]] = defaultdict(list)
    for group in (*done, *groups.values()):
        for transfer, _ in group.members:
            shares[quotient.tied[transfer.index]].append(graph.values[transfer.value].nbytes / max(1, group.nbytes))
    found = {index: len(of) / max(sum(of), 1e-9) for index, of in shares.items()}
    return {index: Combined(times, awaited=True) for index, times in found.items() if times > 1}


def become_one(made: Iterable[tuple[Hashable, float, float, Item]]) -> list[list[Item]]:
    """Which collectives become one, in order: of those alike as many as have no more bytes than the limit together.

    Args:
      made: what tells collectives apart, bytes of the result, the limit, and what stands for the collective.
    """
    found: list[list[Item]] = []
    filling: dict[Hashable, tuple[float, list[Item]]] = {}
    for alike, nbytes, limit, item in made:
        filled, one = filling.get(alike, (0.0, []))
        if not one or filled + nbytes > limit:
            filled, one = 0.0, []
            found.append(one)
        one.append(item)
        filling[alike] = filled + nbytes, one
    return found


def shared_seconds(comm: CommModel, kind: str, axes: tuple[int, ...], nbytes: float, together: float) -> float:
    """Seconds of a collective that is a part of one of `together` bytes; its own where it is no smaller."""
    if not 0 < nbytes < together:
        return comm.time(kind, axes, nbytes)
    return comm.time(kind, axes, together) * nbytes / together


def joined_seconds(nbytes: float, together: float, copying: tuple[float, float]) -> float:
    """Seconds of copying what is summed into the operand that several have together, and out of it; 0 if it is alone.

    Args:
      copying: seconds in which a byte is read or written, and of a kernel's start.
    """
    if not 0 < nbytes < together:
        return 0.0
    per_byte_s, start_s = copying
    return 4 * nbytes * per_byte_s + start_s * (1 + nbytes / together)

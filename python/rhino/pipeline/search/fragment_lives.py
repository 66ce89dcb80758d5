"""What the fragments of a micro-batch hold: a liveness sweep for the forward and the backward part of every stage.

Owns where fragments end: what another fragment reads is written to memory though XLA would fuse it in one program, and
is there to the end of the fragment that makes it. Knows no schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_fusible
from rhino.program.fusion import buffers, materialised
from rhino.program.memory import LiveBytes, overwritten

# (value or stage, bytes on one device, first op, last op): when a buffer lives.
Span = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Staging:
    """Which stage runs each op: -1 for ops that every stage computes for itself. Ops of a region have their parent's.

    `loop` is the index of the micro-batch loop; `backward[o]` says whether an op in it is of the backward pass.
    `arguments` are values with the stage that keeps them, -1 for those that all stages read; `sums` those that further
    stages accumulate a part of, each with such a stage. `parts` are what stages add to such sums of their own: no other
    stage gets them, though the program adds them up in one place.
    """

    stages: int
    stage_of: Sequence[int]
    backward: Sequence[bool]
    loop: int
    arguments: Sequence[tuple[int, int]]
    sums: Sequence[tuple[int, int]] = ()
    parts: frozenset[int] = frozenset()


class FragmentLives:
    """Bytes on one device of what lives within one micro-batch.

    `owned` are values that are there all the time: the arguments. A fragment is numbered 2 s for the forward part of
    stage s, 2 s + 1 for its backward part, -1 for what has none.
    """

    def __init__(
        self, graph: Graph, staging: Staging, local: Sequence[int], copies: Sequence[Span], owned: frozenset[int]
    ) -> None:
        self.graph, self.staging, self.local = graph, staging, local
        self.real, self.owner = materialised(graph), buffers(graph)
        loop = graph.ops[staging.loop]
        self.inside = range(staging.loop + 1, loop.region_end)
        # Arguments and accumulators are there all the time.
        self.always = owned.union(self.owner[v] for v in owned).union(self.owner[v] for tie in loop.ties for v in tie)
        self.ends = self._ends()
        self.readers = self._readers()
        self.reads = self._reads()
        self.live = self._live_bytes(copies)

    def saved_bytes(self, stage: int) -> int:
        """What one micro-batch's forward leaves for its backward, on its own stage, received values included."""
        forward, backward = 2 * stage, 2 * stage + 1
        found: dict[int, int] = {}
        for v, readers in self.readers.items():
            here = self.made_in(v) == forward or forward in readers
            if here and backward in readers and not self.made_in(v) & 1:
                found[self.owner[v]] = max(found.get(self.owner[v], 0), self.local[v])
        return sum(found.values())

    def running_bytes(self, stage: int) -> int:
        """The most that its forward or its backward needs at once, what is saved of this micro-batch included."""
        received = [0, 0]
        for v, readers in self.readers.items():
            for backward in (0, 1):
                # Of another stage. The next micro-batch's arrives while this one runs.
                if 2 * stage + backward in readers and self.made_in(v) >> 1 != stage:
                    received[backward] += self.local[v]
        forward, backward = (self.live.get(2 * stage + k, LiveBytes()).highest()[0] for k in (0, 1))
        return max(forward + 2 * received[0], self.saved_bytes(stage) + backward + 2 * received[1])

    def fragment(self, op: int) -> int:
        """The fragment that an op is in."""
        s = self.staging.stage_of[op]
        return 2 * s + self.staging.backward[op] if s >= 0 and op in self.inside else -1

    def made_in(self, v: int) -> int:
        """The fragment that makes a value."""
        producer = self.graph.values[v].producer
        return self.fragment(producer) if producer >= 0 else -1

    def _ends(self) -> dict[int, int]:
        """The last op of each fragment."""
        return {self.fragment(o): o for o in self.inside}

    def _readers(self) -> dict[int, frozenset[int]]:
        """Values that other fragments read than the one that makes them, with those."""
        found: dict[int, set[int]] = {}
        for o in self.inside:
            here, adds = self.fragment(o), self.graph.ops[o].name == "stablehlo.add"
            for v in self.graph.ops[o].operands:
                made = self.made_in(v)
                if here >= 0 and made >= 0 and made != here and not (adds and v in self.staging.parts):
                    found.setdefault(v, set()).add(here)
        return {v: frozenset(readers) for v, readers in found.items()}

    def _reads(self) -> dict[tuple[int, int], int]:
        """By value and fragment, the last op there that needs it in memory."""
        graph = self.graph
        found: dict[tuple[int, int], int] = {}
        for o in reversed(self.inside):
            op, here = graph.ops[o], self.fragment(o)
            if here < 0:
                continue
            result = op.results[0] if op.results else -1
            fused = is_fusible(op) and result >= 0 and not self.real[result] and result not in self.readers
            when = max(o, found.get((result, here), o)) if fused else o
            for v in op.operands:
                at = self._loop_end(op, graph.values[v].loop, when)
                found[v, here] = max(found.get((v, here), -1), at)
            for tie in op.ties:
                if op.name == "stablehlo.while":
                    for v in tie:
                        found[v, here] = max(found.get((v, here), -1), op.region_end - 1)
        return found

    def _loop_end(self, op: Op, loop: int, when: int) -> int:
        """What is read inside a loop and made outside it lasts until the loop ends."""
        parent = op.parent
        while parent != loop and parent > self.staging.loop:
            if self.graph.ops[parent].name == "stablehlo.while":
                when = max(when, self.graph.ops[parent].region_end - 1)
            parent = self.graph.ops[parent].parent
        return when

    def _live_bytes(self, copies: Sequence[Span]) -> dict[int, LiveBytes]:
        """By fragment, what lives in it between which ops."""
        graph = self.graph
        lives: dict[tuple[int, int], list[int]] = {}
        for o in self.inside:
            here = self.fragment(o)
            if here < 0:
                continue
            for v in graph.ops[o].results:
                if self.owner[v] in self.always or not (self.real[v] or v in self.readers):
                    continue
                dies = self.ends[here] if v in self.readers else max(o, self.reads.get((v, here), o))
                key = self.owner[v], here
                size, born, until = lives.get(key, (0, o, o))
                lives[key] = [max(size, self.local[v]), min(born, o), max(until, dies)]
            for root in overwritten(graph, graph.ops[o], self.real, self.owner):
                live = lives.get((root, here))
                if live and live[2] == o and live[1] < o:
                    live[2] -= 1
                    break
        found: dict[int, LiveBytes] = {}
        spans = [(here, *live) for (_, here), live in lives.items()]
        for _, nbytes, born, dies in copies:
            here = self.fragment(born)
            if here >= 0:
                until = dies if self.fragment(min(dies, self.inside[-1])) == here else self.ends[here]
                spans.append((here, nbytes, born, until))
        for here, nbytes, born, dies in spans:
            found.setdefault(here, LiveBytes()).add(nbytes, born, dies)
        return found

"""Where backward ops belong: the unit whose forward ops they mirror.

Owns the assignment of every backward item to a unit. Units are numbered topologically, and along backward edges anchors
never rise, so that mirroring adds no cycle to the units' precedences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rhino.pipeline.cut.phases import Phases
from rhino.pipeline.cut.step import LoopForm, bits
from rhino.program.data import STATE
from rhino.program.operations import CONTRACTIONS


def captured_parameters(step: LoopForm) -> dict[int, int]:
    """For each value from before the loop, the arguments it was made of, as a bit set: parameters and other state."""
    graph = step.graph
    found = {a.value: 1 << k for k, a in enumerate(graph.arguments) if a.role in STATE}
    for i in step.staged(step.before):
        mask = 0
        for v in step.reads[i]:
            mask |= found.get(v, 0)
        for v in graph.ops[i].results:
            found[v] = mask
    return found


class Readers:
    """Which units read what in the forward pass: captured values, parameters, and values of the body."""

    def __init__(self, step: LoopForm, phases: Phases, unit_of: Mapping[int, int]) -> None:
        self.captured = captured_parameters(step)
        values: dict[int, dict[int, None]] = {}
        for i in phases.forward:
            for v in step.reads[i]:
                values.setdefault(v, {})[unit_of[i]] = None
        self.of_value = {v: sorted(found) for v, found in values.items()}
        parameters: dict[int, dict[int, None]] = {}
        for v, units in self.of_value.items():
            for k in bits(self.captured.get(v, 0)):
                parameters.setdefault(k, {}).update(dict.fromkeys(units))
        self.of_parameter = {k: sorted(found) for k, found in parameters.items()}


def anchor(step: LoopForm, phases: Phases, unit_of: Mapping[int, int], readers: Readers) -> dict[int, int]:
    """The unit of each backward item."""
    return _Anchors(step, phases, unit_of, readers).run()


def owners(step: LoopForm, phases: Phases, readers: Readers, unit_of: Mapping[int, int]) -> dict[int, int]:
    """By argument index the unit of a parameter: where its gradient is accumulated, else the first that reads it."""
    maker = {v: i for i in phases.backward for v in step.graph.ops[i].results}
    found = {k: units[0] for k, units in readers.of_parameter.items()}
    for k, carries in step.gradients.items():
        accumulate = maker.get(step.carries[carries[0]].yielded)
        if accumulate is not None:
            found[k] = unit_of[accumulate]
    return found


class _Anchors:
    """Three sweeps: the lowest unit of each item, then as high as what it reads allows, then down where that is less.

    High means early in the backward pass. Only items that no parameter ties to a unit move in the last two.
    """

    def __init__(self, step: LoopForm, phases: Phases, unit_of: Mapping[int, int], readers: Readers) -> None:
        self.step, self.phases, self.readers = step, phases, readers
        self.made = {v: unit_of[i] for i in phases.forward for v in step.graph.ops[i].results}
        self.maker = {v: i for i in phases.backward for v in step.graph.ops[i].results}
        self.users: dict[int, list[int]] = {}
        for i in phases.backward:
            for v in step.reads[i]:
                self.users.setdefault(v, []).append(i)
        self.found: dict[int, int] = {}
        self.free: set[int] = set()

    def run(self) -> dict[int, int]:
        """The three sweeps."""
        found, phases = self.found, self.phases
        for i in reversed(phases.backward):
            least = self._least(i)
            tied = self._tied(i, least)
            if tied is None:
                self.free.add(i)
            kept = [self.made[v] for v in self.step.reads[i] if v in self.made]
            found[i] = max([least, tied or 0, *kept])
        for i in phases.backward:
            if i in self.free:
                found[i] = max(found[i], self._highest(i))
        for i in reversed(phases.backward):
            # Parts of one gradient stay: they are added up where they arise.
            if i in self.free and phases.reaches[i] & (phases.reaches[i] - 1):
                self._lower(i)
        return found

    def _least(self, item: int) -> int:
        """The highest unit of what reads the item: anchors never rise along backward edges."""
        results = self.step.graph.ops[item].results
        return max((self.found[r] for v in results for r in self.users.get(v, ())), default=0)

    def _tied(self, item: int, least: int) -> int | None:
        """The unit of the forward op that the item mirrors, by the parameters it reads and the gradient it is part of.

        None for what has none: element-wise ops and sums of cotangents. Parts of the gradient of a parameter with
        several readers stay where they arise.
        """
        step, readers = self.step, self.readers
        read = step.reads[item]
        kept = [v for v in read if v in self.made]
        found = [_nearest(readers.of_value[v], least) for v in read if v in readers.captured and v in readers.of_value]
        heavy = step.graph.ops[item].name in CONTRACTIONS
        reaches = self.phases.reaches[item]
        if reaches and not reaches & (reaches - 1):
            units = readers.of_parameter.get(next(bits(reaches)), [])
            if heavy:
                # The gradient of a weight reads what the weight was multiplied with.
                units = [u for u in units if any(u in readers.of_value.get(v, ()) for v in kept)] or units
            if len(units) == 1 or (heavy and units):
                found.append(_nearest(units, least))
        elif heavy and not found:
            found += [_nearest(readers.of_value.get(v) or [self.made[v]], least) for v in kept]
        return max(found) if found else None

    def _highest(self, item: int) -> int:
        """As high as the cotangents it reads, in a unit that has the forward values it reads."""
        read = self.step.reads[item]
        above = [self.found[self.maker[v]] for v in read if v in self.maker]
        if not above:
            return 0
        highest = min(above)
        for v in read:
            if v in self.made:
                units = (self.made[v], *self.readers.of_value.get(v, ()))
                highest = max((u for u in units if u <= highest), default=0)
        return highest

    def _lower(self, item: int) -> None:
        """Down to what reads it, if its operands are smaller than its results: a sum's gradient is spread there."""
        graph, found = self.step.graph, self.found
        kept = [self.made[v] for v in self.step.reads[item] if v in self.made]
        to = max([self._least(item), *kept])
        if to >= found[item] or not any(v in self.users for v in graph.ops[item].results):
            return
        sent = 0
        for v in self.step.reads[item]:
            if v in self.maker and found[self.maker[v]] > to:
                others = (found[r] for r in self.users[v] if r != item)
                sent += 0 if any(u <= to for u in others) else graph.values[v].nbytes
        if sent < sum(graph.values[v].nbytes for v in graph.ops[item].results):
            found[item] = to


def _nearest(units: Sequence[int], least: int) -> int:
    """The first unit not before `least`, or the last one."""
    return next((u for u in units if u >= least), units[-1])

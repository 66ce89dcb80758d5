"""The stage problem of a step: units with their seconds and bytes, and what travels between them.

Owns the translation from ops to units. Knows no solver; the machine's side of the problem comes from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rhino.pipeline.cut.anchors import Readers, anchor, owners
from rhino.pipeline.cut.coarsen import coarsen
from rhino.pipeline.cut.phases import Phases
from rhino.pipeline.cut.pinning import check_owners, item_ranges
from rhino.pipeline.cut.problem import Net, StageUnit
from rhino.pipeline.cut.step import LoopForm, bits

_SUM = "stablehlo.add"


@dataclass(frozen=True, slots=True)
class UnitGraph:
    """Units in topological order, and the unit of every staged item of the body: that of its op, or of its mirror.

    `pins` are the stages of units that have to be on one, -1 for others; () for none.
    `sums` are the gradients with parts from several units: by index of the carry, the parts that are added up.
    `owner` is the unit of a parameter (by argument index): where its gradient is accumulated.
    """

    units: tuple[StageUnit, ...]
    precedences: tuple[tuple[int, int], ...]
    nets: tuple[Net, ...]
    pins: tuple[int, ...]
    unit_of: dict[int, int]
    sums: dict[int, tuple[int, ...]]
    owner: dict[int, int]


def build_units(
    step: LoopForm,
    phases: Phases,
    seconds: Sequence[float],
    nbytes: Sequence[int],
    target: int,
    limit: int,
    sent: Sequence[int] = (),
    stages: int = 1,
) -> UnitGraph:
    """Units of about equal time, `target` of them and at most `limit`.

    Args:
      stages: how many there are, for what is pinned to some.
      seconds: by op, of one micro-batch; nested ops' own are added to their parent's item.
      nbytes: by value, on the devices of a stage together or each, as the memory limit is meant.
      sent: by value, what links carry where it goes to another stage; `nbytes` if ().

    Raises:
      RhinoError: what is pinned cannot be on its stages.
    """
    graph = step.graph
    maker = {v: i for i in phases.forward for v in graph.ops[i].results}
    edges: dict[int, dict[int, None]] = {}
    for i in phases.forward:
        for v in step.reads[i]:
            if v in maker:
                edges.setdefault(maker[v], {})[i] = None
    took = {i: sum(seconds[i : max(i + 1, graph.ops[i].region_end)]) for i in phases.forward}
    reading = {i: list(found) for i, found in edges.items()}
    pinned = item_ranges(step, phases, reading, stages)
    groups = coarsen(phases.forward, reading, took, target, limit, pinned)
    unit_of = {i: u for u, group in enumerate(groups) for i in group}
    readers = Readers(step, phases, unit_of)
    unit_of.update(anchor(step, phases, unit_of, readers))
    found = _Translation(step, phases, readers, unit_of, nbytes, sent or nbytes).run(seconds, len(groups))
    if pinned is None:
        return found
    ranges = [pinned[group[0]] for group in groups]
    check_owners(step, found.owner, ranges)
    return replace(found, pins=tuple(first if first == last else -1 for first, last in ranges))


def gradient_parts(step: LoopForm, phases: Phases, unit_of: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """By carry, the values whose sum it accumulates, where they are of different units: tied parameters."""
    graph = step.graph
    maker = {v: i for i in phases.backward for v in graph.ops[i].results}
    uses: dict[int, int] = {}
    for i in step.body:
        for v in step.reads[i]:
            uses[v] = uses.get(v, 0) + 1
    found = {}
    for k in sorted({k for sums in step.gradients.values() for k in sums}):
        carry = step.carries[k]
        last = maker.get(carry.yielded)
        if last is None or graph.ops[last].name != _SUM or carry.inside not in step.reads[last]:
            continue
        parts: list[int] = []
        pending = [v for v in graph.ops[last].operands if v != carry.inside]
        while pending:
            v = pending.pop(0)
            made_by = maker.get(v)
            if made_by is not None and graph.ops[made_by].name == _SUM and uses[v] == 1:
                pending += graph.ops[made_by].operands
            else:
                parts.append(v)
        if len({unit_of[maker[v]] for v in parts if v in maker}) > 1 and all(v in maker for v in parts):
            found[k] = tuple(parts)
    return found


class _Translation:
    """Bytes and edges of the units."""

    def __init__(
        self,
        step: LoopForm,
        phases: Phases,
        readers: Readers,
        unit_of: dict[int, int],
        nbytes: Sequence[int],
        sent: Sequence[int],
    ) -> None:
        self.step, self.phases, self.readers, self.unit_of = step, phases, readers, unit_of
        self.nbytes, self.sent = nbytes, sent
        self.nets: list[Net] = []
        self.precedences: dict[tuple[int, int], None] = {}

    def run(self, seconds: Sequence[float], count: int) -> UnitGraph:
        step, phases, unit_of = self.step, self.phases, self.unit_of
        forward_s, backward_s = [0.0] * count, [0.0] * count
        for items, times in ((phases.forward, forward_s), (phases.backward, backward_s)):
            for i in items:
                times[unit_of[i]] += sum(seconds[i : max(i + 1, step.graph.ops[i].region_end)])
        sums = gradient_parts(step, phases, unit_of)
        summed = {v for parts in sums.values() for v in parts}
        active = self._values(count, summed)
        owner, static = self._parameters(count, sums)
        units = tuple(StageUnit(f, b, s, a) for f, b, s, a in zip(forward_s, backward_s, static, active, strict=True))
        return UnitGraph(units, tuple(sorted(self.precedences)), tuple(self.nets), (), unit_of, sums, owner)

    def _net(self, root: int, units: Sequence[int], nbytes: int) -> None:
        """Readers after the root and before it travel in different phases."""
        for kind, found in (
            ("forward", tuple(u for u in units if u > root)),
            ("backward", tuple(u for u in units if u < root)),
        ):
            if found:
                self.nets.append(Net(root, found, nbytes, kind))
                for u in found:
                    self.precedences[min(root, u), max(root, u)] = None

    def _values(self, count: int, summed: set[int]) -> list[int]:
        """Nets of what the body's ops make; returns the bytes each unit keeps from forward to backward."""
        step, phases, unit_of = self.step, self.phases, self.unit_of
        backward = frozenset(phases.backward)
        users: dict[int, list[int]] = {}
        for i in (*phases.forward, *phases.backward):
            for v in step.reads[i]:
                users.setdefault(v, []).append(i)
        active = [0] * count
        for i in (*phases.forward, *phases.backward):
            root = unit_of[i]
            for v in step.graph.ops[i].results:
                readers = users.get(v, [])
                if v not in summed:
                    self._net(root, sorted({unit_of[r] for r in readers}), self.sent[v])
                if i not in backward:
                    keeping = [unit_of[r] for r in readers if r in backward]
                    if keeping:
                        active[max(keeping)] += self.nbytes[v]
        return active

    def _parameters(self, count: int, sums: Mapping[int, tuple[int, ...]]) -> tuple[dict[int, int], list[int]]:
        """Owners, nets of parameters with several readers, and the bytes that stay at each unit for the whole step."""
        step, graph, unit_of, nbytes = self.step, self.step.graph, self.unit_of, self.nbytes
        static = [0] * count
        maker = {v: i for i in self.phases.backward for v in graph.ops[i].results}
        owner = owners(step, self.phases, self.readers, unit_of)
        for k, carries in step.gradients.items():
            if step.carries[carries[0]].yielded in maker:
                static[owner[k]] += sum(nbytes[step.carries[c].result] for c in carries)
        for k, u in owner.items():
            static[u] += nbytes[graph.arguments[k].value]
        for state, k in step.states.items():
            if k in owner:
                static[owner[k]] += nbytes[graph.arguments[state].value]
        reading: dict[int, dict[int, None]] = {}
        for i in (*self.phases.forward, *self.phases.backward):
            for v in step.reads[i]:
                if v in self.readers.captured:
                    reading.setdefault(v, {})[unit_of[i]] = None
        for v, units in reading.items():
            homes = [owner[k] for k in bits(self.readers.captured[v]) if k in owner]
            root = homes[0] if homes else min(units)
            if graph.values[v].producer >= 0:
                static[root] += nbytes[v]
            self._share(root, units, nbytes[v])
        for c, parts in sums.items():
            root = unit_of[maker[step.carries[c].yielded]]
            self._share(root, dict.fromkeys(unit_of[maker[v]] for v in parts), nbytes[step.carries[c].result])
        return owner, static

    def _share(self, root: int, units: Mapping[int, None], size: int) -> None:
        others = tuple(sorted(u for u in units if u != root))
        if others:
            self.nets.append(Net(root, others, size, "shared"))

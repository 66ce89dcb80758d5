"""Stages of what is not in the loop: ops before it go with the parameter they prepare, ops after it with the gradient.

Owns these choices and the trees of scalars that combine all stages (global norms, finite checks): each stage adds up
its own part, so that one scalar leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rhino.pipeline.cut.step import LoopForm
from rhino.program.data import STATE
from rhino.program.operations import COMBINERS


@dataclass(frozen=True, slots=True)
class Combination:
    """Scalars of several stages combined by one kind of op: `items` make `root` of `leaves`, whose stages are given.

    The result is on stage `home`; to regroup, each stage combines its own leaves and sends one scalar there.
    """

    root: int
    items: tuple[int, ...]
    leaves: tuple[int, ...]
    stages: tuple[int, ...]
    home: int


def place_rest(
    step: LoopForm, stage_of: dict[int, int], owners: Mapping[int, int], nbytes: Sequence[int]
) -> tuple[dict[int, int], tuple[Combination, ...]]:
    """Gives `stage_of` (by item) the staged items outside the loop; returns stages of arguments, and combinations.

    What is pinned is where it is pinned to.

    Args:
      owners: stages of parameters by argument index.
    """
    return _Placement(step, stage_of, owners, nbytes).run()


class _Placement:
    def __init__(
        self, step: LoopForm, stage_of: dict[int, int], owners: Mapping[int, int], nbytes: Sequence[int]
    ) -> None:
        self.step, self.graph, self.stage_of, self.nbytes = step, step.graph, stage_of, nbytes
        self.items = (*step.staged(step.before), *step.staged(step.after))
        self.at: dict[int, int] = {}
        for i in step.staged(step.body):
            self.at.update(dict.fromkeys(self.graph.ops[i].results, stage_of[i]))
        for carry in step.carries:
            if carry.yielded in self.at:
                self.at[carry.result] = self.at[carry.yielded]
        self.arguments = dict(owners)
        for state, parameter in step.states.items():
            if parameter in owners:
                self.arguments[state] = owners[parameter]
        self.arguments.update(step.pins)
        # What takes the place of state is made where that is.
        pinned = self.graph.stages
        self.fixed = {i: pinned[v] for i in self.items for v in self.graph.ops[i].results if v in pinned}
        for k, s in self.arguments.items():
            self.at[self.graph.arguments[k].value] = s
        self.users: dict[int, list[int]] = {}
        for i in (*self.items, *step.staged(step.body)):
            for v in step.reads[i]:
                self.users.setdefault(v, []).append(i)
        self.given = dict(self.at)

    def run(self) -> tuple[dict[int, int], tuple[Combination, ...]]:
        """Two rounds: the second knows where what combines all stages is."""
        self._settle(self.fixed)
        combinations = self._combinations()
        fixed = {i: c.home for c in combinations for i in c.items} | self.fixed
        self.at = dict(self.given)
        for i in self.items:
            self.stage_of.pop(i, None)
        self._settle(fixed)
        for k, argument in enumerate(self.graph.arguments):
            if argument.role in STATE and k not in self.arguments:
                self.arguments[k] = self._by_readers([argument.value], 0)
        return self.arguments, combinations

    def _settle(self, fixed: Mapping[int, int]) -> None:
        for i in self.items:
            self._put(i, fixed[i] if i in fixed else self._by_operands(i))
        for i in reversed(self.items):
            if i not in self.stage_of:
                self._put(i, self._by_readers(self.graph.ops[i].results, -1))
        for i in self.items:
            if i not in self.stage_of:
                self._put(i, max(0, self._by_operands(i)))

    def _put(self, item: int, stage: int) -> None:
        if stage >= 0:
            self.stage_of[item] = stage
            self.at.update(dict.fromkeys(self.graph.ops[item].results, stage))

    def _by_operands(self, item: int) -> int:
        """Where most bytes of what it reads are; -1 if that is nowhere yet."""
        weights: dict[int, int] = {}
        for v in self.step.reads[item]:
            if v in self.at:
                weights[self.at[v]] = weights.get(self.at[v], 0) + self.nbytes[v]
        return max(weights, key=lambda s: (weights[s], -s), default=-1)

    def _by_readers(self, values: Sequence[int], default: int) -> int:
        weights: dict[int, int] = {}
        for v in values:
            for r in self.users.get(v, ()):
                if r in self.stage_of:
                    s = self.stage_of[r]
                    weights[s] = weights.get(s, 0) + self.nbytes[v]
        return max(weights, key=lambda s: (weights[s], -s), default=default)

    def _combinations(self) -> tuple[Combination, ...]:
        step, graph = self.step, self.graph
        after = list(step.staged(step.after))
        scalar = {
            i
            for i in after
            if graph.ops[i].name in COMBINERS
            and len(graph.ops[i].operands) == 2
            and all(not graph.values[v].shape for v in (*graph.ops[i].operands, *graph.ops[i].results))
        }
        # What others or the caller read is a root, as is what another kind of op reads.
        inner = set()
        for i in scalar:
            result = graph.ops[i].results[0]
            readers = self.users.get(result, [])
            alone = len(readers) == 1 and readers[0] in scalar and graph.ops[readers[0]].name == graph.ops[i].name
            if alone and graph.ops[readers[0]].operands.count(result) == 1 and result not in graph.outputs:
                inner.add(i)
        made = {graph.ops[i].results[0]: i for i in inner}
        found = []
        for root in after:
            if root not in scalar or root in inner:
                continue
            items, leaves, pending = [root], [], list(graph.ops[root].operands)
            while pending:
                v = pending.pop(0)
                if v in made:
                    items.append(made[v])
                    pending += graph.ops[made[v]].operands
                else:
                    leaves.append(v)
            # Constants and the like are cloned: they go with any stage.
            placed = [self.at[v] for v in leaves if v in self.at]
            if len(set(placed)) > 1:
                home = self.fixed.get(root, max(sorted(set(placed)), key=placed.count))
                stages = tuple(self.at.get(v, home) for v in leaves)
                found.append(Combination(root, tuple(sorted(items)), tuple(leaves), stages, home))
        return tuple(found)

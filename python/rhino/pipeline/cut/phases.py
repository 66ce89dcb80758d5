"""Which ops of the micro-batch loop are forward and which backward, from dataflow alone: no names, no locations.

Owns the argument. Write P(v) for the parameters a value depends on and G(v) for those whose gradients it reaches.
A forward value feeds the gradient of every parameter it was made from, through the loss; a cotangent below layer k
depends on layer k and no longer feeds its gradient. So an op with P(v) not within G(v) is backward. Where the loss (or
what else depends on all parameters) leaves the loop, its ancestors are the forward ops, and nothing has to be guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rhino.pipeline.cut.step import LoopForm, bits
from rhino.program.data import STATE
from rhino.program.fusible import is_fusible

_BARRIER = "stablehlo.optimization_barrier"


@dataclass(frozen=True, slots=True)
class Phases:
    """`forward` and `backward` are the staged items of the body in program order; `reaches` is G of each (a bit set of
    parameters, by their index among the arguments).
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    reaches: dict[int, int]


def find_phases(step: LoopForm) -> Phases:
    """The phases of the body's staged items. Linear in ops; without gradients everything is forward."""
    flow = _Flow(step)
    forward = flow.metric_ancestors() if step.gradients else set(flow.items)
    if step.gradients:
        if not flow.covered(forward):
            known = frozenset(forward)
            forward |= flow.unbroken()
            _sink(step, forward, known)
        _finish_terminals(step, flow, forward)
        _hoist(step, forward)
    backward = tuple(i for i in flow.items if i not in forward)
    return Phases(tuple(i for i in flow.items if i in forward), backward, flow.reaches)


class _Flow:
    """Which parameters items depend on, and whose gradients they reach: bitsets over the trainable parameters."""

    def __init__(self, step: LoopForm) -> None:
        self.step = step
        self.items = list(step.staged(step.body))
        self.trainable = sum(1 << k for k in step.gradients)
        self.depends = self._down()
        self.reaches = self._up()

    def _down(self) -> dict[int, int]:
        """P of values: outside the loop too, where parameters are cast once."""
        step, graph = self.step, self.step.graph
        found = {graph.arguments[k].value: 1 << k for k in step.gradients}
        for i in (*step.staged(step.before), *self.items):
            mask = 0
            for v in step.reads[i]:
                mask |= found.get(v, 0)
            if mask:
                for v in graph.ops[i].results:
                    found[v] = mask
        return found

    def _up(self) -> dict[int, int]:
        """G of items."""
        step, graph = self.step, self.step.graph
        at_value: dict[int, int] = {}
        for k, sums in step.gradients.items():
            for s in sums:
                v = step.carries[s].yielded
                at_value[v] = at_value.get(v, 0) | 1 << k
        found: dict[int, int] = {}
        for i in reversed(self.items):
            mask = 0
            for v in graph.ops[i].results:
                mask |= at_value.get(v, 0)
            found[i] = mask
            if mask:
                for v in step.reads[i]:
                    at_value[v] = at_value.get(v, 0) | mask
        return found

    def of(self, item: int) -> int:
        """P of an item."""
        results = self.step.graph.ops[item].results
        return self.depends.get(results[0], 0) if results else 0

    def metric_ancestors(self) -> set[int]:
        """What leads to a carried value that is no gradient and does not depend on one: the loss and other metrics."""
        step, graph = self.step, self.step.graph
        gradients = {s for sums in step.gradients.values() for s in sums}
        inside = {step.carries[s].inside for s in gradients}
        producers = {v: i for i in self.items for v in graph.ops[i].results}
        tainted: set[int] = set()
        for s in sorted(gradients):
            last = step.carries[s].yielded
            tainted.add(last)
            if last in producers:
                tainted.update(v for v in step.reads[producers[last]] if v not in inside and v in producers)
        for i in self.items:
            if not tainted.isdisjoint(step.reads[i]):
                tainted.update(graph.ops[i].results)
        known = gradients | self._updating()
        wanted = {c.yielded for k, c in enumerate(step.carries) if k not in known and c.yielded not in tainted}
        return self._ancestors(wanted)

    def _updating(self) -> set[int]:
        """The carries that meet parameters or the optimizer's state after the loop: no metrics, whatever they are."""
        step, graph = self.step, self.step.graph
        sums = {c.result: 1 << k for k, c in enumerate(step.carries)}
        state = {a.value for a in graph.arguments if a.role in STATE and graph.values[a.value].shape}
        found = 0
        for i in step.staged(step.after):
            mask = 0
            for v in step.reads[i]:
                mask |= sums.get(v, 0)
            if not state.isdisjoint(step.reads[i]):
                found |= mask
                state.update(graph.ops[i].results)
            if mask:
                sums.update(dict.fromkeys(graph.ops[i].results, mask))
        return set(bits(found))

    def _ancestors(self, wanted: set[int]) -> set[int]:
        found = set()
        for i in reversed(self.items):
            if not wanted.isdisjoint(self.step.graph.ops[i].results):
                found.add(i)
                wanted.update(self.step.reads[i])
        return found

    def covered(self, forward: set[int]) -> bool:
        """Whether metrics depend on all trainable parameters: then the loss is among them, or as good as."""
        mask = 0
        for i in forward:
            mask |= self.of(i)
        return mask == self.trainable

    def unbroken(self) -> set[int]:
        """Items that reach the gradients of all they depend on, without what a barrier computes again."""
        wider: set[int] = set()
        again: set[int] = set()
        graph, step = self.step.graph, self.step
        found = set()
        for i in self.items:
            p, g = self.of(i), self.reaches[i]
            if g and not p & ~g:
                found.add(i)
                if p != g:
                    wider.update(graph.ops[i].results)
        main = self._ancestors(wider)
        for i in self.items:
            if i in found and i not in main:
                repeats = graph.ops[i].name == _BARRIER or not again.isdisjoint(step.reads[i])
                if repeats:
                    again.update(graph.ops[i].results)
                    found.discard(i)
        return found


def _finish_terminals(step: LoopForm, flow: _Flow, forward: set[int]) -> None:
    """Items that reach no gradient follow what they read."""
    made = {v: i for i in flow.items for v in step.graph.ops[i].results}
    for i in flow.items:
        if i not in forward and not flow.reaches[i]:
            producers = {made[v] for v in step.reads[i] if v in made}
            if producers and producers <= forward:
                forward.add(i)


def _readers(step: LoopForm, items: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for i in items:
        for v in step.reads[i]:
            found.setdefault(v, []).append(i)
    return found


def _sink(step: LoopForm, forward: set[int], kept: frozenset[int]) -> None:
    """Cheap values that only the backward pass reads are made there, unless what they are made of is larger."""
    graph = step.graph
    made = {v for i in step.staged(step.body) for v in graph.ops[i].results}
    readers = _readers(step, step.staged(step.body))
    yielded = {c.yielded for c in step.carries}
    for i in sorted(forward - kept, reverse=True):
        op = graph.ops[i]
        after = [r for v in op.results for r in readers.get(v, [])]
        if not is_fusible(op) or not after or not yielded.isdisjoint(op.results):
            continue
        if any(r in forward for r in after):
            continue
        new = [v for v in step.reads[i] if v in made and all(r in forward for r in readers[v])]
        if sum(graph.values[v].nbytes for v in new) <= sum(graph.values[v].nbytes for v in op.results):
            forward.discard(i)


def _hoist(step: LoopForm, forward: set[int]) -> None:
    """Cheap backward values made of forward ones alone are made there if that leaves less to keep: masks of ReLUs."""
    graph = step.graph
    made = {v: i for i in step.staged(step.body) for v in graph.ops[i].results}
    readers = _readers(step, step.staged(step.body))
    for i in step.staged(step.body):
        op = graph.ops[i]
        given = [v for v in step.reads[i] if v in made]
        if i in forward or not is_fusible(op) or not given or any(made[v] not in forward for v in given):
            continue
        spared = [v for v in given if all(r == i or r in forward for r in readers[v])]
        saved = sum(graph.values[v].nbytes for v in spared)
        if saved > sum(graph.values[v].nbytes for v in op.results):
            forward.add(i)

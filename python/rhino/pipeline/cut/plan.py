"""The stages of a whole step: every op's stage and phase, and what travels between stages.

Owns the order of the decisions: phases, units, the cut, the rest. Knows neither MLIR nor how a schedule is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhino.errors import NotPipelined
from rhino.pipeline.cut.cuts import all_ideals
from rhino.pipeline.cut.phases import Phases, find_phases
from rhino.pipeline.cut.problem import StageOptions, StageProblem, StageSolution
from rhino.pipeline.cut.rest import Combination, place_rest
from rhino.pipeline.cut.solve import plan_stages
from rhino.pipeline.cut.step import LoopForm, read_step
from rhino.pipeline.cut.units import UnitGraph, build_units
from rhino.program.data import Graph

# Units per stage, the finest first that leaves all cuts to be tried; the last is taken in any case.
_GRAINS = (16, 10, 6)
_MOST_UNITS = 400
_DEFAULT = StageOptions()


@dataclass(frozen=True, slots=True)
class StageMachine:
    """What stages run on; fields as in `StageProblem`. `microbatches` 0 means what the loop says."""

    stages: int
    microbatches: int = 0
    speeds: tuple[float, ...] = ()
    in_flight: tuple[int, ...] = ()
    memory_limits: tuple[int, ...] = ()
    byte_s: tuple[tuple[float, ...], ...] = ()
    latency_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """A value sent from one stage to another: per micro-batch in forward and backward, once in prepare and update."""

    value: int
    src: int
    dst: int
    phase: str


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Where everything is.

    Attributes:
      stage_of_op, phase_of_op: by op; -1 and "" for what is cloned, for the loop and its condition. Ops of other
        regions are where their parent is.
      stage_of_argument: by argument; -1 for the batch and scalars, which are read where they are needed.
      sums: by carry of the loop, parts of a gradient that stages accumulate on their own and send once (transfers of
        phase "update").
      combinations: scalars that all stages contribute to, to be regrouped by stage.
    """

    stages: int
    stage_of_op: tuple[int, ...]
    phase_of_op: tuple[str, ...]
    stage_of_argument: tuple[int, ...]
    transfers: tuple[StageTransfer, ...]
    sums: dict[int, tuple[int, ...]]
    combinations: tuple[Combination, ...]
    units: int
    solution: StageSolution


@dataclass(frozen=True)
class PreparedStep:
    """A step with its phases: what all plans of one graph share."""

    step: LoopForm
    phases: Phases


def prepare_step(graph: Graph) -> PreparedStep:
    """Reads a graph in loop form. Raises RhinoError when it is not."""
    step = read_step(graph)
    return PreparedStep(step, find_phases(step))


def plan_step(
    graph: Graph | PreparedStep,
    seconds: Sequence[float],
    machine: StageMachine,
    options: StageOptions = _DEFAULT,
    nbytes: Sequence[int] | None = None,
    sent: Sequence[int] = (),
) -> StagePlan:
    """The stages of a step in loop form.

    Args:
      seconds: by op, of all its executions in a step, as `rhino.machine.roofline.op_seconds` gives them.
      nbytes: by value; of the whole tensors if None. Memory limits and links are meant for the same bytes.
      sent: by value, what links carry of it in each micro-batch; `nbytes` if ().

    Raises:
      RhinoError: the graph has no micro-batch loop or no roles, fewer units than stages, pins that contradict each
        other, or nothing fits in memory.
    """
    ready = graph if isinstance(graph, PreparedStep) else prepare_step(graph)
    step = ready.step
    trips = step.graph.microbatches
    given = [s / trips if step.loop < i < step.graph.ops[step.loop].region_end else s for i, s in enumerate(seconds)]
    sizes = nbytes if nbytes is not None else [v.nbytes for v in step.graph.values]
    units, problem = stage_problem(ready, given, sizes, machine, options, sent)
    solution = plan_stages(problem, options)
    return _Report(step, ready.phases, units, solution, sizes).run(problem)


def stage_problem(
    ready: PreparedStep,
    seconds: Sequence[float],
    nbytes: Sequence[int],
    machine: StageMachine,
    options: StageOptions = _DEFAULT,
    sent: Sequence[int] = (),
) -> tuple[UnitGraph, StageProblem]:
    """The units of a step and the problem of cutting them; `seconds` of ops in the loop are of one micro-batch."""
    units, problem = None, None
    for grain in _GRAINS:
        target = max(grain * machine.stages, 48 if grain == _GRAINS[0] else 2 * machine.stages)
        units = build_units(
            ready.step, ready.phases, seconds, nbytes, min(target, _MOST_UNITS), _MOST_UNITS, sent, machine.stages
        )
        problem = StageProblem(
            units.units,
            units.precedences,
            units.nets,
            machine.stages,
            machine.microbatches or ready.step.graph.microbatches,
            machine.speeds,
            machine.in_flight,
            machine.memory_limits,
            machine.byte_s,
            machine.latency_s,
            units.pins,
        )
        if all_ideals(problem, options.ideals) is not None:
            break
    assert units is not None and problem is not None
    if not units.units:
        raise NotPipelined("the micro-batch loop has nothing to divide into stages", "is the step's loss used at all?")
    return units, problem


class _Report:
    """From stages of units to the plan."""

    def __init__(
        self, step: LoopForm, phases: Phases, units: UnitGraph, solution: StageSolution, nbytes: Sequence[int]
    ) -> None:
        self.step, self.phases, self.units, self.solution = step, phases, units, solution
        stage = solution.stage_of_unit
        self.stage_of = {i: stage[u] for i, u in units.unit_of.items()}
        owners = {k: stage[u] for k, u in units.owner.items()}
        self.arguments, self.combinations = place_rest(step, self.stage_of, owners, nbytes)
        self.home = {step.graph.arguments[k].value: s for k, s in self.arguments.items()}
        for i, s in self.stage_of.items():
            self.home.update(dict.fromkeys(step.graph.ops[i].results, s))
        for carry in step.carries:
            if carry.yielded in self.home:
                self.home[carry.result] = self.home[carry.yielded]
        # Parts of a sum are accumulated where they arise.
        self.sums = {
            c: parts
            for c, parts in units.sums.items()
            if len({self.home[v] for v in parts}) > 1 and self.home[step.carries[c].result] in map(self.home.get, parts)
        }

    def run(self, problem: StageProblem) -> StagePlan:
        step, graph = self.step, self.step.graph
        stage_of_op, phase_of_op = [-1] * len(graph.ops), [""] * len(graph.ops)
        for phase, items in (
            ("prepare", step.staged(step.before)),
            ("forward", iter(self.phases.forward)),
            ("backward", iter(self.phases.backward)),
            ("update", step.staged(step.after)),
        ):
            for i in items:
                s = self.stage_of[i]
                for k in range(i, max(i + 1, graph.ops[i].region_end)):
                    stage_of_op[k], phase_of_op[k] = s, phase
        return StagePlan(
            problem.stages,
            tuple(stage_of_op),
            tuple(phase_of_op),
            tuple(self.arguments.get(k, -1) for k in range(len(graph.arguments))),
            self._transfers(),
            self.sums,
            self.combinations,
            len(self.units.units),
            self.solution,
        )

    def _transfers(self) -> tuple[StageTransfer, ...]:
        step = self.step
        backward = frozenset(self.phases.backward)
        parts = {v for found in self.sums.values() for v in found}
        combined = {i for c in self.combinations for i in c.items}
        found: dict[tuple[int, int, str], int] = {}
        inside = {v for i in step.staged(step.body) for v in step.graph.ops[i].results}
        for items, outside in ((step.before, "prepare"), (step.body, ""), (step.after, "update")):
            for i in step.staged(items):
                dst = self.stage_of[i]
                for v in step.reads[i]:
                    src = self.home.get(v, dst)
                    if src == dst or i in combined or (v in parts and i in backward and self._adds(i)):
                        continue
                    loop = "backward" if dst < src else "forward"
                    phase = outside or (loop if v in inside else "prepare")
                    found.setdefault((v, dst, phase), src)
        for carry, values in self.sums.items():
            dst = self.home[step.carries[carry].result]
            for v in values:
                if self.home[v] != dst:
                    found.setdefault((v, dst, "update"), self.home[v])
        for c in self.combinations:
            for s in sorted(set(c.stages) - {c.home}):
                found.setdefault((c.leaves[c.stages.index(s)], c.home, "update"), s)
        return tuple(StageTransfer(v, src, dst, phase) for (v, dst, phase), src in found.items())

    def _adds(self, item: int) -> bool:
        return self.step.graph.ops[item].name == "stablehlo.add"

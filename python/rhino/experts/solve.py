"""Experts' proposals, completed by the search: every plan of an expert, and the one that speaks for it.

Owns that; the rules are in `rules`, the costs are those of found plans. Knows neither MLIR nor jax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rhino.errors import RhinoError
from rhino.experts.facts import ProgramFacts, read
from rhino.experts.layouts import NotApplicable, Proposal
from rhino.experts.rules import EXPERTS, Expert, find
from rhino.machine import Cluster
from rhino.program.data import Graph
from rhino.sharding import Options, Solution, plan_sharding

_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Trial:
    """One plan of an expert.

    Attributes:
      solution: None where the search found the proposal impossible.
      fits: whether it is within the memory limit; only then does it count.
      why: why it does not count; empty where it does.
    """

    expert: str
    variant: str
    proposal: Proposal
    solution: Solution | None
    fits: bool
    why: str = ""

    @property
    def step_time_s(self) -> float:
        """Predicted seconds of a step; infinite without a plan."""
        return self.solution.predicted.step_time_s if self.solution is not None else float("inf")


@dataclass(frozen=True, slots=True)
class ExpertOutcome:
    """What an expert makes of a program on a cluster. `why` says why there is no plan; empty where there is one."""

    expert: Expert
    trials: tuple[Trial, ...]
    why: str = ""
    best: Trial | None = field(default=None)


def propose(name: str, graph: Graph | ProgramFacts, cluster: Cluster) -> tuple[Proposal, ...]:
    """An expert's plans as far as its rule goes, not yet completed by the search.

    Raises:
      NotApplicable: the rule has no plan of the program on the cluster; the text says why.
      RhinoError: there is no such expert.
    """
    return tuple(find(name).rule(graph if isinstance(graph, ProgramFacts) else read(graph), cluster))


def consult(
    name: str,
    graph: Graph | ProgramFacts,
    cluster: Cluster,
    *,
    level: str = "O1",
    memory_limit: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> ExpertOutcome:
    """Every plan of one expert, and its cheapest that fits.

    Args:
      name: one of `rhino.experts.names()`.
      graph: the program, argument roles known, or its facts where several experts are asked.
      memory_limit: bytes per device; None is nine tenths of the device's memory.
      progress: told of each plan before it is searched.

    Raises:
      RhinoError: there is no such expert, or the program is laid out already.
    """
    expert = find(name)
    facts = graph if isinstance(graph, ProgramFacts) else read(graph)
    if facts.graph.pins:
        given = next(iter(facts.graph.pins.values()))[0]
        raise RhinoError(f"{given} has a sharding already", "give the expert a program without annotations")
    try:
        proposals = propose(name, facts, cluster)
    except NotApplicable as why:
        return ExpertOutcome(expert, (), str(why))
    limit = memory_limit or cluster.device.plan_bytes
    trials = []
    for proposal in proposals:
        progress(f"{expert.name}: {proposal.variant}")
        trials.append(_try(expert.name, proposal, facts, cluster, level, limit))
    fitting = [trial for trial in trials if trial.fits]
    if not fitting:
        return ExpertOutcome(expert, tuple(trials), _shortest_miss(trials))
    return ExpertOutcome(expert, tuple(trials), "", min(fitting, key=lambda trial: trial.step_time_s))


def consult_all(
    graph: Graph,
    cluster: Cluster,
    *,
    level: str = "O1",
    memory_limit: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[ExpertOutcome]:
    """`consult` for every expert."""
    facts = read(graph)
    return [
        consult(expert.name, facts, cluster, level=level, memory_limit=memory_limit, progress=progress)
        for expert in EXPERTS
    ]


def _try(expert: str, proposal: Proposal, facts: ProgramFacts, cluster: Cluster, level: str, limit: int) -> Trial:
    pins = {v: (_label(facts, v), dims) for v, dims in proposal.pins.items()}
    graph = replace(facts.graph, pins=pins)
    options = Options(
        level=level,
        mesh=tuple(size for _, size in proposal.mesh),
        axes=tuple(axis for axis, _ in proposal.mesh),
        memory_limit=limit,
    )
    held = argument_bytes(facts, proposal)
    if held <= limit:
        try:
            return Trial(expert, proposal.variant, proposal, plan_sharding(graph, cluster, options), True)
        except RhinoError as error:
            why = error.message
    else:
        why = f"arguments alone take {held / 2**30:.2f} of {limit / 2**30:.2f} GiB"
    # What it would cost with more memory is worth knowing.
    try:
        solution = plan_sharding(graph, cluster, replace(options, memory_limit=_NO_LIMIT))
    except RhinoError as error:
        return Trial(expert, proposal.variant, proposal, None, False, error.message)
    return Trial(expert, proposal.variant, proposal, solution, False, why)


def argument_bytes(facts: ProgramFacts, proposal: Proposal) -> int:
    """Bytes that a proposal's arguments take on one device."""
    sizes = dict(proposal.mesh)
    total = 0
    for leaf in facts.leaves:
        parts = 1
        for axes in proposal.pins.get(leaf.value, ()):
            for axis in axes:
                parts *= sizes[axis]
        total += leaf.nbytes // parts
    return total


def _label(facts: ProgramFacts, v: int) -> str:
    for leaf in facts.leaves:
        if leaf.value == v:
            return f"argument {leaf.name}"
    return f"activation {'x'.join(map(str, facts.graph.values[v].shape))}"


def _shortest_miss(trials: Sequence[Trial]) -> str:
    """Why none counts: the reason of the one that needs the least memory."""
    least = min(trials, key=lambda t: t.solution.predicted.memory.peak_bytes if t.solution is not None else _NO_LIMIT)
    return f"{least.variant}: {least.why}"

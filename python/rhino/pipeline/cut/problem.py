"""The stage problem: units with seconds and bytes, what travels between them, and what a choice of stages costs.

Owns the objective (docs/design/stages.md, "The cut"). Every solver here minimises `Evaluation.objective_s`, and tests
recompute it by trying everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from rhino.errors import NotPipelined, RhinoError


@dataclass(frozen=True, slots=True)
class StageUnit:
    """What is never divided: some forward ops and their backward. Seconds are of one micro-batch at speed 1.

    `static_bytes` stay for the whole step (parameters, gradients, optimizer state), `activation_bytes` from a
    micro-batch's forward to its backward.
    """

    forward_s: float
    backward_s: float = 0.0
    static_bytes: int = 0
    activation_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Net:
    """What units share: made at `root`, sent once to every other stage that has one of the `readers`.

    Nets with the same root, readers and kind travel together.

    `kind` is "forward" (readers are at the root's stage or later), "backward" (or earlier), or "shared": a parameter
    with several readers, sent once per step, of which every further stage keeps `nbytes`.
    """

    root: int
    readers: tuple[int, ...]
    nbytes: int
    kind: str = "forward"
    count: int = 1


@dataclass(frozen=True)
class StageProblem:
    """Units in an order that suits their precedences, and the machine.

    Bytes of a stage are a sum over its units, as the row of an integer program has to be; what runs besides is in
    `rhino.pipeline.program.StageMemory`.

    Attributes:
      precedences: (u, v) with stage(u) <= stage(v); u < v.
      speeds: by stage; a unit takes its seconds divided by the speed.
      in_flight: by stage, micro-batches whose activations are there at once, as the schedule has it; else 1.
      memory_limits: by stage, bytes; 0 for no limit.
      pins: by unit, the stage that it has to be on; -1 for any. () for none.
      byte_s, latency_s: between every two stages, seconds of a byte and of a message, as matrices.
    """

    units: tuple[StageUnit, ...]
    precedences: tuple[tuple[int, int], ...]
    nets: tuple[Net, ...]
    stages: int
    microbatches: int
    speeds: tuple[float, ...] = ()
    in_flight: tuple[int, ...] = ()
    memory_limits: tuple[int, ...] = ()
    byte_s: tuple[tuple[float, ...], ...] = ()
    latency_s: tuple[tuple[float, ...], ...] = ()
    pins: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n = self.stages
        if n < 1 or self.microbatches < 1:
            raise RhinoError(
                f"{n} stages and {self.microbatches} micro-batches", "give at least one stage and one micro-batch"
            )
        defaults: tuple[tuple[str, tuple[object, ...]], ...] = (
            ("speeds", (1.0,) * n),
            ("in_flight", (1,) * n),
            ("memory_limits", (0,) * n),
            ("byte_s", ((0.0,) * n,) * n),
            ("latency_s", ((0.0,) * n,) * n),
        )
        for name, default in defaults:
            if not getattr(self, name):
                object.__setattr__(self, name, default)
            if len(getattr(self, name)) != n:
                raise RhinoError(f"{name} has {len(getattr(self, name))} entries for {n} stages", "give one per stage")
        if any(u >= v for u, v in self.precedences):
            raise RhinoError("units are not in an order of their precedences", "number them topologically")
        for u, (first, last) in enumerate(self.ranges):
            if not 0 <= first <= last < n:
                raise NotPipelined(
                    f"unit {u} can be on no stage: pins leave it those from {first} to {last} of {n}",
                    "pin nothing to an earlier stage than what it follows",
                )

    @cached_property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """By unit, the first and the last stage that its pin leaves it, and those of what it follows and precedes."""
        pins = self.pins or (-1,) * len(self.units)
        return pinned_ranges(pins, sorted(self.precedences), self.stages)

    @cached_property
    def uniform(self) -> bool:
        """Whether every pair of stages has the same link, so that only the number of stages a net meets counts."""
        pairs = {
            (self.byte_s[a][b], self.latency_s[a][b]) for a in range(self.stages) for b in range(self.stages) if a != b
        }
        return len(pairs) <= 1

    def seconds(self, net: Net, a: int, b: int) -> float:
        """Sending a net's bytes from stage a to b: directly, or through all stages between; whichever is faster."""
        direct = self._hop(net, a, b)
        step = 1 if b > a else -1
        return min(direct, sum(self._hop(net, s, s + step) for s in range(a, b, step)))

    def _hop(self, net: Net, a: int, b: int) -> float:
        return net.count * self.latency_s[a][b] + net.nbytes * self.byte_s[a][b]

    @cached_property
    def merged_nets(self) -> tuple[Net, ...]:
        """The nets with those between the same units as one, and without those within one unit."""
        found: dict[tuple[int, tuple[int, ...], str], list[int]] = {}
        for net in self.nets:
            readers = tuple(sorted(set(net.readers) - {net.root}))
            if readers:
                entry = found.setdefault((net.root, readers, net.kind), [0, 0])
                entry[0] += net.nbytes
                entry[1] += net.count
        return tuple(Net(root, readers, b, kind, c) for (root, readers, kind), (b, c) in found.items())


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How to solve.

    Attributes:
      exposure: the share of a stage's incoming transfers that adds to its time for a micro-batch.
      balance: how much longer than the mean the slowest stage may take, relatively; 0 for no limit.
      ideals: cuts are found by trying all of them in order if the units have at most so many; else by integer program.
      time_limit_s: what is left of a budget for each run of the integer program's solver; at 0 none runs.
      work: how much each run branches at most, in nodes times columns.
      gap: what is proved to be so near the best, relatively, is "optimal"; twice that by integer program.
      worth: a cut that is proved to be this near the optimum is not improved by the integer program.
    """

    exposure: float = 0.0
    balance: float = 0.0
    ideals: int = 2000
    time_limit_s: float = inf
    work: int = 1_000_000
    gap: float = 1e-6
    worth: float = 1e-3


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What stages cost: `(m - 1) * slowest + sum of stages' seconds + seconds of all transfers`, once each."""

    objective_s: float
    slowest_s: float
    stage_s: tuple[float, ...]
    transfer_s: float
    memory_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageSolution:
    """Stages of the units. `bound_s` is proved below every objective; `status` is "optimal" or "limit".

    `method` says how it was found: "ideals" (every cut of the graph), "order" (every cut of one order), "integer".
    """

    status: str
    stage_of_unit: tuple[int, ...]
    evaluation: Evaluation
    bound_s: float
    method: str
    seconds: float = field(default=0.0, compare=False)

    @property
    def objective_s(self) -> float:
        return self.evaluation.objective_s

    @property
    def gap(self) -> float:
        """How far above the bound the objective may be, relatively."""
        return max(0.0, self.objective_s / self.bound_s - 1) if self.bound_s > 0 else 0.0


def pinned_ranges(pins: Sequence[int], edges: Sequence[tuple[int, int]], stages: int) -> tuple[tuple[int, int], ...]:
    """The first and the last stage of each node; the last may be before the first.

    Args:
      pins: by node, its stage, -1 for any.
      edges: (u, v) with stage(u) <= stage(v) and u < v, sorted.
    """
    first = [max(0, pin) for pin in pins]
    last = [pin if pin >= 0 else stages - 1 for pin in pins]
    for u, v in edges:
        first[v] = max(first[v], first[u])
    for u, v in reversed(edges):
        last[u] = min(last[u], last[v])
    return tuple(zip(first, last, strict=True))


def net_seconds(problem: StageProblem, net: Net, stages: Sequence[int]) -> dict[int, float]:
    """By receiving stage, the seconds of a net: each stage that reads it gets it from the cheapest that has it."""
    root = stages[net.root]
    needed = sorted({stages[u] for u in net.readers} - {root}, key=lambda t: (abs(t - root), t))
    found: dict[int, float] = {}
    for t in needed:
        holders = [root] if net.kind == "shared" else [root, *found]
        found[t] = min(problem.seconds(net, c, t) for c in holders)
    return found


def evaluate(problem: StageProblem, options: StageOptions, stages: Sequence[int]) -> Evaluation:
    """What the stages of the units cost."""
    n = problem.stages
    load, arriving, static, active = [0.0] * n, [0.0] * n, [0] * n, [0] * n
    for unit, s in zip(problem.units, stages, strict=True):
        load[s] += (unit.forward_s + unit.backward_s) / problem.speeds[s]
        static[s] += unit.static_bytes
        active[s] += unit.activation_bytes
    transfer_s = 0.0
    for net in problem.merged_nets:
        for t, seconds in net_seconds(problem, net, stages).items():
            transfer_s += seconds
            if net.kind == "shared":
                static[t] += net.nbytes
            else:
                arriving[t] += seconds
    times = tuple(a + options.exposure * b for a, b in zip(load, arriving, strict=True))
    memory = tuple(s + k * a for s, k, a in zip(static, problem.in_flight, active, strict=True))
    slowest = max(times)
    return Evaluation(
        (problem.microbatches - 1) * slowest + sum(times) + transfer_s, slowest, times, transfer_s, memory
    )


def fits(problem: StageProblem, memory: Sequence[int]) -> bool:
    """Whether bytes by stage are within the limits."""
    return all(not limit or used <= limit for used, limit in zip(memory, problem.memory_limits, strict=True))


def allowed(problem: StageProblem, options: StageOptions, evaluation: Evaluation) -> bool:
    """Whether stages are within the limits of memory and balance, but for what solvers round."""
    return fits(problem, evaluation.memory_bytes) and evaluation.slowest_s <= slowest_allowed(problem, options) * (
        1 + 1e-6
    )


def slowest_allowed(problem: StageProblem, options: StageOptions) -> float:
    """The longest a stage may take by the balance option; infinite without it."""
    if options.balance <= 0:
        return float("inf")
    total = sum(u.forward_s + u.backward_s for u in problem.units)
    return (1 + options.balance) * total / sum(problem.speeds)

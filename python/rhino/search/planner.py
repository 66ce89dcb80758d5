"""`plan_sharding`: program + cluster -> the best mesh and the layout of every value.

Owns which meshes are tried, how candidates are ranked, and the answer's shape. The interface is fixed; what is inside
may be replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod

from rhino.cluster import Cluster
from rhino.cost.collectives import CommModel, RingModel
from rhino.cost.memory import lifetimes
from rhino.cost.roofline import matmul_seconds, op_seconds
from rhino.errors import RhinoError
from rhino.graph.data import Graph
from rhino.search.cones import build_problem
from rhino.search.costs import Costs, States
from rhino.search.descent import Descent, descend, smallest, with_memory
from rhino.search.evaluate import Prediction, predict
from rhino.search.infeasible import explain
from rhino.search.pinning import pinned_states
from rhino.search.solution import Alternative, Solution
from rhino.search.symmetry import tie_repeats

AXIS_NAMES = ("x", "y", "z")
Progress = Callable[[int, int, str], None]
Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Options:
    """What to search.

    Args:
      level: "O1".
      mesh: sizes of the axes, outermost first; None tries all that suit the cluster.
      axes: names of the axes of `mesh`.
      memory_limit: bytes per device; None is the device's memory.
      parallel_dots: forbid dots computed redundantly (a convention of published tables, not of Rhino).
      comm: builds the communication model of a mesh; the cluster's rings by default.
      seconds: undivided compute seconds per op; the cluster's roofline by default.
    """

    level: str = "O1"
    mesh: tuple[int, ...] | None = None
    axes: tuple[str, ...] = ()
    memory_limit: int | None = None
    parallel_dots: bool = False
    comm: Callable[[Cluster, tuple[int, ...]], CommModel] | None = None
    seconds: tuple[float, ...] | None = None


def mesh_shapes(cluster: Cluster) -> list[tuple[int, ...]]:
    """The meshes of one or two axes worth trying: the inner axis stays within a host."""
    n = cluster.num_devices
    inner = [b for b in range(2, cluster.devices_per_host + 1) if n % b == 0 and cluster.devices_per_host % b == 0]
    return [(n,), *[(n // b, b) for b in inner if n // b > 1]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One mesh: its costs, the orders its axes are placed in, the user's pins, and the best plan on it so far."""

    costs: Costs
    orders: list[list[int]]
    pinned: dict[int, States]
    best: Descent

    @property
    def name(self) -> str:
        return "mesh " + "x".join(map(str, self.costs.sizes))


def plan_sharding(graph: Graph, cluster: Cluster, options: Options, progress: Progress | None = None) -> Solution:
    """Finds the plan with the least predicted step time within the memory limit.

    Every mesh is searched without the limit first; then, best first, with it, until no other mesh can be better.

    Args:
      graph: the program, roles known, calls inlined.
      progress: called with (done, total, label) as meshes are finished.

    Raises:
      RhinoError: no mesh suits the devices, or nothing fits the memory limit: the message names tensors and remedy.
    """
    clock = [time.perf_counter()]
    tell = progress or (lambda done, total, label: None)
    shapes = [_checked(options.mesh, cluster)] if options.mesh else mesh_shapes(cluster)
    problem = build_problem(graph)
    clock.append(time.perf_counter())
    quotient = tie_repeats(problem)
    clock.append(time.perf_counter())
    seconds = list(options.seconds) if options.seconds is not None else op_seconds(graph, cluster)
    matmuls = matmul_seconds(graph, cluster) if options.seconds is None else {}
    candidates = []
    for done, shape in enumerate(shapes):
        tell(done, 2 * len(shapes), "mesh " + "x".join(map(str, shape)))
        comm = (options.comm or RingModel)(cluster, shape)
        costs = Costs.on(problem, quotient, cluster, comm, seconds, matmuls)
        if options.comm is not None:
            costs = replace(costs, host_bytes_s=inf, sums_merge=True, widens=False)
        candidates.append(_unlimited(costs, options))
    clock.append(time.perf_counter())
    costs, states, predicted, losers = _limited(candidates, graph, cluster, options, tell)
    clock.append(time.perf_counter())
    tell(2 * len(shapes), 2 * len(shapes), "done")
    perfect_s = sum(seconds) / cluster.num_devices
    return Solution(
        mesh=tuple(zip(options.axes or AXIS_NAMES, costs.sizes, strict=False)),
        level=options.level,
        predicted=predicted,
        alternatives=tuple(sorted(losers, key=lambda a: (a.step_time_s, a.name))),
        candidates=len(shapes),
        gap=max(0.0, 1 - perfect_s / predicted.step_time_s) if predicted.step_time_s else 0.0,
        seconds=clock[-1] - clock[0],
        problem=problem,
        costs=costs,
        states=states,
        phases={name: clock[i + 1] - clock[i] for i, name in enumerate(("problem_s", "tie_s", "solve_s", "memory_s"))},
    )


def _unlimited(costs: Costs, options: Options) -> _Candidate:
    """The best plan on one mesh, whatever memory it takes: axes placed from the fastest links outwards, and back."""
    count = len(costs.sizes)
    pinned = pinned_states(costs.problem, costs.quotient, costs.sizes, options.axes or AXIS_NAMES[:count])
    orders = [list(range(count))[::-1], list(range(count))][: min(count, 2)]
    found = [descend(costs, order, pinned, parallel=options.parallel_dots) for order in orders]
    best = min((f for f in found if f is not None), key=lambda f: f.objective)
    return _Candidate(costs, orders, pinned, best)


def _limited(
    candidates: list[_Candidate], graph: Graph, cluster: Cluster, options: Options, tell: Progress
) -> tuple[Costs, tuple[States, ...], Prediction, list[Alternative]]:
    """The fastest plan within the limit, over all meshes, and why the others lost. Raises RhinoError if none fits."""
    limit = options.memory_limit or cluster.device.memory_bytes
    life = lifetimes(graph)
    ranked: list[tuple[Prediction, _Candidate]] = []
    losers: list[Alternative] = []
    failed: list[_Candidate] = []
    for done, candidate in enumerate(sorted(candidates, key=lambda c: c.best.objective)):
        tell(len(candidates) + done, 2 * len(candidates), candidate.name + ", memory")
        objective = candidate.best.objective
        # Even if everything that may overlap does, such a mesh cannot win any more.
        if ranked and 0.5 * objective > min(p.step_time_s for p, _ in ranked):
            losers.append(Alternative(candidate.name, objective, 0, "slower even without the memory limit"))
            continue
        fitted = with_memory(
            candidate.costs, candidate.orders, candidate.pinned, life, limit, candidate.best, options.parallel_dots
        )
        candidate = replace(candidate, best=fitted)
        if fitted.fits:
            ranked.append((predict(candidate.costs, fitted.states, life), candidate))
        else:
            failed.append(candidate)
            why = f"needs {_gib(fitted.peak_bytes)} of {_gib(limit)}"
            losers.append(Alternative(candidate.name, fitted.objective, fitted.peak_bytes, why))
    if not ranked:
        # Only for the message: one mesh is enough.
        c = min(failed, key=lambda c: c.best.peak_bytes)
        least = smallest(c.costs, c.orders, c.pinned, life, limit, c.best, options.parallel_dots)
        raise explain(graph, cluster, limit, c.costs, least)
    # Of equally fast meshes the one with fewer axes.
    ranked.sort(key=lambda entry: (entry[0].step_time_s, len(entry[1].costs.sizes), entry[1].costs.sizes))
    predicted, chosen = ranked[0]
    for other, c in ranked[1:]:
        slower = other.step_time_s / predicted.step_time_s - 1 if predicted.step_time_s else 0.0
        losers.append(Alternative(c.name, other.step_time_s, other.memory.peak_bytes, _slower(slower)))
    return chosen.costs, chosen.best.states, predicted, losers


def _slower(share: float) -> str:
    return f"{share:.1%} slower" if share >= 5e-4 else "as fast"


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _checked(mesh: tuple[int, ...], cluster: Cluster) -> tuple[int, ...]:
    text = "x".join(map(str, mesh))
    if not 1 <= len(mesh) <= len(AXIS_NAMES):
        raise RhinoError(f"mesh {text} has {len(mesh)} axes", f"give 1 to {len(AXIS_NAMES)}")
    if any(n < 1 for n in mesh):
        raise RhinoError(f"mesh {text} has an axis of {min(mesh)} devices", "give sizes of 1 or more")
    if prod(mesh) != cluster.num_devices:
        raise RhinoError(
            f"mesh {text} has {prod(mesh)} devices but cluster {cluster.name} has {cluster.num_devices}",
            "give sizes whose product is the number of devices",
        )
    return mesh

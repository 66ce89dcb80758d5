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


def plan_sharding(graph: Graph, cluster: Cluster, options: Options, progress: Progress | None = None) -> Solution:
    """Finds the plan with the least predicted step time within the memory limit.

    Every mesh is searched without the limit first; then, best first, with it, until no other mesh can be better.

    Args:
      graph: the program, roles known, calls inlined.
      progress: called with (done, total, label) as meshes are finished.

    Raises:
      RhinoError: no mesh suits the devices, or nothing fits the memory limit: the message names tensors and remedy.
    """
    start = time.perf_counter()
    phases: dict[str, float] = {}
    limit = options.memory_limit or cluster.device.memory_bytes
    shapes = [_checked(options.mesh, cluster)] if options.mesh else mesh_shapes(cluster)
    problem = build_problem(graph)
    phases["problem_s"] = time.perf_counter() - start
    quotient = tie_repeats(problem)
    phases["tie_s"] = time.perf_counter() - start - phases["problem_s"]
    seconds = list(options.seconds) if options.seconds is not None else op_seconds(graph, cluster)
    matmuls = matmul_seconds(graph, cluster) if options.seconds is None else {}
    life = lifetimes(graph)
    make = options.comm or RingModel

    tried: list[tuple[float, int, Costs, list[list[int]], Descent, dict[int, States]]] = []
    for i, shape in enumerate(shapes):
        if progress:
            progress(i, 2 * len(shapes), "mesh " + "x".join(map(str, shape)))
        costs = Costs.on(problem, quotient, cluster, make(cluster, shape), seconds, matmuls)
        if options.comm is not None:
            costs = replace(costs, host_bytes_s=inf, sums_merge=True, widens=False)
        pinned = pinned_states(problem, quotient, shape, options.axes or AXIS_NAMES[: len(shape)])
        orders = [list(range(len(shape)))[::-1]]
        if len(shape) > 1:
            orders.append(list(range(len(shape))))
        found = [descend(costs, order, pinned, parallel=options.parallel_dots) for order in orders]
        best = min((f for f in found if f is not None), key=lambda f: f.objective)
        tried.append((best.objective, i, costs, orders, best, pinned))
    phases["solve_s"] = time.perf_counter() - start - sum(phases.values())

    ranked: list[tuple[Prediction, Costs, Descent]] = []
    losers: list[Alternative] = []
    failed: list[tuple[Costs, list[list[int]], dict[int, States], Descent]] = []
    for done, (_, i, costs, orders, descent, pinned) in enumerate(sorted(tried, key=lambda entry: entry[:2])):
        name = "mesh " + "x".join(map(str, costs.sizes))
        if progress:
            progress(len(shapes) + done, 2 * len(shapes), name + ", memory")
        # A lower bound even if all that may overlap does: such a mesh cannot win any more.
        if ranked and 0.5 * descent.objective > min(p.step_time_s for p, _, _ in ranked):
            losers.append(Alternative(name, descent.objective, 0, "slower even without the memory limit"))
            continue
        fitted = with_memory(costs, orders, pinned, life, limit, descent, options.parallel_dots)
        if fitted.fits:
            ranked.append((predict(costs, fitted.states, life), costs, fitted))
        else:
            failed.append((costs, orders, pinned, fitted))
            why = f"needs {_gib(fitted.peak_bytes)} of {_gib(limit)}"
            losers.append(Alternative(name, fitted.objective, fitted.peak_bytes, why))
        del i
    if not ranked:
        least = [(c, smallest(c, o, p, life, limit, d, options.parallel_dots)) for c, o, p, d in failed]
        raise explain(graph, cluster, limit, least)
    # Of equally fast meshes the one with fewer axes.
    ranked.sort(key=lambda entry: (entry[0].step_time_s, len(entry[1].sizes), entry[1].sizes))
    prediction, costs, descent = ranked[0]
    for other, c, _ in ranked[1:]:
        slower = other.step_time_s / prediction.step_time_s - 1 if prediction.step_time_s else 0.0
        name = "mesh " + "x".join(map(str, c.sizes))
        losers.append(Alternative(name, other.step_time_s, other.memory.peak_bytes, _slower(slower)))
    phases["memory_s"] = time.perf_counter() - start - sum(phases.values())
    if progress:
        progress(2 * len(shapes), 2 * len(shapes), "done")
    names = options.axes or AXIS_NAMES[: len(costs.sizes)]
    return Solution(
        mesh=tuple(zip(names, costs.sizes, strict=True)),
        level=options.level,
        predicted=prediction,
        alternatives=tuple(sorted(losers, key=lambda a: (a.step_time_s, a.name))),
        candidates=len(shapes),
        gap=max(0.0, 1 - sum(seconds) / cluster.num_devices / prediction.step_time_s)
        if prediction.step_time_s
        else 0.0,
        seconds=time.perf_counter() - start,
        problem=problem,
        costs=costs,
        states=descent.states,
        phases=phases,
    )


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

"""Pipelines as one would write them by hand: Megatron-LM's equal stages, tensor parallelism in a host, replicas, 1F1B
and interleaved 1F1B.

Owns the grid and the layout that is forced on the program. What a pipeline costs, and where its stages end, is
`rhino.pipeline.search`'s, so that only the choices differ from those of its search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from rhino.errors import RhinoError
from rhino.experts.facts import read
from rhino.experts.layouts import NotApplicable
from rhino.experts.solve import propose
from rhino.machine import Cluster
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.placement import part_of
from rhino.pipeline.search.planned import plan_shape
from rhino.pipeline.search.sharded import Prepared, Sharded, lay_out, prepare
from rhino.pipeline.search.solution import PipelineCandidate, Programs

NAME = "megatron-3d"
# Of pipelines that take at most so much longer than the fastest, relatively, interleaved ones are tried.
_NEAR = 0.1


@dataclass(frozen=True, slots=True)
class PipelineTrial:
    """One pipeline of the expert: `candidate` is None where it cannot be made, `why` says why, or that it is too large.

    What does not fit is planned as if there were memory for it.
    """

    shape: Shape
    candidate: PipelineCandidate | None
    fits: bool
    why: str = ""

    @property
    def step_time_s(self) -> float:
        """Predicted seconds of a step."""
        return self.candidate.step_time_s if self.candidate is not None else float("inf")


def megatron_3d(
    programs: Programs,
    cluster: Cluster,
    *,
    parts: Sequence[int],
    stages: Sequence[int] = (),
    tensor: Sequence[int] = (),
    memory_limit: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[PipelineTrial]:
    """Every pipeline of the grid: stages x tensor x data parallel, all devices, for each number of parts of the batch.

    The fastest are then tried with twice as many stages on each group of devices, interleaved, while that is faster.

    Args:
      parts: parts the batch is cut into, all replicas together.
      stages, tensor: only these; all that divide the devices, and a host, by default.
      memory_limit: bytes per device; None is nine tenths of the device's memory.
    """
    limit = memory_limit or cluster.device.plan_bytes
    found = []
    laid_out: dict[tuple[int, int], Sharded | str] = {}
    for shape in _grid(cluster, parts, stages, tensor):
        progress(shape.name)
        prepared = programs.prepared(shape.parts)
        if prepared is None:
            continue
        key = shape.width, shape.parts
        if key not in laid_out:
            laid_out[key] = _megatron(prepared, part_of(cluster, shape.width))
        sharded = laid_out[key]
        if isinstance(sharded, str):
            found.append(PipelineTrial(shape, None, False, sharded))
        else:
            found.append(_try(programs, cluster, shape, sharded, limit))
    best = min((t.step_time_s for t in found if t.fits), default=0.0)
    for trial in [t for t in found if t.fits and t.step_time_s <= (1 + _NEAR) * best]:
        sharded = laid_out[trial.shape.width, trial.shape.parts]
        assert not isinstance(sharded, str)
        before, shape = inf, trial.shape
        while trial.fits and trial.step_time_s < before:
            before, shape = trial.step_time_s, replace(shape, chunks=2 * shape.chunks)
            progress(shape.name)
            trial = _try(programs, cluster, shape, sharded, limit)
            found.append(trial)
    return found


def cheapest(trials: Sequence[PipelineTrial]) -> PipelineTrial | None:
    """The fastest that fits; of those that do not, the one nearest to it."""
    fitting = [t for t in trials if t.fits]
    if fitting:
        return min(fitting, key=lambda t: t.step_time_s)
    return min(
        (t for t in trials if t.candidate), key=lambda t: t.candidate.peak_bytes if t.candidate else 0, default=None
    )


def _grid(cluster: Cluster, parts: Sequence[int], stages: Sequence[int], tensor: Sequence[int]) -> Iterator[Shape]:
    n, per_host = cluster.num_devices, cluster.devices_per_host
    for width in tensor or [d for d in range(1, per_host + 1) if per_host % d == 0]:
        for count in stages or range(2, n // width + 1):
            replicas = n // (width * count)
            group = replicas * width
            if replicas * width * count != n or (per_host % group and group % per_host):
                continue
            for cut in parts:
                # Fewer micro-batches than stages leave devices idle for most of a step.
                if not cut % replicas and cut // replicas >= count:
                    yield Shape((width,) * count, replicas, cut)


def _megatron(prepared: Prepared, replica: Cluster) -> Sharded | str:
    """The program with its weights split by columns and rows in turn over one replica of a stage."""
    if replica.num_devices == 1:
        found = lay_out(prepared, replica, "O1")
        assert found is not None
        return found
    try:
        (proposal,) = propose("megatron", read(prepared.graph), replica)
    except NotApplicable as why:
        return str(why)
    # The joint search names the only axis x.
    pins = {v: ("megatron", tuple(tuple("x" for _ in axes) for axes in dims)) for v, dims in proposal.pins.items()}
    try:
        found = lay_out(prepare(replace(prepared.graph, pins=pins)), replica, "O1", (replica.num_devices,))
    except RhinoError as error:
        return error.message
    assert found is not None
    return found


def _try(programs: Programs, cluster: Cluster, shape: Shape, sharded: Sharded, limit: int) -> PipelineTrial:
    try:
        schedule = "1f1b" if shape.chunks == 1 else "interleaved-1f1b"
        candidate = plan_shape(programs, cluster, shape, sharded, schedule, limit)
        if candidate is not None:
            return PipelineTrial(shape, candidate, True)
        candidate = plan_shape(programs, cluster, shape, sharded, schedule, 1 << 62)
    except RhinoError as error:
        return PipelineTrial(shape, None, False, error.message)
    why = f"needs {candidate.peak_bytes / 2**30:.1f} of {limit / 2**30:.1f} GiB" if candidate else "has no such stages"
    return PipelineTrial(shape, candidate, False, why)

"""One plan of one call: traced, planned beside what it follows, bound.

Owns the order of these steps; what they make is in `built`. The cache of such objects is in `parallelized`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
from jaxlib.mlir import ir

from rhino.api.agreed import agreed_plan, digest, read_results
from rhino.api.beside import check_stays, plan_beside
from rhino.api.binding import bind
from rhino.api.built import Built
from rhino.api.devices import local_devices, shared_job
from rhino.api.given import check_fits, given_pins
from rhino.api.pins import find_pins, make_keys_whole, pin_strided, write_pins
from rhino.api.plan import Plan
from rhino.api.signature import Signature, UserCall, leaf_key
from rhino.api.stage_pins import Pins, stage_pins, write_stage_pins
from rhino.api.trace import Trace, import_module, trace
from rhino.deadline import NEVER, Deadline
from rhino.ir.diagnostics import Diagnostic
from rhino.kernels.bodies import given
from rhino.machine import Cluster
from rhino.plan import PlanData, Tensor, is_pipeline
from rhino.plan.file import dumps
from rhino.plan.module import fingerprint, plan_module, read_plan, tell_warnings
from rhino.progress import Progress
from rhino.request import CompileRequest, PlanRequest

if TYPE_CHECKING:
    from rhino.api.parallelized import Parallelized


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What `parallelize` was given: requests, a step to follow or a plan to use instead of searching."""

    request: PlanRequest
    how: CompileRequest
    follow: Parallelized | None
    plan: Plan | None


def build(
    fn: Callable[..., Any],
    signature: Signature,
    call: UserCall,
    cluster: Cluster,
    options: StepOptions,
    follow: Built | None,
    own: bool = False,
) -> Built:
    """Trace a call and plan it, keeping the places of the state it shares with the call it follows.

    Args:
      own: whether that was a call of the same step.
    """
    job = shared_job(cluster)
    name = getattr(fn, "__name__", type(fn).__name__)
    with Progress(f"planning {name}", quiet=bool(job and job.process)) as progress:
        traced = trace(fn, signature, call, cluster.device.xla_target)

        def search() -> PlanData:
            return _plan(traced, cluster, options, follow, own, job is not None, progress)

        plan = search() if job is None else agreed_plan(job, traced, cluster, _given(options, follow), search)
    if job is not None and follow is not None and is_pipeline(follow.plan):
        check_stays(traced, plan, stage_pins(traced, follow.plan, follow.trace))
    how = options.how.on(cluster.limited(options.request.memory_limit), alone=job is None)
    if is_pipeline(plan):
        from rhino.api.pipeline import BuiltPipeline, PipelineStep, bind_pipeline, with_messages_here

        plan = with_messages_here(plan, cluster)
        keys = tuple(map(leaf_key, jax.tree.leaves((call.traced_args, call.traced_kwargs))))
        there: Any = bind_pipeline(cluster)
        made = PipelineStep.again(follow.compiled, traced) if follow and follow.plan.source is plan.source else None
        return BuiltPipeline(
            traced, Plan.of(plan, there), there, call.statics, keys, made, [None] * len(keys), job=job,
            how=how,
        )  # fmt: skip
    binding = bind(plan, traced, local_devices(cluster))
    leaves = jax.tree.leaves((call.traced_args, call.traced_kwargs))
    keys = tuple(map(leaf_key, leaves))
    return Built(
        traced, Plan.of(plan, binding), binding, call.statics, keys, None, [None] * len(keys), list(binding.flat_in),
        job, read_results(traced, binding) if job else (), how,
    )  # fmt: skip


def _given(options: StepOptions, follow: Built | None) -> dict[str, Any]:
    """What the user asked for, as plain data, for processes to compare."""
    given = options.request.options()
    given["plan"] = "" if options.plan is None else digest(dumps(options.plan))
    given |= options.how.told()
    given["follow"] = "" if follow is None else digest(dumps(follow.plan))
    return given


def _plan(
    traced: Trace,
    cluster: Cluster,
    options: StepOptions,
    follow: Built | None,
    own: bool,
    far: bool,
    progress: Progress,
) -> PlanData:
    """Plan a call. `far` is whether other processes have some of the devices."""
    request = replace(options.request, cluster=cluster)
    deadline = NEVER.sooner(request.budget)
    module = import_module(traced)
    program = fingerprint(module)
    source: PlanData | None = None
    pins: dict[int, Tensor] = {}
    if options.plan is not None and not (own and follow):
        fitting = check_fits(options.plan, traced, module, cluster, request.memory_limit)
        if fitting.program == program and fitting.source is not None:
            return fitting
        # Another program over the same arguments (a new learning rate): its values need annotations of their own.
        source, pins = fitting, given_pins(fitting)
    elif follow is not None:
        # As one program to all but jax: types that are weak or strong.
        if (follow.plan.program, follow.plan.cluster) == (program, cluster.name):
            return follow.plan
        source, pins = follow.plan, find_pins(traced, follow.plan, follow.trace)
    beside = source is not None and is_pipeline(source)
    if source is not None and not beside:
        found: list[Diagnostic] = []
        write_pins(module, source, pins, request.annotations, found.append)
        tell_warnings(found)
        mesh = "x".join(str(size) for _, size in source.mesh)
        # State that another step keeps is where that step has it: no pipeline.
        request = replace(request, mesh=mesh, stages=1, microbatches=0, schedule="", annotations="planned")
    if beside:
        assert source is not None
        origin = follow.trace if follow is not None and source is follow.plan else None
        kept = stage_pins(traced, source, origin)

        def search(asked: PlanRequest, pinned: Pins) -> PlanData:
            fresh = import_module(traced)
            write_stage_pins(fresh, pinned, traced.places)
            return _search(fresh, traced, asked, program, progress, deadline)

        own = own and options.follow is None
        return plan_beside(source, request, kept, search, traced.name, own, far and origin is not None)
    before = (lambda m: pin_strided(m, pins)) if source is not None else None
    return _search(module, traced, request, program, progress, deadline, before)


def _search(
    module: ir.Module,
    traced: Trace,
    request: PlanRequest,
    program: str,
    progress: Progress,
    deadline: Deadline,
    before: Callable[[ir.Module], None] | None = None,
) -> PlanData:
    """The plan for a request, written into the module."""
    with given(traced.kernels.bodies):
        planned = plan_module(module, request, progress, program, before, deadline)
    tell_warnings(planned.diagnostics)
    plan = planned.plan
    if is_pipeline(plan):
        return plan
    return read_plan(module) if make_keys_whole(module, traced) else plan

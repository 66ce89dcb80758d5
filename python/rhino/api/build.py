"""One plan of one call, and what is made of it: traced, planned, bound, compiled, run.

Owns the order of these steps and the fast path of a call. The cache of such objects is in `parallelized`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import jax
from jaxlib.mlir import ir

from rhino.api.agreed import agree_compiled, agreed_plan, digest, read_results
from rhino.api.beside import check_stays, plan_beside
from rhino.api.binding import Binding, bind
from rhino.api.devices import is_here, local_devices, shared_job, too_few
from rhino.api.given import check_fits, given_pins
from rhino.api.pins import find_pins, make_keys_whole, pin_strided, write_pins
from rhino.api.signature import Signature, UserCall, leaf_key
from rhino.api.stage_pins import Pins, stage_pins, write_stage_pins
from rhino.api.stored import StoredExecutable, lower_stored, store, wrap
from rhino.api.strided import StridedArray, original
from rhino.api.trace import Trace, import_module, lower, trace
from rhino.deadline import NEVER, Deadline
from rhino.dialect.context import to_bytecode
from rhino.distributed import Job
from rhino.distributed.arrays import put, replicate
from rhino.errors import RhinoError
from rhino.kernels.bodies import given
from rhino.machine import Cluster
from rhino.passes.diagnostics import Diagnostic
from rhino.plan import Plan, Tensor, is_pipeline
from rhino.plan.file import dumps
from rhino.plan.module import Request, fingerprint, plan_module, read_plan, tell_warnings
from rhino.progress import Progress

if TYPE_CHECKING:
    from rhino.api.parallelized import Parallelized


@dataclass(frozen=True, slots=True)
class Settings:
    """What `parallelize` was given, checked. `mesh` is "2x4" or empty; `memory_limit_bytes` 0 means the default.

    `stages`, `microbatches`, `schedule`, `statistics` and `annotations` are as `rhino-auto` takes them.
    """

    level: str
    memory_limit_bytes: int
    mesh: str
    follow: Parallelized | None
    plan: Plan | None
    budget_s: float = 0.0
    stages: int = 0
    microbatches: int = 0
    schedule: str = ""
    statistics: str = "batch"
    annotations: str = "keep"


@dataclass(slots=True)
class Built:
    """A planned call.

    Attributes:
      plan: bound to the call's pytrees, and to devices if they are here.
      keys: shape, dtype and weak typing of each flat argument.
      compiled: the executable, once there is one.
      job: whose processes all run it; None for this one alone.
    """

    trace: Trace
    plan: Plan
    binding: Binding
    statics: tuple[Any, ...]
    keys: tuple[Any, ...]
    compiled: Any = None
    _avals: list[Any] = field(default_factory=list)
    _shardings: list[Any] = field(default_factory=list)
    job: Job | None = None
    _read: tuple[int, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether another process shows how far things are."""
        return self.job is not None and self.job.process != 0

    @property
    def kept(self) -> tuple[int, ...]:
        """The flat arguments that are of objects and that the step only reads; see `rhino.api.objects`."""
        return self.trace.kept

    def placed(self, leaves: Sequence[Any]) -> list[Any]:
        """The flat arguments, each as the plan has it."""
        arrays = store(leaves, self.binding.layouts_in) if self.binding.is_strided else list(leaves)
        self._place(arrays)
        return wrap(arrays, self.binding.layouts_in) if self.binding.is_strided else arrays

    def accepts(self, leaves: Sequence[Any], tree: Any, statics: tuple[Any, ...]) -> bool:
        """Whether a call with these flat arguments is this one."""
        if tree != self.trace.in_tree or statics != self.statics:
            return False
        avals = self._avals
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, jax.core.Tracer):
                return False
            # A step returns arrays with the very same abstract value each time: no need to compare its parts.
            aval = getattr(leaf, "aval", None)
            if aval is None or aval is not avals[i]:
                if leaf_key(leaf) != self.keys[i]:
                    return False
                avals[i] = aval
        return True

    def prepare(self, cluster: Cluster) -> None:
        """Compile for the devices that are here. Raises RhinoError if they are not."""
        if not is_here(cluster):
            raise RhinoError(
                f"the step was planned for cluster {cluster.name}, whose {cluster.device.kind} devices are not here",
                "run it there, or parallelize with cluster=None for the devices of this process",
            )
        executable(self, cluster)

    def run(self, call: UserCall, leaves: Sequence[Any]) -> Any:
        """Place what is not placed as planned, and run."""
        if self.binding.is_strided:
            placed = store(leaves, self.binding.layouts_in)
            self._place(placed)
            return self._readable(self.compiled.run(placed))
        args, kwargs = call.traced_args, call.traced_kwargs
        placed = list(leaves)
        if self._place(placed):
            args, kwargs = jax.tree.unflatten(self.trace.in_tree, placed)
        return self._readable(self.compiled(*args, kwargs) if kwargs else self.compiled(*args))

    def _readable(self, results: Any) -> Any:
        """The results, with small ones that are no state whole in each process, which can read only what it has."""
        if not self._read:
            return results
        leaves, tree = jax.tree.flatten(results)
        for i in self._read:
            leaves[i] = replicate(leaves[i])
        return jax.tree.unflatten(tree, leaves)

    def _place(self, arrays: list[Any]) -> bool:
        """Move, in the list, those not placed as planned. Returns whether there were any."""
        placed_as = self._shardings
        moved = []
        for i, array in enumerate(arrays):
            sharding = getattr(array, "sharding", None)  # a quarter of the time that isinstance takes
            if sharding is None:
                if self.job is not None:  # jax takes values of the host only where all devices are here
                    moved.append(i)
                continue
            if array.is_deleted():  # jaxlib 0.10.2 crashes on it
                raise self._gone(i)
            if sharding is not placed_as[i] and not self._fits(array, i):
                moved.append(i)
        if moved:
            values, shardings = [original(arrays[i]) for i in moved], [self.binding.flat_in[i] for i in moved]
            if self.job is None:
                there = jax.device_put(values, shardings)
            else:
                avals = (self.trace.leaves[i].aval for i in moved)
                there = [put(*one) for one in zip(values, shardings, avals, strict=True)]
            for i, array in zip(moved, there, strict=True):
                arrays[i] = array
        return bool(moved)

    def _gone(self, i: int) -> RhinoError:
        return RhinoError(
            f"{self.trace.leaves[i].name} has been deleted: an earlier call took its buffer, as donated",
            "use the state that the call returned, or do not donate it",
        )

    def _fits(self, leaf: jax.Array | StridedArray, i: int) -> bool:
        if isinstance(leaf, StridedArray):  # this program takes whole what another one stores strided
            return False
        sharding, wanted = leaf.sharding, self.binding.flat_in[i]
        if sharding != wanted and not sharding.is_equivalent_to(wanted, leaf.ndim):
            return False
        # A step returns its arrays with the same sharding object each time: remember it, comparing is slow.
        self._shardings[i] = sharding
        return True


def build(
    fn: Callable[..., Any],
    signature: Signature,
    call: UserCall,
    cluster: Cluster,
    settings: Settings,
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

        def search() -> Plan:
            return _plan(traced, cluster, settings, follow, own, job is not None, progress)

        plan = search() if job is None else agreed_plan(job, traced, cluster, _given(settings, follow), search)
    if job is not None and follow is not None and is_pipeline(follow.plan):
        check_stays(traced, plan, stage_pins(traced, follow.plan, follow.trace))
    if is_pipeline(plan):
        from rhino.api.pipeline import BuiltPipeline, PipelineStep, bind_pipeline

        keys = tuple(map(leaf_key, jax.tree.leaves((call.traced_args, call.traced_kwargs))))
        there: Any = bind_pipeline(cluster)
        made = PipelineStep.again(follow.compiled, traced) if follow and follow.plan.source is plan.source else None
        return BuiltPipeline(traced, plan.bind(there), there, call.statics, keys, made, [None] * len(keys), job=job)
    binding = bind(plan, traced, local_devices(cluster))
    leaves = jax.tree.leaves((call.traced_args, call.traced_kwargs))
    keys = tuple(map(leaf_key, leaves))
    return Built(
        traced, plan.bind(binding), binding, call.statics, keys, None, [None] * len(keys), list(binding.flat_in),
        job, read_results(traced, binding) if job else (),
    )  # fmt: skip


def _given(settings: Settings, follow: Built | None) -> dict[str, Any]:
    """What the user asked for, as plain data, for processes to compare."""
    given = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in ("follow", "plan")}
    given["plan"] = "" if settings.plan is None else digest(dumps(settings.plan))
    given["follow"] = "" if follow is None else digest(dumps(follow.plan))
    return given


def _plan(
    traced: Trace, cluster: Cluster, settings: Settings, follow: Built | None, own: bool, far: bool, progress: Progress
) -> Plan:
    """Plan a call. `far` is whether other processes have some of the devices."""
    deadline = NEVER.sooner(settings.budget_s)
    module = import_module(traced)
    program = fingerprint(module)
    mesh, source = settings.mesh, None
    pins: dict[int, Tensor] = {}
    if settings.plan is not None and not (own and follow):
        fitting = check_fits(settings.plan, traced, module, cluster, settings.memory_limit_bytes)
        if fitting.program == program and fitting.source is not None:
            return fitting
        # Another program over the same arguments (a new learning rate): its values need annotations of their own.
        source, pins = fitting, given_pins(fitting)
    elif follow is not None:
        # As one program to all but jax: types that are weak or strong.
        if (follow.plan.program, follow.plan.cluster) == (program, cluster.name):
            return follow.plan
        source, pins = follow.plan, find_pins(traced, follow.plan, follow.trace)
    stages, microbatches, schedule = settings.stages, settings.microbatches, settings.schedule
    beside = source is not None and is_pipeline(source)
    if source is not None and not beside:
        found: list[Diagnostic] = []
        write_pins(module, source, pins, settings.annotations, found.append)
        tell_warnings(found)
        mesh = "x".join(str(size) for _, size in source.mesh)
        # State that another step keeps is where that step has it: no pipeline.
        stages, microbatches, schedule = 1, 0, ""
    request = Request(
        cluster,
        settings.level,
        mesh,
        settings.memory_limit_bytes,
        settings.budget_s,
        stages,
        microbatches,
        schedule,
        settings.statistics,
        "planned" if source is not None and not beside else settings.annotations,
    )
    if beside:
        assert source is not None
        origin = follow.trace if follow is not None and source is follow.plan else None
        kept = stage_pins(traced, source, origin)

        def search(asked: Request, pinned: Pins) -> Plan:
            fresh = import_module(traced)
            write_stage_pins(fresh, pinned, traced.places)
            return _search(fresh, traced, asked, program, progress, deadline)

        own = own and settings.follow is None
        return plan_beside(source, request, kept, search, traced.name, own, far and origin is not None)
    before = (lambda m: pin_strided(m, pins)) if source is not None else None
    return _search(module, traced, request, program, progress, deadline, before)


def _search(
    module: ir.Module,
    traced: Trace,
    request: Request,
    program: str,
    progress: Progress,
    deadline: Deadline,
    before: Callable[[ir.Module], None] | None = None,
) -> Plan:
    """The plan for a request, written into the module."""
    with given(traced.kernels.bodies):
        planned = plan_module(module, request, progress, program, before, deadline)
    tell_warnings(planned.diagnostics)
    plan = planned.plan
    if is_pipeline(plan):
        return plan
    return read_plan(module) if make_keys_whole(module, traced) else plan


def executable(built: Built, cluster: Cluster, options: Mapping[str, Any] | None = None) -> Any:
    """The executable of a planned call, compiled on first use; with XLA's options one of its own.

    Raises:
      RhinoError: the devices are of this process's kind but too few, or XLA refuses.
    """
    if built.compiled is not None and not options:
        return built.compiled
    pipeline = is_pipeline(built.plan)
    if pipeline and options:
        raise RhinoError("a pipeline is many programs: it takes no compiler options", "give stages=1, or none")
    with Progress(f"compiling {built.trace.name}", quiet=built.is_quiet) as progress:
        if pipeline:
            built.executable(cluster, progress)  # type: ignore[attr-defined]
        else:
            compiled = _compile(built, cluster, options)
            if options:
                return compiled
            built.compiled = compiled
    _agree(built)
    return built.compiled


def _agree(built: Built) -> None:
    if built.job is not None:
        agree_compiled(built.job, built.trace, built.plan)


def lowered(built: Built, cluster: Cluster) -> tuple[jax.stages.Lowered, str | None, Binding]:
    """The step lowered for the plan's devices, with its own program in the place of the plan's; and its target.

    Raises:
      RhinoError: the devices are of this process's kind but too few.
    """
    from rhino.compile.executable import target_devices

    binding, target = built.binding, None
    if binding.mesh is None:
        if is_here(cluster):
            raise too_few(cluster)
        target = cluster.device.xla_target
        binding = bind(built.plan, built.trace, target_devices(target, built.plan.devices, cluster.hosts))
    if binding.is_strided:
        return lower_stored(built.trace, binding), target, binding
    pytrees = (binding.in_shardings, binding.keyword_shardings, binding.out_shardings)
    return lower(built.trace, *pytrees), target, binding


def _compile(built: Built, cluster: Cluster, options: Mapping[str, Any] | None) -> Any:
    from rhino.compile.executable import compile_lowered

    program, target, binding = lowered(built, cluster)
    source = built.plan.source
    assert source is not None
    compiled = compile_lowered(program, _serialized(source), target=target, options=options)
    return StoredExecutable(compiled, built.trace, binding) if binding.is_strided else compiled


def _serialized(source: Any) -> str | bytes:
    if isinstance(source, str):
        return source
    return to_bytecode(source)

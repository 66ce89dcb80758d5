"""A planned call: its program, plan and binding, the fast path of running it, and its executable.

Owns what is done once a plan is there. The order of tracing, planning and binding is in `build`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax

from rhino.api.agreed import agree_compiled
from rhino.api.binding import Binding, bind
from rhino.api.devices import is_here, too_few
from rhino.api.plan import Plan
from rhino.api.signature import UserCall, leaf_key
from rhino.api.stored import StoredExecutable, lower_stored, store, wrap
from rhino.api.strided import StridedArray, original
from rhino.api.trace import Trace, lower
from rhino.dialect.context import to_bytecode
from rhino.distributed import Job
from rhino.distributed.arrays import put, replicate
from rhino.errors import RhinoError, RhinoWarning
from rhino.machine import Cluster
from rhino.plan import is_pipeline
from rhino.progress import Progress
from rhino.request import PLAIN, CompileRequest

if TYPE_CHECKING:
    pass


@dataclass(slots=True)
class Built:
    """A planned call.

    Attributes:
      plan: bound to the call's pytrees, and to devices if they are here.
      keys: shape, dtype and weak typing of each flat argument.
      compiled: the executable, once there is one.
      job: whose processes all run it; None for this one alone.
      how: what is asked of compiling.
      peak_bytes: what XLA allocates for `compiled` on each device; 0 of a pipeline, which is many programs.
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
    how: CompileRequest = PLAIN
    peak_bytes: int = 0

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
        if any(issubclass(kind, jax.core.Tracer) for kind in set(map(type, leaves))):
            return False
        # A step returns arrays with the very same abstract value each time: no need to compare its parts.
        avals = [getattr(leaf, "aval", None) for leaf in leaves]
        for i, (aval, known) in enumerate(zip(avals, self._avals, strict=True)):
            if aval is not known or aval is None:
                if leaf_key(leaves[i]) != self.keys[i]:
                    return False
                self._avals[i] = aval
        return True

    def prepare(self, cluster: Cluster) -> None:
        """Compile for the devices that are here. Raises RhinoError if they are not."""
        self.check_here(cluster)
        executable(self, cluster)

    def check_here(self, cluster: Cluster) -> None:
        """Raises RhinoError if the cluster's devices are not here."""
        if not is_here(cluster):
            raise RhinoError(
                f"the step was planned for cluster {cluster.name}, whose {cluster.device.kind} devices are not here",
                "run it there, or parallelize with cluster=None for the devices of this process",
            )

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
    from rhino.compile.devices import target_devices

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
    from rhino.compile.module import parse
    from rhino.compile.undone import say_undone

    program, target, binding = lowered(built, cluster)
    source = built.plan.source
    assert source is not None
    how = replace(built.how, options=options) if options else built.how
    text = _serialized(source)
    compiled = compile_lowered(program, text, target=target, how=how)
    if not options:
        built.peak_bytes = compiled.memory_analysis().peak_bytes
    undone = built.plan.recomputation is not None and say_undone(parse(text), compiled.hlo_text, built.plan.devices)
    if undone:
        warnings.warn(undone, RhinoWarning, stacklevel=2)
    return StoredExecutable(compiled, built.trace, binding) if binding.is_strided else compiled


def _serialized(source: Any) -> str | bytes:
    if isinstance(source, str):
        return source
    return to_bytecode(source)

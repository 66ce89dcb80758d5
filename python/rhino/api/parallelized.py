"""`rhino.parallelize`: a step written for one device, planned for a cluster, compiled and called like the step itself.

Owns the public object and its cache of plans. Tracing, binding, pinning and compiling are beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

import jax
from jax.sharding import AbstractMesh, Mesh

from rhino.api.build import StepOptions, build
from rhino.api.built import Built
from rhino.api.devices import check_same_devices
from rhino.api.fitting import fitting
from rhino.api.init import from_anywhere, make_state, place_state
from rhino.api.objects import close, has_objects, opened, over_values, plain, pure
from rhino.api.pipeline import BuiltPipeline
from rhino.api.plan import Plan
from rhino.api.signature import Signature, UserCall, check_static, leaf_key
from rhino.api.stages import BoundStep, Lowered, Traced
from rhino.api.trace import name_of, trace
from rhino.compile._jax_manual import no_mesh, without_layouts
from rhino.compile.exported import step_of
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.progress import Progress
from rhino.request import Keywords, mesh_of_devices, requests


class Parallelized:
    """A step for a cluster. Made by `parallelize`; `__wrapped__` is the step as the user wrote it.

    Plans and executables are kept per shapes, dtypes, pytree structures and static values, as `jax.jit` keeps its own.
    """

    def __init__(
        self, fn: Callable[..., Any], cluster: Cluster | None, options: StepOptions, signature: Signature, devices: Any
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._cluster = cluster
        self._devices = devices
        self._options = options
        self._signature = signature
        self._built: dict[Any, Built] = {}
        self._latest: Built | None = None
        self._running: Built | None = None
        self._updates = False  # whether it was called with objects

    def __repr__(self) -> str:
        where = "this process's devices" if self._cluster is None else f"{self._cluster.name}"
        planned = "not planned yet" if self._latest is None else self._latest.plan.shape_name
        return f"<rhino.parallelize {name_of(self._fn)}{self._signature} on {where}: {planned}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Parallelized | BoundStep:
        """As a method: the object is the step's first argument, as `jax.jit` has it."""
        return self if instance is None else BoundStep(self, instance)

    @property
    def cluster(self) -> Cluster:
        """The cluster planned for. This process's devices are looked up here, not at decoration: that starts jax."""
        if self._cluster is None:
            follow, plan = self._options.follow, self._options.plan
            if follow is not None:
                self._cluster = follow.cluster
                if self._devices is not None:
                    check_same_devices(Cluster.local(self._devices), follow.cluster)
            elif self._devices is not None:
                self._cluster = Cluster.local(self._devices)
            elif plan is not None and plan.cluster.split(":")[0] != "local":
                self._cluster = _cluster_of(plan)
            else:
                here = Cluster.local()
                some = plan is not None and plan.devices < here.num_devices
                self._cluster = Cluster.local(plan.devices) if plan is not None and some else here
        return self._cluster

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments of these shapes: arrays, `jax.ShapeDtypeStruct`, scalars. Reads and makes no array.

        Raises:
          RhinoError: nothing fits the memory limit, no mesh suits the devices, a given plan does not fit, ...
        """
        with self._opened(args, kwargs) as call:
            return self._lookup(call).plan

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Plan, and compile with XLA for the cluster, whether its devices are here or not.

        Where XLA needs more memory than a device has, the step is planned again within less, as in calls, unless it was
        given a memory limit or a plan.

        Returns:
          A `rhino.compile` Executable: `memory_analysis()`, `collectives()`, `hlo_text()`; callable like the step where
          the devices are here (keyword-only arguments as one dictionary, last).
        """
        with self._opened(args, kwargs) as call:
            built = self._fitting(call, self._lookup(call))
            return Lowered(built, self.cluster, self._caller if call.opened else None).compile()

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """As of `jax.jit`: the traced step, with its `jaxpr` and `lower()`. Makes no plan.

        Raises:
          What jax raises when the function cannot be traced.
        """
        given = self._signature.bind(args, kwargs)
        check_static(given)
        with over_values(self._fn, self._signature, given, self) as (fn, call):
            traced = trace(fn, self._signature, call, self.cluster.device.xla_target)
        return Traced(traced, lambda: self.lower(*args, **kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """As of `jax.jit`: the planned program, with `as_text()` and `compile()`.

        Raises:
          RhinoError: as `plan`.
        """
        with self._opened(args, kwargs) as call:
            return Lowered(self._lookup(call), self.cluster, self._caller if call.opened else None)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`: shapes and types of what the step returns. Makes no plan."""
        call = self._signature.bind(args, kwargs)
        check_static(call)
        return self._signature.jit(self._fn).eval_shape(*plain(call.args), **plain(call.kwargs))

    def clear_cache(self) -> None:
        """As of `jax.jit`: forget all plans and executables; the next call plans again."""
        self._built.clear()
        self._latest = self._running = None

    def init(self, init_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `init_fn` so that each device makes only its part of the state, stored as the latest plan wants it.

        The values are those `init_fn` gives on one device (with jax's default, partitionable random numbers).

        Raises:
          RhinoError: there is no plan yet, or none of its arguments looks like the result of `init_fn`.
        """
        built = self._planned("init")
        init_fn = without_layouts(init_fn, built.trace.jaxpr, args, kwargs)
        with no_mesh():
            if isinstance(built, BuiltPipeline):
                built.prepare(self.cluster)
            with Progress("making the state", quiet=built.is_quiet):
                if isinstance(built, BuiltPipeline):
                    args, kwargs = from_anywhere((args, kwargs), frozenset())
                    return built.make_state(init_fn, args, kwargs)
                mesh = built.binding.mesh
                args, kwargs = from_anywhere((args, kwargs), frozenset(mesh.devices.flat if mesh is not None else ()))
                return make_state(built, init_fn, args, kwargs)

    def place(self, state: Any) -> Any:
        """A state from elsewhere, a checkpoint say, split and stored over the devices as the latest plan wants it.

        The one given is not consumed. The step takes it as it is, too, but places it in each call.

        Raises:
          RhinoError: there is no plan yet, or none of its arguments looks like the state.
        """
        built = self._planned("place")
        with no_mesh():
            if isinstance(built, BuiltPipeline):
                built.prepare(self.cluster)
            with Progress("placing the state", quiet=built.is_quiet):
                return built.place_state(state) if isinstance(built, BuiltPipeline) else place_state(built, state)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on global arrays: those placed otherwise than planned are moved first, donated ones consumed.

        Raises:
          RhinoError: the cluster's devices are not here.
        """
        if jax.config.jax_disable_jit:
            return self._fn(*plain(args), **plain(kwargs))
        call = self._signature.bind(args, kwargs)
        if self._updates and has_objects((call.traced_args, call.traced_kwargs)):
            return self._update(call)
        leaves, tree = jax.tree.flatten((call.traced_args, call.traced_kwargs))
        built = self._running
        if built is None or not built.accepts(leaves, tree, call.statics):
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return self._plainly(call)
            if has_objects((call.traced_args, call.traced_kwargs)):
                return self._update(call)
            built = self._ready(call)
        if built.job is not None:
            built.job.link.start_step()
        with no_mesh():
            return built.run(call, leaves)

    def _plainly(self, call: UserCall) -> Any:
        """Inside another transformation the step is just a function."""
        return self._fn(*plain(call.args), **plain(call.kwargs))

    def _update(self, given: UserCall) -> Any:
        """A call over objects, which it updates."""
        with opened(given, self) as call:
            leaves, tree = jax.tree.flatten((call.traced_args, call.traced_kwargs))
            built = self._running
            if built is None or not built.accepts(leaves, tree, call.statics):
                built = None if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) else self._ready(call)
            if built is not None:
                self._updates = True
                if built.job is not None:
                    built.job.link.start_step()
                if built.kept:
                    # What the step only reads stays where it was put for it.
                    with no_mesh():
                        leaves = built.placed(leaves)
                    args, kwargs = jax.tree.unflatten(tree, leaves)
                    call = replace(call, traced_args=args, traced_kwargs=kwargs)
                with no_mesh():
                    results = built.run(call, leaves)
                return close(results, leaves, self)
        return self._plainly(given)

    def _ready(self, call: UserCall) -> Built:
        """The planned and compiled call."""
        built = self._lookup(call, follow=self._running)
        with no_mesh():
            built.check_here(self.cluster)
            built = self._fitting(call, built, self._running)
        self._running = built
        return built

    def _fitting(self, call: UserCall, built: Built, running: Built | None = None) -> Built:
        """A planned call compiled, and planned again where it has no room, unless the user or a state said how."""
        free = not (self._options.request.memory_limit or self._options.plan or self._options.follow or running)

        def again(limit: int) -> Built:
            request = replace(self._options.request, memory_limit=limit)
            return self._build(call, replace(self._options, request=request), None)

        found = fitting(built, self.cluster, again if free else None)
        if found is not built:
            self._built = {key: found if kept is built else kept for key, kept in self._built.items()}
            self._latest = found
        return found

    @contextmanager
    def _opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[UserCall]:
        """The call in its normal form, with pytrees for its objects."""
        with over_values(self._fn, self._signature, self._signature.bind(args, kwargs), self) as (_, call):
            yield call

    def _caller(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an executable of pytrees with objects, and update them."""
        with self._opened(args, kwargs) as call:
            given = (*call.traced_args, call.traced_kwargs) if call.traced_kwargs else call.traced_args
            return close(run(*given), jax.tree.leaves((call.traced_args, call.traced_kwargs)), self)

    def _planned(self, what: str) -> Built:
        if self._latest is None:
            raise RhinoError(
                f"{what} needs a plan, and the step has none yet",
                "call step.plan(jax.eval_shape(init_fn, ...), batch) first",
            )
        if self._latest.binding.mesh is None:
            raise RhinoError(f"cluster {self.cluster.name} is not here", "for a state, plan for devices that are")
        return self._latest

    def _lookup(self, call: UserCall, follow: Built | None = None) -> Built:
        check_static(call)
        leaves, tree = jax.tree.flatten((call.traced_args, call.traced_kwargs))
        key = (tree, call.statics, tuple(map(leaf_key, leaves)))
        built = self._built.get(key)
        if built is None:
            built = self._built[key] = self._build(call, self._options, follow)
        self._latest = built
        return built

    def _build(self, call: UserCall, options: StepOptions, follow: Built | None) -> Built:
        source = follow or self._followed()
        fn = pure(self._fn, self._signature, self) if call.opened else self._fn
        return build(fn, self._signature, call, self.cluster, options, source, own=follow is not None)

    def _followed(self) -> Built | None:
        other = self._options.follow
        if other is None:
            return None
        if other._latest is None:
            raise RhinoError("follow: the step to follow has no plan yet", "plan, compile or call it first")
        return other._latest


class _Options(Keywords, total=False):
    """The keywords of `parallelize`, for type checkers."""

    cluster: Cluster | str | Mesh | Sequence[Any] | None
    devices: int | Sequence[Any] | Mesh | None
    donate_argnums: int | Sequence[int]
    donate_argnames: str | Sequence[str]
    static_argnums: int | Sequence[int]
    static_argnames: str | Sequence[str]
    follow: Parallelized | None
    plan: Plan | None


@overload
def parallelize(fn: Callable[..., Any], **options: Unpack[_Options]) -> Parallelized: ...
@overload
def parallelize(fn: None = None, **options: Unpack[_Options]) -> Callable[[Callable[..., Any]], Parallelized]: ...
def parallelize(
    fn: Callable[..., Any] | None = None,
    *,
    cluster: Cluster | str | Mesh | Sequence[Any] | None = None,
    devices: int | Sequence[Any] | Mesh | None = None,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    follow: Parallelized | None = None,
    plan: Plan | None = None,
    **options: Unpack[Keywords],
) -> Parallelized | Callable[[Callable[..., Any]], Parallelized]:
    """Distribute a step written for one device over a cluster. Also a decorator: `@rhino.parallelize(level="O1")`.

    Args:
      fn: the step: pytrees of arrays in, pytrees of arrays out, as for `jax.jit`, or an `Exported` of `jax.export`.
        Nothing in it says how to distribute.
      cluster: a `Cluster`, or what `Cluster.load` takes ("dgx-h100:4", a YAML file); by default all devices jax has,
        those of every process after `rhino.distributed.initialize`. Also what `devices` takes.
      devices: some of this process's: how many, a list like `jax.devices()[:4]`, or a `Mesh`, whose sizes are then
        those of the plan's mesh, with its axes' names; an outermost axis of as many devices as `stages` is over these.
      level: how hard to search: "O1" in seconds, "O2" more meshes and several axes at once, in a minute or two;
        "O0" does not search, it propagates the shardings that are in the step.
      donate_argnums, donate_argnames, static_argnums, static_argnames: as for `jax.jit`.
      memory_limit: bytes per device a plan may use, 40e9 or "40GiB"; nine tenths of the device's by default, and less
        where XLA needs more than was predicted.
      mesh: sizes of the mesh's axes, outermost first, (2, 4) or "2x4", or {"data": 2, "model": 4}; searched by default.
      follow: another parallelized step over the same state, whose state this one takes as that one keeps it.
      plan: a plan to use instead of searching, from `Plan.load`; errors if it is of other arguments.
      search_budget: seconds after which the best plan so far is taken; by default the search runs to its end.
      stages: pipeline stages: a number, 1 for none, "auto" for a pipeline if it is faster; by default that only where
        one program does not fit, or memory costs it much.
      microbatches, schedule: of one program micro-batches alone; searched by default.
      statistics: "micro-batch" lets each micro-batch of a pipeline normalise by sums over its own examples (BatchNorm),
        which other systems do silently: results are then not those of one device. By default such steps are refused.
      remat: "auto" has the backward pass of one program compute again what memory has no room for, and nothing else,
        whatever `jax.checkpoint` says; "keep" leaves what that says; "none" plans as if there were none, and adds none.
      offload: "auto" keeps optimizer state in the memory of the hosts where nothing fits otherwise, and as little of it
        as that takes; "none" never does.
      annotations: "keep" plans around the sharding constraints that are in the step, on the axes of its own mesh, and
        warns of those that cannot be kept; "ignore" plans as if there were none.
      overlap: True has XLA put collectives beside computing by the cluster's times, for which it compiles each program
        twice (`rhino.compile.overlap`), False leaves its plain order, which takes a little less memory. By default True
        in a job of one process. On CPUs nothing runs beside computing.

    Raises:
      RhinoError: an option is not valid.
      TypeError: there is no such option.
    """
    if follow is not None and plan is not None:
        raise RhinoError("follow= and plan= both say how to place the state", "give one of them")

    where, some = _where(cluster, devices)
    request, how = requests(options)
    if not request.mesh and isinstance(some, Mesh):
        request = replace(request, mesh=mesh_of_devices(some.shape, request.stages))

    def wrap(function: Callable[..., Any]) -> Parallelized:
        step = step_of(function)
        signature = Signature(step, static_argnums, donate_argnums, static_argnames, donate_argnames)
        return Parallelized(step, where, StepOptions(request, how, follow, plan), signature, some)

    return wrap if fn is None else wrap(fn)


def _cluster_of(plan: Plan) -> Cluster:
    """The cluster a plan names. Raises RhinoError where only a file of the user's says what it is."""
    try:
        return Cluster.load(plan.cluster)
    except RhinoError as error:
        raise RhinoError(
            f"the plan is for cluster {plan.cluster!r}, and that is no preset here", "give its file as cluster="
        ) from error


def _where(cluster: Any, devices: Any) -> tuple[Cluster | None, Any]:
    """The cluster, or the devices that say what it is once they are needed."""
    if cluster is not None and devices is not None:
        raise RhinoError("cluster= and devices= both say where to run", "give one of them")
    if isinstance(cluster, Cluster):
        return cluster, None
    if isinstance(cluster, str | Path):
        return Cluster.load(cluster), None
    some = cluster if devices is None else devices
    if isinstance(some, AbstractMesh):
        raise RhinoError("an AbstractMesh has no devices", 'give a cluster ("dgx-h100:4") and mesh=(2, 4)')
    return None, some

"""`rhino.parallelize`: a step written for one device, planned for a cluster, compiled and called like the step itself.

Owns the public object and its cache of plans. Tracing, binding, pinning and compiling are in the `api_*` modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, overload

import jax

from rhino.api_build import Built, Settings, build, executable
from rhino.api_init import make_state, place_state
from rhino.api_pipeline import BuiltPipeline
from rhino.api_signature import Call, Signature, check_static, leaf_key
from rhino.api_strided import original
from rhino.cluster import Cluster
from rhino.compile.exported import step_of
from rhino.errors import RhinoError
from rhino.plan import Plan
from rhino.plan_options import memory_bytes, mesh_text, stage_count

_LEVELS = ("O0", "O1", "O2")


class Parallelized:
    """A step for a cluster. Made by `parallelize`; `__wrapped__` is the step as the user wrote it.

    Plans and executables are kept per shapes, dtypes, pytree structures and static values, as `jax.jit` keeps its own.
    """

    def __init__(
        self, fn: Callable[..., Any], cluster: Cluster | None, settings: Settings, signature: Signature
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._cluster = cluster
        self._settings = settings
        self._signature = signature
        self._built: dict[Any, Built] = {}
        self._latest: Built | None = None
        self._running: Built | None = None

    @property
    def cluster(self) -> Cluster:
        """The cluster planned for. This process's devices are looked up here, not at decoration: that starts jax."""
        if self._cluster is None:
            follow, plan = self._settings.follow, self._settings.plan
            if follow is not None:
                self._cluster = follow.cluster
            elif plan is not None and plan.cluster.split(":")[0] != "local":
                self._cluster = Cluster.load(plan.cluster)
            else:
                self._cluster = Cluster.local()
        return self._cluster

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments of these shapes: arrays, `jax.ShapeDtypeStruct`, scalars. Reads and makes no array.

        Raises:
          RhinoError: nothing fits the memory limit, no mesh suits the devices, a given plan does not fit, ...
        """
        return self._lookup(self._signature.bind(args, kwargs)).plan

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Plan, and compile with XLA for the cluster, whether its devices are here or not.

        Returns:
          A `rhino.compile` Executable: `memory_analysis()`, `collectives()`, `hlo_text()`; callable like the step where
          the devices are here (keyword-only arguments as one dictionary, last).
        """
        return executable(self._lookup(self._signature.bind(args, kwargs)), self.cluster)

    def init(self, init_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `init_fn` so that each device makes only its part of the state, stored as the latest plan wants it.

        The values are those `init_fn` gives on one device (with jax's default, partitionable random numbers).

        Raises:
          RhinoError: there is no plan yet, or none of its arguments looks like the result of `init_fn`.
        """
        built = self._planned("init")
        if isinstance(built, BuiltPipeline):
            built.prepare(self.cluster)
            return built.make_state(init_fn, args, kwargs)
        return make_state(built, init_fn, args, kwargs)

    def place(self, state: Any) -> Any:
        """A state from elsewhere, a checkpoint say, split and stored over the devices as the latest plan wants it.

        The one given is not consumed. The step takes it as it is, too, but places it in each call.

        Raises:
          RhinoError: there is no plan yet, or none of its arguments looks like the state.
        """
        built = self._planned("place")
        if isinstance(built, BuiltPipeline):
            built.prepare(self.cluster)
            return built.place_state(state)
        return place_state(built, state)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on global arrays: those placed otherwise than planned are moved first, donated ones consumed.

        Raises:
          RhinoError: the cluster's devices are not here.
        """
        call = self._signature.bind(args, kwargs)
        leaves, tree = jax.tree.flatten((call.traced_args, call.traced_kwargs))
        built = self._running
        if built is None or not built.accepts(leaves, tree, call.statics):
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                # Inside another transformation the step is just a function.
                return self._fn(*original(args), **original(kwargs))
            built = self._lookup(call, follow=self._running)
            built.prepare(self.cluster)
            self._running = built
        if built.job is not None:
            built.job.link.start_step()
        return built.run(call, leaves)

    def _planned(self, what: str) -> Built:
        if self._latest is None:
            raise RhinoError(
                f"{what} needs a plan, and the step has none yet",
                "call step.plan(jax.eval_shape(init_fn, ...), batch) first",
            )
        if self._latest.binding.mesh is None:
            raise RhinoError(f"cluster {self.cluster.name} is not here, so it can hold no state")
        return self._latest

    def _lookup(self, call: Call, follow: Built | None = None) -> Built:
        check_static(call)
        leaves, tree = jax.tree.flatten((call.traced_args, call.traced_kwargs))
        key = (tree, call.statics, tuple(map(leaf_key, leaves)))
        built = self._built.get(key)
        if built is None:
            source = follow or self._followed()
            built = self._built[key] = build(self._fn, self._signature, call, self.cluster, self._settings, source)
        self._latest = built
        return built

    def _followed(self) -> Built | None:
        other = self._settings.follow
        if other is None:
            return None
        if other._latest is None:
            raise RhinoError("follow: the step to follow has no plan yet", "plan, compile or call it first")
        return other._latest


class _Options(TypedDict, total=False):
    """The keywords of `parallelize`, for type checkers."""

    cluster: Cluster | str | None
    level: str
    donate_argnums: int | Sequence[int]
    static_argnums: int | Sequence[int]
    memory_limit: int | float | str | None
    mesh: Sequence[int] | str | None
    follow: Parallelized | None
    plan: Plan | None
    search_budget: float | None
    stages: int | str | None
    microbatches: int | None
    schedule: str | None
    statistics: str


@overload
def parallelize(fn: Callable[..., Any], **options: Unpack[_Options]) -> Parallelized: ...
@overload
def parallelize(fn: None = None, **options: Unpack[_Options]) -> Callable[[Callable[..., Any]], Parallelized]: ...
def parallelize(
    fn: Callable[..., Any] | None = None,
    *,
    cluster: Cluster | str | None = None,
    level: str = "O1",
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    memory_limit: int | float | str | None = None,
    mesh: Sequence[int] | str | None = None,
    follow: Parallelized | None = None,
    plan: Plan | None = None,
    search_budget: float | None = None,
    stages: int | str | None = None,
    microbatches: int | None = None,
    schedule: str | None = None,
    statistics: str = "batch",
) -> Parallelized | Callable[[Callable[..., Any]], Parallelized]:
    """Distribute a step written for one device over a cluster. Also a decorator: `@rhino.parallelize(level="O1")`.

    Args:
      fn: the step: pytrees of arrays in, pytrees of arrays out, as for `jax.jit`, or an `Exported` of `jax.export`.
        Nothing in it says how to distribute.
      cluster: a `Cluster`, or what `Cluster.load` takes ("dgx-h100:4", a YAML file); by default all devices jax has,
        those of every process after `rhino.distributed.initialize`.
      level: how hard to search: "O1" in seconds, "O2" more meshes and several axes at once, in a minute or two;
        "O0" does not search, it propagates the shardings that are in the step.
      donate_argnums, static_argnums: as for `jax.jit`.
      memory_limit: bytes per device a plan may use, 40e9 or "40GiB"; nine tenths of the device's by default.
      mesh: sizes of the mesh's axes, outermost first, (2, 4) or "2x4"; searched by default.
      follow: another parallelized step over the same state, whose state this one takes as that one keeps it.
      plan: a plan to use instead of searching, from `Plan.load`; errors if it is of other arguments.
      search_budget: seconds after which the best plan so far is taken; by default the search runs to its end.
      stages: pipeline stages: a number, 1 for none, "auto" for a pipeline if it is faster; by default only if nothing
        else fits the memory.
      microbatches, schedule: of a pipeline; searched by default.
      statistics: "micro-batch" lets each micro-batch of a pipeline normalise by sums over its own examples (BatchNorm),
        which other systems do silently: results are then not those of one device. By default such steps are refused.

    Raises:
      RhinoError: an option is not valid.
    """
    if level not in _LEVELS:
        raise RhinoError(f"level {level!r} is not available; {', '.join(_LEVELS)} are")
    if search_budget is not None and not search_budget > 0:
        raise RhinoError(f"search_budget {search_budget} is not a time in seconds", "give more than 0, or None")
    if statistics not in ("batch", "micro-batch"):
        raise RhinoError(f"statistics {statistics!r} are not available; 'batch' and 'micro-batch' are")
    if follow is not None and plan is not None:
        raise RhinoError("follow= and plan= both say how to place the state", "give one of them")

    def wrap(function: Callable[..., Any]) -> Parallelized:
        where = cluster if cluster is None or isinstance(cluster, Cluster) else Cluster.load(cluster)
        settings = Settings(
            level, memory_bytes(memory_limit), mesh_text(mesh), follow, plan, search_budget or 0.0,
            stage_count(stages), microbatches or 0, schedule or "", statistics,
        )  # fmt: skip
        step = step_of(function)
        return Parallelized(step, where, settings, Signature(step, static_argnums, donate_argnums))

    return wrap if fn is None else wrap(fn)

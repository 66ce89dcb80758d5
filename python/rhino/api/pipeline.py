"""A planned call whose plan is a pipeline: its state lives on the device groups of stages, its step runs task lists.

Owns the way from the user's pytrees to the runtime's flat arguments, and back. Knows nothing of how a plan was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from rhino.api.built import Built
from rhino.api.devices import is_here, local_devices, too_few
from rhino.api.init import argument_like, made_by
from rhino.api.leaves import as_taken, as_user, is_plain
from rhino.api.objects import merge, split
from rhino.api.signature import UserCall, abstract
from rhino.api.trace import Trace, is_key
from rhino.compile.module import parse
from rhino.dialect.context import to_bytecode
from rhino.distributed.arrays import everywhere
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.plan import PlanData
from rhino.program.data import STATE
from rhino.progress import Progress


@dataclass(frozen=True, slots=True)
class PipelineBinding:
    """Stands where a plan without stages has shardings over one mesh.

    `mesh` is what says whether the cluster's devices are here: the list of them, or None.
    """

    mesh: list[Any] | None
    flat_in: tuple[Any, ...] = ()

    @property
    def is_strided(self) -> bool:
        """Never: a pipeline keeps arrays in their original shapes."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name in ("in_shardings", "keyword_shardings", "out_shardings", "partition_specs"):
            raise RhinoError(
                f"a pipeline has no {name}: its arguments are on the devices of different stages",
                "call the step that rhino.parallelize returned, or plan with stages=1",
            )
        raise AttributeError(name)


class BuiltPipeline(Built):
    """A planned call that runs as a pipeline. `compiled` is a `PipelineStep`, once there is one."""

    def executable(self, cluster: Cluster, progress: Progress) -> PipelineStep:
        """The compiled pipeline, for the cluster whether its devices are here or not; compiled on first use.

        Raises:
          RhinoError: the devices are of this process's kind but too few, or XLA refuses.
        """
        if self.compiled is None:
            from rhino.runtime import build

            devices = local_devices(cluster)
            if devices is None and is_here(cluster):
                raise too_few(cluster)
            source = self.plan.source
            assert source is not None
            target = None if devices is not None else cluster.device.xla_target
            executable = build(
                source, devices, target, how=self.how, cluster=cluster, progress=progress,
                callbacks=self.trace.callbacks,
            )  # fmt: skip
            self.compiled = PipelineStep(executable, self.trace, self._numbers())
        return self.compiled  # type: ignore[no-any-return]

    def _numbers(self) -> tuple[int, ...]:
        """The results that are numbers for the user: a loss, and not a count that is state."""
        state = {
            result
            for place, argument in zip(self.trace.places, self.plan.arguments, strict=True)
            if argument.role in STATE
            for result in place.results
        }
        avals = self.trace.jaxpr.out_avals
        return tuple(i for i, aval in enumerate(avals) if not aval.shape and not is_key(aval) and i not in state)

    def run(self, call: UserCall, leaves: Sequence[Any]) -> Any:
        """One step. Arguments that are not where the plan keeps them are moved."""
        return self.compiled.run(leaves)

    def placed(self, leaves: Sequence[Any]) -> list[Any]:
        """The flat arguments, those of objects that the step only reads on the stages that keep them."""
        found, places = list(leaves), self.compiled.executable.places
        for at in self.kept:
            found[at] = as_user(places[at].place(as_taken(found[at])), self.trace.leaves[at].aval)
        return found

    def make_state(self, init_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `init_fn` returns, each leaf on the stages that keep it; each stage makes its own leaves only.

        Of stages that are on other processes only, a leaf is a handle: an array without parts here.

        Raises:
          RhinoError: no argument of the step looks like it, or the devices are not here.
        """
        from rhino.runtime.arrays import handle

        init_fn, made = made_by(init_fn, args, kwargs)
        where, tree = argument_like(self, made, "init_fn makes")
        places = self.compiled.executable.places[where]
        groups: dict[Any, list[int]] = {}
        pieces: dict[int, dict[int, jax.Array]] = {}
        for i, place in enumerate(places):
            for k, sharding in enumerate(place.layout.shardings):
                if sharding.addressable_devices:
                    groups.setdefault(tuple(d.id for d in sharding.mesh.devices.flat), []).append(i)
                else:
                    pieces.setdefault(i, {})[k] = handle(place.layout.piece_shape(k), place.layout.aval.dtype, sharding)
        for devices, leaves in groups.items():
            chosen = list(dict.fromkeys(leaves))
            for i, piece, array in _made_on(init_fn, args, kwargs, places, chosen, devices):
                pieces.setdefault(i, {})[piece] = array
        flat = [place.joined([pieces[i][k] for k in sorted(pieces[i])]) for i, place in enumerate(places)]
        return merge(jax.tree.unflatten(tree, self._as_user(flat, where)))

    def place_state(self, state: Any) -> Any:
        """The state with each leaf on the stages that keep it; the one given stays as it is.

        Raises:
          RhinoError: as `make_state`.
        """
        state = split(state)
        where, _ = argument_like(self, jax.tree.map(abstract, state), "the state is")
        flat, tree = jax.tree.flatten(state)
        places = self.compiled.executable.places[where]
        placed = [place.place(as_taken(leaf)) for place, leaf in zip(places, flat, strict=True)]
        return merge(jax.tree.unflatten(tree, self._as_user(placed, where)))

    def _as_user(self, arrays: Sequence[Any], where: slice) -> list[Any]:
        """Arrays placed for these arguments, as the user knows them."""
        return [as_user(array, leaf.aval) for array, leaf in zip(arrays, self.trace.leaves[where], strict=True)]


def _made_on(
    init_fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    places: Sequence[Any],
    chosen: Sequence[int],
    devices: tuple[int, ...],
) -> list[tuple[int, int, jax.Array]]:
    """(leaf, piece, array) of what one group keeps. XLA drops what the other groups keep from the program."""
    wanted = [
        (i, k)
        for i in chosen
        for k, sharding in enumerate(places[i].layout.shardings)
        if tuple(d.id for d in sharding.mesh.devices.flat) == devices
    ]

    def init(*args: Any, **kwargs: Any) -> list[Any]:
        leaves = jax.tree.leaves(init_fn(*args, **kwargs))
        return [places[i].piece_of(leaves[i], k) for i, k in wanted]

    shardings = [places[i].layout.shardings[k] for i, k in wanted]
    if not shardings[0].is_fully_addressable:
        args, kwargs = everywhere((args, kwargs), shardings[0].mesh)
    arrays = jax.jit(init, out_shardings=shardings)(*args, **kwargs)
    return [(i, k, array) for (i, k), array in zip(wanted, arrays, strict=True)]


class PipelineStep:
    """A compiled pipeline, called like the step: pytrees in, pytrees out.

    Attributes:
      executable: the `rhino.runtime` PipelineExecutable, for what is not wrapped here (profile, transfers).
      numbers: results to be on the devices of one stage, whichever makes them, so that users compute with them.
    """

    def __init__(self, executable: Any, trace: Trace, numbers: tuple[int, ...]) -> None:
        self.executable = executable
        self.numbers = numbers
        self._trace = trace
        self._odd = [(i, aval) for i, aval in enumerate(trace.jaxpr.out_avals) if not is_plain(aval)]

    @classmethod
    def again(cls, other: PipelineStep | None, trace: Trace) -> PipelineStep | None:
        """What was compiled already for the same plan, for a call that is another one to jax only."""
        return cls(other.executable, trace, other.numbers) if other is not None else None

    def __repr__(self) -> str:
        return repr(self.executable)

    @property
    def target(self) -> str:
        """What it was compiled for."""
        return str(self.executable.target)

    @property
    def devices(self) -> int:
        """Number of devices of all stages."""
        return int(self.executable.devices)

    @property
    def seconds(self) -> float:
        """Wall time of compiling."""
        return float(self.executable.seconds)

    def memory_analysis(self) -> Any:
        """Bytes per device, of the group that needs most and of each: `peak_bytes`, `groups`."""
        return self.executable.memory_analysis()

    def collectives(self) -> Any:
        """Per group of devices, what one device of it sends to others of the group in a step."""
        return self.executable.collectives()

    def as_text(self) -> str:
        """The optimized programs of the fragments that this process has devices for, one after another."""
        found = self.executable.compiled.executables
        return "\n".join(f"// fragment {i}\n{exe.as_text()}" for i, exe in enumerate(found) if exe is not None)

    def cost_analysis(self) -> dict[str, float]:
        """As of `jax.stages.Compiled`, but that a pipeline has no such numbers.

        Raises:
          RhinoError: always.
        """
        raise RhinoError(
            "a pipeline is many programs, each run many times: XLA has no cost of the whole",
            "see plan.predicted, or the fragments: step.compile(...).executable.compiled.executables",
        )

    def run(self, leaves: Sequence[Any]) -> Any:
        """One step on flat arguments; the result is the user's pytree."""
        results = self.executable.run([as_taken(leaf) for leaf in leaves])
        numbers = [results[i] for i in self.numbers]
        # In a job of several processes each has the numbers of its own stages.
        if len({n.sharding for n in numbers}) > 1 and all(n.is_fully_addressable for n in numbers):
            for i, moved in zip(self.numbers, jax.device_put(numbers, numbers[0].sharding), strict=True):
                results[i] = moved
        for i, aval in self._odd:
            results[i] = as_user(results[i], aval)
        return jax.tree.unflatten(self._trace.out_tree, results)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """One step. Keyword-only arguments of the step are one dictionary, last.

        Raises:
          RhinoError: compiled for a GPU that is not here.
          TypeError: the arguments are of another pytree structure.
        """
        wanted = self._trace.in_tree
        leaves, tree = jax.tree.flatten((arguments, keywords))
        if tree != wanted and arguments and isinstance(arguments[-1], dict) and not keywords:
            leaves, tree = jax.tree.flatten((arguments[:-1], arguments[-1]))
        if tree != wanted:
            raise TypeError(f"{self._trace.name} was compiled for arguments of structure {wanted}, not {tree}")
        return self.run(leaves)


def bind_pipeline(cluster: Cluster) -> PipelineBinding:
    """The binding of a pipeline's plan to this process's devices, if they are here."""
    devices = local_devices(cluster)
    return PipelineBinding(None if devices is None else list(devices))


def with_messages_here(plan: PlanData, cluster: Cluster) -> PlanData:
    """The plan with the messages of its transfers in its module as they are sent here: the same one if they are.

    Raises:
      RhinoError: the module says of a transfer what cannot be.
    """
    from rhino.runtime.here import messages_here

    devices, source = local_devices(cluster), plan.source
    if devices is None or source is None:
        return plan
    module = parse(source if isinstance(source, str) else to_bytecode(source))
    with module.context:
        _, changed = messages_here(module, devices, cluster)
    return replace(plan, source=module) if changed else plan

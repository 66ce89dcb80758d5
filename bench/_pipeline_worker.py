"""One process of `bench.pipeline_multihost`: a stage of a model on its own host, whose fragments last as long as told.

Owns how long fragments last, and measuring fragments and transfers by themselves. Knows nothing of rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench._crew import serve

DEVICES = 2  # of a host


class Worker:
    """A model's stage, and the step under several schedules and strategies."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        import jax

        import rhino.distributed
        from bench import _stage_models
        from bench._stage_programs import build
        from rhino.pipeline.schedule import PipelineCosts, make_schedule
        from rhino.runtime.compile import compile_fragments
        from rhino.runtime.script import make_script

        jax.config.update("jax_num_cpu_devices", DEVICES)
        rhino.distributed.initialize(first["coordinator"], first["count"], first["index"])
        self._me = first["index"]
        self._model = getattr(_stage_models, first["model"])(first["microbatches"])
        self._program, modules = build(self._model, DEVICES)
        self._cluster = _cluster(first["count"], first["bytes_s"])
        self._devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        costs = PipelineCosts.uniform(self._program.stages, 1.0, 2.0)
        schedule = make_schedule("1f1b", costs, self._program.microbatches)
        donated = make_script(self._program, schedule).donated
        compiled = compile_fragments(self._program, modules, donated, "cpu", self._devices)
        seconds = {"forward": first["forward_s"], "backward": first["backward_s"]}

        def held(fragment: Any, executable: Any) -> Any:
            return executable and _Held(executable, seconds.get(fragment.kind, 0.0))

        pairs = zip(self._program.fragments, compiled.executables, strict=True)
        self._donated = donated
        self._compiled = replace(compiled, executables=tuple(held(*pair) for pair in pairs))
        self._steps: dict[str, tuple[Any, list[Any]]] = {}
        self._edges: dict[tuple[str, int, int], Callable[[], Any]] = {}

    def build(self, name: str, schedule: Mapping[str, Any], strategy: str) -> Mapping[str, Any]:
        """A step under a schedule, and its state."""
        from rhino.pipeline.schedule import ScheduledStep
        from rhino.runtime import PipelineExecutable
        from rhino.runtime.here import planned_here
        from rhino.runtime.script import make_script

        made = ScheduledStep.from_data(schedule)
        script = make_script(self._program, made)
        assert script.donated == self._donated, "another schedule gives away other buffers: compile for it"
        messages = planned_here(self._program, self._devices, self._cluster, strategy, "optimal")
        executable = PipelineExecutable(self._program, made, script, self._compiled, "cpu", messages=messages)
        self._steps[name] = executable, executable.place(self._model.arguments())
        return {}

    def step(self, name: str) -> Mapping[str, Any]:
        """One step from where the last one ended; the clock is the machine's, the same for all processes."""
        import jax
        import numpy as np

        executable, state = self._steps[name]
        start = time.monotonic()
        made = executable.run(state)
        jax.block_until_ready([array for array in made if array.addressable_shards])
        end = time.monotonic()
        state[: len(made) - 1] = made[:-1]
        shards = made[-1].addressable_shards
        loss = float(np.asarray(shards[0].data)) if shards else None
        return {"start": start, "end": end, "loss": loss}

    def fragments(self) -> Mapping[str, Any]:
        """Seconds of this stage's forward and backward, each by itself."""
        found = {}
        for fragment, executable in zip(self._program.fragments, self._compiled.executables, strict=True):
            if executable is not None and fragment.kind in ("forward", "backward"):
                found[fragment.kind] = self._fragment_s(fragment, executable.compiled)
        return found

    def _fragment_s(self, fragment: Any, run: Any) -> float:
        import jax

        samples = []
        for _ in range(2):
            values = [self._program.values[v] for v in fragment.operands]
            given = [
                jax.device_put(_zeros(value), sharding)
                for value, sharding in zip(values, run.input_shardings[0], strict=True)
            ]
            jax.block_until_ready(given)
            start = time.monotonic()
            jax.block_until_ready(run(*given))
            samples.append(time.monotonic() - start)
        return statistics.median(samples)

    def transfer(self, strategy: str, source: int, target: int) -> Mapping[str, Any]:
        """All that goes from a stage to another in a micro-batch, once, with nothing beside it."""
        import jax

        start = time.monotonic()
        if self._me in (source, target):
            key = strategy, source, target
            if key not in self._edges:
                self._edges[key] = self._edge(*key)
            start = time.monotonic()
            made = self._edges[key]()
            jax.block_until_ready([array for array in made if array.addressable_shards])
        return {"start": start, "end": time.monotonic(), "is_part": self._me in (source, target)}

    def _edge(self, strategy: str, source: int, target: int) -> Callable[[], Any]:
        import jax

        from rhino.runtime.edges import ArrayExchange, plan_arrays
        from rhino.runtime.here import network_of_processes

        moved = [
            self._program.values[t.source]
            for t in self._program.transfers
            if (t.from_stage, t.to_stage) == (source, target)
        ]
        here, there = self._whole(source), self._whole(target)
        avals = [jax.ShapeDtypeStruct(value.shape, _zeros(value).dtype) for value in moved]
        count = len(moved)
        network = network_of_processes(self._devices, self._cluster)
        ends = ([here] * count, [there] * count, avals)
        edge = ArrayExchange(*ends, plan_arrays(*ends, network, strategy).program, network.host_of)
        edge.warm_up()
        if self._me == source:
            given = [jax.device_put(_zeros(value), here) for value in moved]
        else:
            given = [jax.make_array_from_single_device_arrays(a.shape, here, [], dtype=a.dtype) for a in avals]
        jax.block_until_ready([array for array in given if array.addressable_shards])
        return lambda: edge(given)

    def _whole(self, stage: int) -> Any:
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        group = self._devices[stage * DEVICES : (stage + 1) * DEVICES]
        return NamedSharding(Mesh(np.array(group), ("x",)), PartitionSpec())

    def describe(self) -> Mapping[str, Any]:
        """Bytes from stage to stage in one micro-batch, and the first losses on one device."""
        found: dict[tuple[int, int], int] = {}
        for transfer in self._program.transfers:
            key = transfer.from_stage, transfer.to_stage
            found[key] = found.get(key, 0) + self._program.values[transfer.source].nbytes
        edges = [[*key, nbytes] for key, nbytes in sorted(found.items())]
        return {"edges": edges, "losses": self._losses() if self._me == 0 else []}

    def _losses(self) -> list[float]:
        import jax

        step = jax.jit(self._model.whole_step())
        arguments = self._model.arguments()
        found = []
        for _ in range(2):
            *new, loss = step(*arguments)
            arguments[: len(new)] = new
            found.append(float(loss))
        return found


class _Held:
    """An executable whose results are there some time after they were computed: its devices sleep meanwhile."""

    def __init__(self, executable: Any, seconds: float) -> None:
        self._executable = executable
        self.compiled = _HeldCall(executable.compiled, seconds) if seconds else executable.compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)


class _HeldCall:
    """Stands for jax's handle of a program."""

    def __init__(self, compiled: Any, seconds: float) -> None:
        self._compiled = compiled
        self._hold = _hold(compiled.output_shardings, seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._hold(*self._compiled(*arguments))[1:]


def _hold(shardings: Sequence[Any], seconds: float) -> Callable[..., Any]:
    """Passes arrays through, without copying them, when every device of theirs has slept."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    def sleep() -> Any:
        time.sleep(seconds)
        return np.zeros((), np.float32)

    mesh = shardings[0].mesh

    def run(*arrays: Any) -> Any:
        wait = jax.shard_map(
            lambda: jax.pure_callback(sleep, jax.ShapeDtypeStruct((), jnp.float32)),
            mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False,
        )  # fmt: skip
        # Arguments that are results are not part of the program otherwise, and would be there at once.
        return jax.lax.optimization_barrier((wait(), *arrays))

    out = (NamedSharding(mesh, PartitionSpec()), *shardings)
    return jax.jit(run, out_shardings=out, donate_argnums=tuple(range(len(shardings))))


def _zeros(value: Any) -> Any:
    import numpy as np

    return np.zeros(value.shape, {"f32": np.float32, "i32": np.int32, "ui32": np.uint32}[value.dtype])


def _cluster(hosts: int, bytes_s: float) -> Any:
    from rhino.machine import Cluster, Device, Level

    device = Device("cpu", "cpu", {"f32": 1e10}, 1 << 30, 1e10)
    levels = (Level("intra-host", DEVICES, 1e10, 1e-5), Level("inter-host", DEVICES * hosts, bytes_s, 1e-4))
    return Cluster(f"namespaces:{hosts}", hosts, DEVICES, device, levels)


if __name__ == "__main__":
    serve(Worker)

"""One process of `bench.resharding`: moves an array in one of several ways when told, and says when it was done.

Owns the ways: `rhino.runtime`'s edges by strategy and scheduler, and what JAX has itself. Knows nothing of rounds.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from bench._crew import join, serve

PEER = "jax"
# What a process takes of memory at the start: room for its tiles, the buffers of an exchange and what is compared.
_TENSORS = 12


class Worker:
    """The case's arrays, and what can be asked: `build`, `arm`, `go`, `check`, in this order."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        import jax
        import numpy as np

        case = first["case"]
        self._shape: tuple[int, ...] = tuple(case["shape"])
        np.zeros(_TENSORS * _size(self._shape), np.int32).fill(1)
        join(first, case["devices"])
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        source, target = case["source"], case["target"]
        hosts = -(-_size(source["mesh"]) // case["devices"])
        self._source = _sharding(devices, source)
        self._target = _sharding(devices[hosts * case["devices"] :], target)
        self._bytes_s = Fraction(round(first["bytes_s"]))
        self._devices = devices
        self._ways: dict[str, Callable[[Any], Any]] = {}
        self._values: Any = None
        self._given: Any = None
        self._made: Any = None

    def build(self, way: str, strategy: str, scheduler: str) -> Mapping[str, Any]:
        """Plan and compile, and make the connections."""
        if way == PEER:
            self._ways[way] = self._peer()
            return {}
        import jax
        import numpy as np

        from rhino.reshard.data import Network
        from rhino.runtime.edges import ArrayExchange, plan_arrays

        host_of = {device.id: device.process_index for device in self._devices}
        network = Network(host_of, dict.fromkeys(sorted(set(host_of.values())), self._bytes_s))
        aval = jax.ShapeDtypeStruct(self._shape, np.int32)
        ends = ([self._source], [self._target], [aval])
        plan = plan_arrays(*ends, network, strategy, scheduler)
        edge = ArrayExchange(*ends, plan.program, host_of)
        edge.warm_up()
        self._ways[way] = lambda array: edge([array])[0]
        return {"planned_s": float(plan.makespan_s), "bound_s": float(plan.bound_s)}

    def _peer(self) -> Callable[[Any], Any]:
        """`device_put` to the same sharding of the target's mesh, and the rest there, where one is needed."""
        import jax

        between = jax.sharding.NamedSharding(self._target.mesh, self._source.spec)

        def put(array: Any) -> Any:
            return jax.device_put(array, between)

        if between == self._target:
            return put
        rest = jax.jit(lambda array: array, out_shardings=self._target)
        here = any(device.process_index == jax.process_index() for device in self._target.device_set)

        def both(array: Any) -> Any:
            arrived = put(array)
            return rest(arrived) if here else arrived

        return both

    def arm(self, seed: int) -> Mapping[str, Any]:
        """The source's arrays of this round; no two rounds have the same values."""
        import jax
        import numpy as np

        count = _size(self._shape)
        odd = np.arange(count, dtype=np.uint32) * np.uint32(2654435761)
        self._values = (odd + np.uint32(seed * 40503)).view(np.int32).reshape(self._shape)
        self._made = None
        self._given = jax.make_array_from_callback(
            self._shape, self._source, lambda index: self._values[index], dtype=np.int32
        )
        jax.block_until_ready(self._given)
        return {}

    def go(self, way: str) -> Mapping[str, Any]:
        """Move the array; the clock is the machine's, the same for all processes."""
        import jax

        run = self._ways[way]
        before = _cpu_s()
        start = time.monotonic()
        self._made = run(self._given)
        jax.block_until_ready(self._made)
        end = time.monotonic()
        return {"start": start, "end": end, "cpu_s": _cpu_s() - before}

    def check(self) -> Mapping[str, Any]:
        """Bit for bit, on all devices of this process."""
        import numpy as np

        wanted = {d.id for d in self._target.addressable_devices}
        shards = self._made.addressable_shards if wanted else []
        assert {shard.device.id for shard in shards} == wanted, "an array is not on the target's devices"
        for shard in shards:
            if not np.array_equal(np.asarray(shard.data), self._values[shard.index]):
                raise AssertionError(f"other values arrived on {shard.device} than were sent")
        return {}


def _sharding(devices: Sequence[Any], side: Mapping[str, Any]) -> Any:
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices[: _size(side["mesh"])]).reshape(side["mesh"]), ("a", "b"))
    return NamedSharding(mesh, PartitionSpec(*(tuple(axes) or None for axes in side["spec"])))


def _size(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    serve(Worker)

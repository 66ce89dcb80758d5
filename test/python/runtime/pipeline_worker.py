"""One process of a pipeline of two stages: runs steps on several ways of putting its groups on processes."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

os.environ.setdefault("NPROC", "16")  # threads of XLA's CPU client, of which some wait for other processes
sys.path.insert(0, str(Path(__file__).parent))

import jax
import numpy as np
import two_stages

from rhino.pipeline.schedule import PipelineCosts, make_schedule
from rhino.runtime import build

COSTS = PipelineCosts.uniform(2, 1.0, 2.0, weight_s=1.0)


def run(ways: int, schedule: str, order: list[int], strategy: str, shared: bool = False) -> None:
    """Four steps, each on what the last one returned; every process knows the third result, and its own weights."""
    devices = [jax.devices()[i] for i in order]
    made = make_schedule(schedule, COSTS, 4)
    text = two_stages.text(ways=ways, shared=shared)
    pipeline = build(text, devices, schedule=made, strategy=strategy, scheduler="optimal")
    w0, w1, x = two_stages.arguments()
    batch = pipeline.place([w0, w1, x])[2]
    wanted = (w0, w1)
    given = [w0, w1]
    alive = []
    for _ in range(4):
        *given, out = pipeline.run([*given, batch])
        *wanted, y = two_stages.step(*wanted, x, shared=shared)
        np.testing.assert_allclose(np.asarray(out), y, rtol=1e-4, atol=1e-5)
        jax.block_until_ready([found for found in given if found.addressable_shards])
        gc.collect()
        alive.append(len(jax.live_arrays()))
    assert alive[1] == alive[3], alive
    for found, expected in zip(given, wanted, strict=True):
        for shard in found.addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data), expected[shard.index], rtol=1e-5, atol=1e-6)
    profile = pipeline.profile([w0, w1, x], repeats=1)
    assert all(seconds > 0 for seconds in (*profile.fragment_s(), *profile.transfer_s()))
    print(f"ways {ways} {schedule} {order} {strategy}: right", flush=True)


def echo() -> None:
    """What nobody reads is kept as its type says, and told to all as any small result."""
    devices = jax.devices()
    text = two_stages.echoing(two_stages.text(ways=len(devices) // 2))
    pipeline = build(text, devices, schedule=make_schedule("1f1b", COSTS, 4))
    echoed = np.arange(128, dtype=np.float32).reshape(16, 8)
    given = pipeline.place([*two_stages.arguments(), echoed])
    assert not given[3].is_fully_replicated
    *_, out, again = pipeline.run(given)
    np.testing.assert_allclose(np.asarray(out), two_stages.step(*two_stages.arguments())[2], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(again), echoed)
    print("echo: right", flush=True)


def main() -> None:
    """Two stages on processes of their own; both over all processes; and one process with parts of both."""
    jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    count = jax.device_count()
    half = count // 2
    run(half, "1f1b", list(range(count)), "broadcast")
    run(half, "eager-1f1b", list(range(count)), "send-recv")
    crossed = [*range(0, count, 2), *range(1, count, 2)]
    run(half, "1f1b", crossed, "broadcast")
    run(half, "1f1b", list(range(count)), "broadcast", shared=True)
    # Both groups are on both processes, and each has a half of the batch of each.
    run(half, "1f1b", crossed, "broadcast", shared=True)
    echo()


if __name__ == "__main__":
    main()

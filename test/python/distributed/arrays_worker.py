"""One process of a job that gives steps all kinds of arguments, and compares what they return with one device.

Prints `right <what>;` for each kind.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import rhino

address, count, process = sys.argv[1:]
rhino.distributed.initialize(address, int(count), int(process), timeout_s=120)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
import small_fused  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from rhino.api import fitting  # noqa: E402
from rhino.api.agreed import agreed_most  # noqa: E402
from rhino.compile.room import Shortage  # noqa: E402

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def main() -> None:
    strided()
    kinds()
    hosted()
    again()


def strided() -> None:
    """Arrays that a plan stores in another shape; a second step that follows; a state from this process alone."""
    # Both axes of the mesh cross processes, and the planner is told to store nothing whole.
    step = rhino.parallelize(small_fused.train_step, donate_argnums=0, mesh=(jax.device_count(),))
    step.plan(small_fused.abstract_state(), small_fused.make_batch())
    state, alone = step.init(small_fused.init, jax.random.key(0)), small_fused.init(jax.random.key(0))
    for i in range(2):
        batch = small_fused.make_batch(seed=i)
        state, loss = step(state, batch)
        alone, expected = jax.jit(small_fused.train_step)(alone, batch)
        np.testing.assert_allclose(loss, expected, **CLOSE)
    same_parts(state, alone)
    evaluate = rhino.parallelize(small_fused.eval_step, follow=step)
    np.testing.assert_allclose(
        evaluate(state, small_fused.make_batch(seed=5)), small_fused.eval_step(alone, small_fused.make_batch(seed=5)),
        **CLOSE,
    )  # fmt: skip
    say("strided" if any(isinstance(leaf, rhino.StridedArray) for leaf in jax.tree.leaves(state)) else "state")
    placed = step.place(jax.tree.map(np.asarray, alone))
    same_parts(placed, alone)
    _, loss = step(placed, batch)
    np.testing.assert_allclose(loss, jax.jit(small_fused.train_step)(alone, batch)[1], **CLOSE)
    say("placed")


def kinds() -> None:
    """Scalars, keys, arrays of this process and of all; results that are split, and small ones that are."""

    def noisy(state: Any, scale: Any, key: Any, *, batch: Any) -> Any:
        noise = jax.random.normal(key, state.shape)
        state = state + scale * noise + jnp.mean(batch, axis=0)
        return state, {"norms": jnp.linalg.norm(batch, axis=1), "sum": jnp.sum(state)}

    step = rhino.parallelize(noisy, mesh=(jax.device_count(),))
    rows = np.random.default_rng(0).standard_normal((4096, 512), dtype=np.float32)
    mesh = Mesh(np.array(jax.devices()), ("all",))
    spread = jax.make_array_from_callback(
        rows.shape, NamedSharding(mesh, PartitionSpec(None, "all")), lambda index: rows[index]
    )
    state, key = np.zeros((512,), np.float32), jax.random.key(3)
    expected = jax.jit(noisy)(state, 0.5, key, batch=rows)
    for kind, batch in {"host": rows, "local": jnp.asarray(rows), "spread": spread}.items():
        found = step(state, 0.5, key, batch=batch)
        np.testing.assert_allclose(found[1]["norms"], expected[1]["norms"], **CLOSE)
        np.testing.assert_allclose(found[1]["sum"], expected[1]["sum"], **CLOSE)
        same_parts(found[0], expected[0])
        say(kind)
    bits = jax.random.key_data(key)
    np.testing.assert_allclose(
        step(state, np.float64(0.5), jax.random.wrap_key_data(bits), batch=rows)[1]["sum"], expected[1]["sum"], **CLOSE
    )
    say("types")


def hosted() -> None:
    """State that the hosts of both processes keep."""
    local = rhino.Cluster.load("local")
    cluster = replace(local, device=replace(local.device, host_bandwidth_bytes_s=1e10))
    shape = (1024, 1024)

    def init(key: Any) -> Any:
        return [0.03 * jax.random.normal(k, shape) for k in jax.random.split(key, 4)], [jnp.zeros(shape)] * 4

    def train(state: Any, x: Any) -> Any:
        params, moments = state
        loss, grads = jax.value_and_grad(lambda params: jnp.mean(jnp.tanh(x @ params[0] @ params[1]) ** 2))(params)
        moments = [0.9 * m + g for m, g in zip(moments, grads, strict=True)]
        return ([p - 0.1 * m for p, m in zip(params, moments, strict=True)], moments), loss

    x = np.random.default_rng(1).standard_normal((64, 1024), dtype=np.float32)
    step = rhino.parallelize(
        train, cluster=cluster, donate_argnums=0, mesh=(jax.device_count(),), memory_limit="9MiB", microbatches=1
    )
    plan = step.plan(jax.eval_shape(init, jax.random.key(0)), x)
    assert plan.predicted.memory["host_bytes"] > 0
    state, alone = step.init(init, jax.random.key(0)), init(jax.random.key(0))
    for _ in range(2):
        (state, loss), (alone, expected) = step(state, x), jax.jit(train)(alone, x)
        np.testing.assert_allclose(loss, expected, **CLOSE)
    same_parts(state, alone)
    same_parts(step.place(jax.tree.map(np.asarray, alone)), alone)
    assert "pinned_host" in {moment.sharding.memory_kind for moment in state[1]}
    say("hosted")


def again() -> None:
    """Planned again by all, for the process whose XLA takes the most; kept by all, where no plan is small enough."""

    def train(weights: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda ws: jnp.mean(jnp.tanh(x @ ws[0] @ ws[1]) ** 2))(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], loss

    weights = [0.03 * jax.random.normal(k, (512, 512)) for k in jax.random.split(jax.random.key(0), 2)]
    x = np.random.default_rng(1).standard_normal((256, 512), dtype=np.float32)
    expected, loss = jax.jit(train)(weights, x)
    for least, said in ((0, "Planned again within"), (700, "there is no plan within 700 bytes")):
        plans: list[Any] = []

        def lacking(built: Any, cluster: Any, plans: list[Any] = plans, least: int = least) -> Shortage | None:
            plans.append(built.plan)
            used = built.plan.predicted.peak_bytes
            most = agreed_most(built.job, used + int(process))
            assert most == used + int(count) - 1
            return Shortage(2 * most, used, most, least or used - 1) if len(plans) == 1 else None

        fitting.lacking = lacking
        step = rhino.parallelize(train, microbatches=1)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found, ours = step(weights, x)
        assert [said in str(w.message) for w in warned if w.category is rhino.RhinoWarning] == [True]
        assert len(plans) == (1 if least else 2)
        np.testing.assert_allclose(ours, loss, **CLOSE)
        same_parts(found, expected)
    say("again")


def same_parts(ours: Any, whole: Any) -> None:
    """Each part that this process has of `ours` is that of `whole`."""
    for found, expected in zip(jax.tree.leaves(rhino.original(ours)), jax.tree.leaves(whole), strict=True):
        for shard in found.addressable_shards:
            np.testing.assert_allclose(shard.data, np.asarray(expected)[shard.index], **CLOSE)


def say(what: str) -> None:
    print(f"right {what};", flush=True)


main()

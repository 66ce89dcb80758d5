"""Optimizer state in the memory of the hosts: of which optimizers, with which numbers, and what XLA makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import numpy as np
import optax
import pytest

import rhino
from rhino.compile import compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.ir.offload import offload

WIDTH, LAYERS = 768, 4
CHAINS: dict[str, tuple[Callable[[], Any], int]] = {
    "adam": (lambda: optax.adam(1e-3), LAYERS),
    "adamw with clipping": (lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), LAYERS),
    "momentum": (lambda: optax.sgd(1e-3, momentum=0.9, nesterov=True), LAYERS),
    "lion": (lambda: optax.lion(1e-4), LAYERS),
    "averages": (lambda: optax.chain(optax.adam(1e-3), optax.ema(0.99)), LAYERS),
    # Its update waits for a norm of itself.
    "lamb": (lambda: optax.lamb(1e-3), 0),
    "sgd": (lambda: optax.sgd(1e-3), 0),
}


def model(
    optimizer: Any, width: int = WIDTH, stacked: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any], jax.Array]:
    """A training step of a perceptron, what makes its state, and a batch; layers may be stacked and scanned over."""

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, LAYERS)
        params = {f"w{i}": 0.03 * jax.random.normal(k, (width, width)) for i, k in enumerate(keys)}
        if stacked:
            params = {"layers": jnp.stack([*params.values()]), "bias": jnp.zeros((LAYERS, width))}
        return params, optimizer.init(params)

    def layer(x: jax.Array, of: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ of[0] + of[1]), None

    def loss(params: Any, x: jax.Array) -> jax.Array:
        if stacked:
            x, _ = jax.lax.scan(jax.checkpoint(layer), x, (params["layers"], params["bias"]))
        else:
            for i in range(LAYERS):
                x = jnp.tanh(x @ params[f"w{i}"])
        return jnp.mean(x**2)

    def step(state: Any, x: jax.Array) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return init, step, jax.random.normal(jax.random.key(1), (64, width))


def with_hosts(width_bytes_s: float = 10e9) -> rhino.Cluster:
    """The devices of this process, of which hosts keep what does not fit."""
    local = rhino.Cluster.load("local")
    return replace(local, device=replace(local.device, host_bandwidth_bytes_s=width_bytes_s))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_the_state_of_optimizers(name: str, stacked: bool) -> None:
    make, updates = CHAINS[name]
    updates, rows = (min(updates, 1), LAYERS) if stacked else (updates, 1)
    init, step, batch = model(make(), stacked=stacked)
    state = init(jax.random.key(0))
    lowered = jax.jit(step, donate_argnums=0, keep_unused=True).lower(state, batch)
    text = steps.text_of(lowered.as_text(), "rhino-inline", "symbol-dce", "canonicalize", "rhino-classify-args")
    module = parse_text(text, make_context())
    done = offload(module)
    module.operation.verify()
    assert [update.rows for update in done.updates] == [rows] * updates
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state[1]) if leaf.nbytes >= 1 << 20)
    assert sum(update.nbytes for update in done.updates) == (held if updates else 0)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    want = steps.run(text, flat)
    for a, b in zip(steps.run(str(module), flat), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    again = parse_text(text, make_context())
    offload(again)
    assert str(again) == str(module)


def kinds(tree: Any) -> list[str]:
    return [leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree) if leaf.nbytes >= 1 << 20]


def agree(found: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=3e-5)


def test_a_state_that_hosts_keep(tmp_path: Path) -> None:
    """Training, another batch, an evaluation, a change of the state and a checkpoint, beside one device."""
    from rhino.checkpoint import restore, save

    init, step, batch = model(CHAINS["adamw with clipping"][0]())
    cluster, options = with_hosts(), {"memory_limit": "4.5MiB", "microbatches": 1, "mesh": (8,)}
    with pytest.raises(rhino.RhinoError, match="cannot be met"):
        rhino.parallelize(step, cluster=cluster, offload="none", **options).plan(
            jax.eval_shape(init, jax.random.key(0)), batch
        )
    planned = rhino.parallelize(step, cluster=cluster, donate_argnums=0, **options)
    plan = planned.plan(jax.eval_shape(init, jax.random.key(0)), batch)
    hosted = [tensor for tensor in plan.arguments if tensor.memory == "pinned_host"]
    assert hosted and {tensor.role for tensor in hosted} == {"opt_state"}
    assert plan.predicted.memory["host_bytes"] == sum(4 * WIDTH**2 // 8 for _ in hosted)
    assert "on the host" in plan.summary()
    state, alone, one = planned.init(init, jax.random.key(0)), init(jax.random.key(0)), jax.jit(step)
    assert kinds(state[1]).count("pinned_host") == len(hosted)
    there = kinds(state)
    for x in (batch, batch, batch[:32], batch):
        (state, value), (alone, want) = planned(state, x), one(alone, x)
        np.testing.assert_allclose(value, want, rtol=1e-4)
        assert kinds(state) == there
    agree(state, alone)

    norm = rhino.parallelize(lambda state: optax.tree.norm(state[1]), cluster=cluster, follow=planned)
    np.testing.assert_allclose(norm(state), optax.tree.norm(alone[1]), rtol=1e-4)
    save(tmp_path / "state", state)
    back = restore(tmp_path / "state", planned)
    assert kinds(back) == there
    agree(back, state)
    agree(planned.place(alone), alone)
    assert kinds(planned.place(alone)) == there
    halved = rhino.parallelize(
        lambda state: (state[0], jax.tree.map(lambda leaf: leaf / 2 if leaf.ndim else leaf, state[1])),
        cluster=cluster, follow=planned, donate_argnums=0,
    )  # fmt: skip
    half = halved(state)
    assert kinds(half) == there
    np.testing.assert_allclose(half[1][1][0].mu["w0"], alone[1][1][0].mu["w0"] / 2, rtol=1e-3, atol=1e-6)


def test_a_stack_of_layers_that_hosts_keep() -> None:
    """Each layer's state comes by itself; the numbers are those of one device."""
    init, step, batch = model(CHAINS["adamw with clipping"][0](), stacked=True)
    options: dict[str, Any] = {"cluster": with_hosts(), "memory_limit": "4.2MiB", "microbatches": 1, "mesh": (8,)}
    planned = rhino.parallelize(step, donate_argnums=0, **options)
    plan = planned.plan(jax.eval_shape(init, jax.random.key(0)), batch)
    assert plan.predicted.memory["host_bytes"] == 2 * LAYERS * 4 * WIDTH**2 // 8
    assert plan.module.count("stablehlo.while") == 3
    state, alone, one = planned.init(init, jax.random.key(0)), init(jax.random.key(0)), jax.jit(step)
    assert kinds(state[1]) == ["pinned_host", "pinned_host"]
    for _ in range(3):
        (state, value), (alone, want) = planned(state, batch), one(alone, batch)
        np.testing.assert_allclose(value, want, rtol=1e-4)
    assert kinds(state[1]) == ["pinned_host", "pinned_host"]
    agree(state, alone)


def test_what_an_update_makes_for_others() -> None:
    """The next moment is read behind the update, too, where the host keeps it; what is new has a buffer of its own."""

    def step(w: Any, m: Any, x: jax.Array) -> Any:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w), None

        def loss(w: jax.Array) -> jax.Array:
            return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)

        m = 0.9 * m + jax.grad(loss)(w)
        return w - 0.1 * m, m, jnp.sqrt(m * m), jnp.sum(m)

    w = 0.03 * jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, WIDTH))
    flat = [np.asarray(a) for a in (w, 0.1 * w, jax.random.normal(jax.random.key(1), (64, WIDTH)))]
    lowered = jax.jit(step, donate_argnums=(0, 1), keep_unused=True).lower(*flat)
    text = steps.text_of(lowered.as_text(), "rhino-inline", "symbol-dce", "canonicalize", "rhino-classify-args")
    module = parse_text(text, make_context())
    assert [update.rows for update in offload(module).updates] == [LAYERS]
    module.operation.verify()
    for a, b in zip(steps.run(str(module), flat), steps.run(text, flat), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stacked", [pytest.param(False, marks=pytest.mark.long), True])
def test_what_xla_makes_of_it(stacked: bool, gpu_compiler: None) -> None:
    """Its memory on devices and hosts is what was predicted, and the timeline has the copies at their price."""
    init, step, batch = model(optax.adam(1e-3), width=2048, stacked=stacked)
    shapes = jax.eval_shape(init, jax.random.key(0))
    cluster = "dgx-h100:1"
    options: dict[str, Any] = {"cluster": cluster, "donate_argnums": 0, "mesh": (8,), "microbatches": 1}
    free = rhino.parallelize(step, **options).plan(shapes, batch)
    assert "host_bytes" not in free.predicted.memory
    planned = rhino.parallelize(step, memory_limit="25MiB", **options)
    plan = planned.plan(shapes, batch)
    memory = plan.predicted.memory
    assert memory["host_bytes"] == (8 if stacked else 6) * 4 * 2048**2 // 8
    for overlap in (None, cluster):
        compiled = compile_module(plan.module, "h100", overlap=overlap)
        found = compiled.memory_analysis()
        assert found.host_bytes == memory["host_bytes"]
        assert found.argument_bytes == memory["argument_bytes"]
        assert found.peak_bytes == pytest.approx(plan.predicted.peak_bytes, rel=0.1)
        timeline = compiled.timeline(cluster)
        moved_s = memory["host_bytes"] / rhino.Cluster.load(cluster).device.host_bandwidth_bytes_s
        for way in ("from-host", "to-host"):
            assert timeline.sent_s[way] == pytest.approx(moved_s, rel=0.05)
            assert 0 < timeline.exposed_s[way] <= timeline.sent_s[way] * 1.001
    with pytest.raises(rhino.RhinoError, match="cannot be met"):
        rhino.parallelize(step, memory_limit="25MiB", offload="none", **options).plan(shapes, batch)


def test_the_smallest_plan_is_looked_for_only_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes longer than the search: not where the hosts then keep what does not fit."""
    options: dict[str, Any] = {"cluster": with_hosts(), "microbatches": 1, "mesh": (8,), "donate_argnums": 0}

    def message(name: str, **further: Any) -> str:
        init, step, batch = model(CHAINS[name][0]())
        shapes = jax.eval_shape(init, jax.random.key(0))
        with pytest.raises(rhino.RhinoError, match="cannot be met") as told:
            rhino.parallelize(step, **options, **further).plan(shapes, batch)
        return str(told.value)

    assert message("lamb", memory_limit="3MiB") == message("lamb", memory_limit="3MiB", offload="none")
    monkeypatch.setattr("rhino.sharding.planner.smallest", lambda *given: pytest.fail("it was looked for"))
    init, step, batch = model(optax.adam(1e-3))
    planned = rhino.parallelize(step, memory_limit="4.5MiB", **options)
    plan = planned.plan(jax.eval_shape(init, jax.random.key(0)), batch)
    assert any(tensor.memory == "pinned_host" for tensor in plan.arguments)

"""A step that XLA needs more memory for than was predicted: planned again within less, and run like any other."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino
from rhino.api import agreed, fitting
from rhino.compile.room import Shortage
from rhino.distributed.link import Group
from rhino.machine import Cluster

H100S = Cluster.load("dgx-h100:1")
LAYERS, WIDTH, ROWS = 2, 1024, 2048


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


SHAPES = [jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")] * LAYERS, jax.ShapeDtypeStruct((ROWS, WIDTH), "float32")


def on(memory_bytes: int, **options: Any) -> rhino.api.Parallelized:
    cluster = replace(H100S, device=replace(H100S.device, memory_bytes=memory_bytes))
    asked: dict[str, Any] = {"stages": 1, "microbatches": 1, "overlap": False, **options}
    return rhino.parallelize(step, cluster=cluster, donate_argnums=0, **asked)


def test_it_is_planned_again_where_it_has_no_room(gpu_compiler: None) -> None:
    """XLA gathers weights that the search counts once: 19.5 MiB, of which 15 are predicted."""
    free = on(H100S.device.memory_bytes)
    peak = free.compile(*SHAPES).memory_analysis().peak_bytes
    assert peak > 1.1 * free.plan(*SHAPES).predicted.peak_bytes
    tight = on(peak - 1)
    first = tight.plan(*SHAPES)
    assert first.predicted.peak_bytes == free.plan(*SHAPES).predicted.peak_bytes
    with pytest.warns(rhino.RhinoWarning, match=r"XLA needs 19\.5 MiB .* Planned again within \d+ bytes: mesh"):
        compiled = tight.compile(*SHAPES)
    assert compiled.memory_analysis().peak_bytes < peak
    # What calls, `init` and files get from now on.
    assert tight.plan(*SHAPES).predicted.peak_bytes < first.predicted.peak_bytes
    with warnings.catch_warnings():
        warnings.simplefilter("error", rhino.RhinoWarning)
        assert tight.compile(*SHAPES).memory_analysis().peak_bytes == compiled.memory_analysis().peak_bytes


def test_a_limit_of_the_users_own_a_plan_and_a_state_elsewhere_stay(gpu_compiler: None) -> None:
    peak = on(H100S.device.memory_bytes).compile(*SHAPES).memory_analysis().peak_bytes
    limited = on(peak - 1, memory_limit=peak)
    with pytest.warns(rhino.RhinoWarning, match="Plan again with memory_limit="):
        limited.compile(*SHAPES)
    with pytest.warns(rhino.RhinoWarning, match="Plan again with memory_limit="):
        on(peak - 1, plan=limited.plan(*SHAPES)).compile(*SHAPES)
    with pytest.warns(rhino.RhinoWarning, match="Plan again with memory_limit="):
        on(peak - 1).lower(*SHAPES).compile()


def test_it_says_so_where_there_is_no_other_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    tight = rhino.parallelize(step, cluster="cpu:1", stages=1, microbatches=1)
    monkeypatch.setattr(fitting, "lacking", lambda built, cluster: Shortage(2000, 1000, 1500, 700))
    with pytest.warns(rhino.RhinoWarning, match="and there is no plan within 700 bytes"):
        tight.compile(*SHAPES)


def test_calls_run_what_was_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that was made for the first plan is moved."""
    planned: list[Any] = []

    def lacking(built: Any, cluster: Cluster) -> Shortage | None:
        planned.append(built.plan)
        used = built.plan.predicted.peak_bytes
        return Shortage(2 * used, used, used, used - 1) if len(planned) == 1 else None

    monkeypatch.setattr(fitting, "lacking", lacking)
    tight = rhino.parallelize(step, stages=1, microbatches=1)
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)

    def init() -> list[jax.Array]:
        return [jax.random.normal(k, (WIDTH, WIDTH)) / 16 for k in keys[1:]]

    x = jax.random.normal(keys[0], (ROWS, WIDTH))
    tight.plan(*SHAPES)
    weights = tight.init(init)
    with pytest.warns(rhino.RhinoWarning, match="Planned again within"):
        found = tight(weights, x)
    assert len(planned) == 2 and planned[1].predicted.peak_bytes < planned[0].predicted.peak_bytes
    assert tight.plan(*SHAPES) is planned[1]
    for one, other in zip(found, jax.jit(step)(init(), x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_processes_go_by_the_one_that_takes_the_most() -> None:
    class Link:
        def ask(self, value: int, timeout_s: float) -> tuple[Group, ...]:
            return Group(value, (0, 2)), Group(value + 5, (1,)), Group(value - 5, (3,))

    class Job:
        link, timeout_s = Link(), 1.0

    assert agreed.agreed_most(Job(), 100) == 105  # type: ignore[arg-type]

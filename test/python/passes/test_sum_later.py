"""rhino-sum-later: the same numbers, and sums over devices that nothing in their trip waits for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from rhino.compile import compile_module, executable
from rhino.dialect.context import copied, make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.late_sums import sum_later
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster, Device, Level
from rhino.passes.pass_manager import PassManager
from rhino.sharding import Options, plan_sharding

LAYERS, WIDTH, BATCH, LENGTH = 4, 16, 16, 8
# Computing is slow, so that all of it is divided.
HOST = Cluster(
    "host", 1, 8, Device("slow", "h100", {"f32": 1e8, "bf16": 1e8}, 2**30, 1e11), (Level("link", 8, 1e12, 1e-7),)
)
Dims = tuple[tuple[str, ...], ...]


def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def layer(h: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        normed = h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6) * w["scale"]
        up = jax.nn.gelu(normed @ w["up"] + w["bias"])
        return h + jnp.einsum("blh,hd->bld", up, w["down"]), None

    return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)


def step(weights: dict[str, jax.Array], x: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    hidden = 2 * width
    return {
        "bias": (LAYERS, hidden),
        "down": (LAYERS, hidden, width),
        "scale": (LAYERS, width),
        "up": (LAYERS, width, hidden),
    }


def lowered(dtype: Any, width: int, length: int) -> ir.Module:
    weights = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes(width).items()}
    given = weights, jax.ShapeDtypeStruct((BATCH, length, width), dtype)
    # With locations, by which arguments have names.
    text = jax.jit(step, donate_argnums=0).lower(*given).as_text(debug_info=True)
    module = parse_text(text, make_context())
    PassManager(module.context).add("inline").add("symbol-dce").add("rhino-classify-args").run(module)
    return module


def planned(
    mesh: Sequence[int],
    batch: Dims,
    split: Dims,
    dtype: Any = jnp.float32,
    cluster: Cluster = HOST,
    width: int = WIDTH,
    length: int = LENGTH,
) -> ir.Module:
    """The step for a mesh, with its data and its two matrices laid out as told."""
    module = lowered(dtype, width, length)
    graph = import_graph(module)
    for argument in graph.arguments:
        rank = len(graph.values[argument.value].shape)
        is_data = graph.values[argument.value].shape[0] == BATCH
        dims = batch if is_data else ((), *split) if rank == 3 else ((),) * rank
        graph.pins[argument.value] = argument.name, dims
    annotate(module, graph, plan_sharding(graph, cluster, Options(mesh=tuple(mesh))))
    return module


def ran(module: ir.Module, dtype: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    given = [*shapes(WIDTH).values(), (BATCH, LENGTH, WIDTH)]
    arguments = [jnp.asarray(rng.normal(size=shape) / 2, dtype) for shape in given]
    return [np.asarray(out, np.float32) for out in compile_module(str(module), "cpu", devices=8)(*arguments)]


ROWS: Dims = (("x", "y"), (), ())


@pytest.mark.parametrize(
    ("batch", "split", "changed"),
    [
        (ROWS, ((), ()), 4),
        # What scatters a gradient is summed over first.
        (ROWS, (("y",), ()), 4),
        (ROWS, ((), ("x", "y")), 4),
        ((("y", "x"), (), ()), (("x",), ()), 4),
        ((("y", "x"), (), ()), (("x", "y"), ()), 4),
        # Of two dimensions that are summed one is.
        ((("x",), ("y",), ()), ((), ()), 4),
        ((("x",), (), ()), ((), ("y",)), 4),
        # Nothing is summed over devices.
        (((), (), ()), ((), ("x", "y")), 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mesh", [(2, 4), (4, 2)])
def test_the_same_numbers(mesh: tuple[int, int], batch: Dims, split: Dims, changed: int) -> None:
    module = planned(mesh, batch, split)
    later = copied(module)
    assert sum_later(later) == changed
    assert later.operation.verify()
    for got, want in zip(ran(later, jnp.float32), ran(module, jnp.float32), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    assert sum_later(later) == 0


def test_in_bfloat16() -> None:
    module = planned((2, 4), ROWS, (("y",), ()), jnp.bfloat16)
    later = copied(module)
    assert sum_later(later) == 4
    for got, want in zip(ran(later, jnp.bfloat16), ran(module, jnp.bfloat16), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.02, atol=0.01)


def test_only_over_the_axes_that_are_told() -> None:
    module = planned((2, 4), (("x",), ("y",), ()), ((), ()))
    for axes, changed in ((("x",), 4), (("z",), 0)):
        assert sum_later(copied(module), axes) == changed


def test_xla_sums_what_the_trip_before_made(gpu_compiler: None) -> None:
    module = planned((2, 4), ROWS, ((), ()))
    assert sum_later(module)
    hlo = compile_module(str(module), "h100").hlo_text()
    bodies = [c for c in re.split(r"\n(?=%|ENTRY)", hlo) if " all-reduce-start(" in c and not c.startswith("ENTRY")]
    assert bodies
    for body in bodies:
        made = dict(re.findall(r"(%[\w.-]+) = (.*)", body))
        queue = [name for name, text in made.items() if " all-reduce-start(" in text]
        for name in queue:
            text = made.get(name, "").split("metadata=")[0]
            assert not re.search(r"gemm_fusion|custom-call", text)
            queue += [other for other in re.findall(r"%[\w.-]+", text.split("calls=")[0]) if other not in queue]


@pytest.mark.slow
def test_over_a_slow_network_sums_are_later_and_hidden(gpu_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.load("p3.16xlarge:2")
    module = str(planned((2, 8), ROWS, ((), ("y",)), jnp.float32, cluster, 1024, 2048))
    found = compile_module(module, "v100", overlap=cluster)
    assert found.summed_later
    assert found.to_json()["summed_later"]
    monkeypatch.setattr(executable, "prepare_later", lambda *arguments: None)
    before = compile_module(module, "v100", overlap=cluster)
    assert not before.summed_later
    assert found.timeline(cluster).total_s < 0.9 * before.timeline(cluster).total_s

"""Programs that others wrote as files: `jax.export`'s, for one platform or several, and modules without @main."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import rhino
from rhino.cli.main import main
from rhino.cli.opt import main as opt

FUNCTION = "func.func {} @{}(%x: tensor<64x8xf32>) -> tensor<64x8xf32> {{ return %x : tensor<64x8xf32> }}\n"


def step(params: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    @jax.jit
    def hidden(first: jax.Array) -> jax.Array:
        return jnp.tanh(batch @ first)

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((hidden(params["w1"]) @ params["w2"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def arguments() -> tuple[dict[str, jax.Array], jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"w1": jax.random.normal(keys[0], (16, 32)), "w2": jax.random.normal(keys[1], (32, 8))}
    return params, jax.random.normal(keys[2], (64, 16))


def exported(platforms: tuple[str, ...]) -> Any:
    return export.export(jax.jit(step, donate_argnums=0), platforms=platforms)(*arguments())


@pytest.mark.parametrize(("platforms", "cluster"), [(("cpu",), "cpu:1"), (("cpu", "cuda"), "dgx-h100:1")])
def test_plan_of_an_export(tmp_path: Path, platforms: tuple[str, ...], cluster: str) -> None:
    source, plan = tmp_path / "step.bin", tmp_path / "plan.json"
    source.write_bytes(exported(platforms).serialize())
    assert main(["plan", str(source), "--cluster", cluster, "--json", str(plan), "-q"]) == 0
    data = json.loads(plan.read_text())
    assert [argument["name"] for argument in data["arguments"]] == ["params['w1']", "params['w2']", "batch"]
    assert [argument["role"] for argument in data["arguments"]] == ["param", "param", "batch"]


def test_an_export_for_several_platforms_is_settled_on_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "step.bin"
    source.write_bytes(exported(("cpu", "cuda")).serialize())
    assert opt([str(source)]) == 0
    assert "stablehlo.case" in capfd.readouterr().out  # rhino-opt shows all of it
    assert main(["compile", str(source), "--json", "-"]) == 0
    assert json.loads(capfd.readouterr().out)["devices"] == 1
    assert main(["plan", str(source), "--cluster", "cpu:1", "-o", "-"]) == 0
    planned = capfd.readouterr().out
    assert "stablehlo.case" not in planned and "_platform_index" not in planned


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\0" * 64 + data])
def test_a_damaged_export_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: Any) -> None:
    source = tmp_path / "step.bin"
    source.write_bytes(damage(exported(("cpu",)).serialize()))
    assert main(["plan", str(source), "--cluster", "cpu:1"]) == 1
    assert opt([str(source)]) == 1
    errors = capfd.readouterr().err.splitlines()
    assert len(errors) == 2 and all("step.bin: not a file that this jax's export can read" in line for line in errors)


def test_an_export_for_other_platforms_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "step.bin"
    source.write_bytes(exported(("cuda", "tpu")).serialize())
    assert main(["plan", str(source), "--cluster", "cpu:1"]) == 1
    assert "exported for cuda and tpu, but cpu needs cpu; export it with platforms=['cpu']" in capfd.readouterr().err


def test_an_export_is_a_step_of_the_api() -> None:
    of_export = rhino.parallelize(export.deserialize(exported(("cpu", "cuda")).serialize()), mesh=(8,))
    got, want = of_export(*arguments()), step(*arguments())
    assert of_export.__name__ == "step"
    assert len(jax.tree.leaves(got)) == 3
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_only_public_function_is_the_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.mlir"
    source.write_text(FUNCTION.format("private", "helper") + FUNCTION.format("", "train"))
    assert main(["plan", str(source), "--cluster", "cpu:1", "-o", "-"]) == 0
    assert "func.func @main(" in capfd.readouterr().out
    source.write_text(FUNCTION.format("", "evaluate") + FUNCTION.format("", "train"))
    for command in (["plan", str(source), "--cluster", "cpu:1", "-q"], ["compile", str(source), "-q"]):
        assert main(command) == 1
        message = capfd.readouterr().err
        assert "several public ones: @evaluate, @train; say which one is the step: --function evaluate" in message
        assert main([*command, "--function", "train"]) == 0

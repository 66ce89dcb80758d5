"""Pallas kernels as jax compiles them into files: whole unless they are registered by name; priced by what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

import rhino
from rhino.cli.main import main
from rhino.compile import compile_module

from .call_modules import partitioned

ROWS = 32


def exported(platform: str, **options: Any) -> str:
    """A module with one kernel, lowered for a platform that need not be here."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    def step(x: jax.Array) -> jax.Array:
        block = pl.BlockSpec((ROWS, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(x.shape[0] // ROWS,), in_specs=[block],
            out_specs=block, name="doubled", cost_estimate=pl.CostEstimate(flops=1 << 20, bytes_accessed=1 << 22,
                                                                           transcendentals=0), **options,
        )(x)  # fmt: skip

    x = jax.ShapeDtypeStruct((8 * ROWS, 128), jnp.float32)
    # From jax 0.12 on, Pallas asks which GPU it is for.
    h100 = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    with use_abstract_mesh(AbstractMesh((1,), ("one",), axis_types=(AxisType.Auto,), abstract_device=h100)):
        return str(jax.jit(step).trace(x).lower(lowering_platforms=(platform,)).as_text())


def on_two_devices(text: str) -> str:
    text = re.sub(r"(module @\S+ attributes \{.*\} \{\n)", r'\1sdy.mesh @mesh = <["x"=2]>\n', text, count=1)
    given = '%arg0: tensor<256x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
    return text.replace("%arg0: tensor<256x128xf32>", given, 1)


@pytest.mark.parametrize(
    ("platform", "options", "name", "flops"),
    [
        ("tpu", {}, "doubled", 1 << 20),
        ("cuda", {"compiler_params": triton.CompilerParams()}, "doubled", 0),
    ],
    ids=["tpu", "triton"],
)
def test_kernels_in_files_are_computed_whole_and_say_why(
    platform: str, options: dict[str, Any], name: str, flops: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step.mlir").write_text(exported(platform, **options))
    assert main(["plan", str(tmp_path / "step.mlir"), "--cluster", "dgx-h100:1", "-o", str(tmp_path / "out.mlir")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{name} at" in text and "is computed whole by every device: it is compiled for these shapes" in text
    assert "plan the step in Python with rhino.parallelize" in text
    plan = rhino.Plan.from_module((tmp_path / "out.mlir").read_text())
    (use,) = plan.kernels
    assert (use.name, use.flops) == (name, flops)


def test_a_triton_kernel_in_a_file_is_split_once_it_is_registered_by_name() -> None:
    """Its grid is in the configuration: half of the rows are half of the programs. XLA compiles it for H100."""
    text = on_two_devices(exported("cuda", compiler_params=triton.CompilerParams()))
    assert "grid_x = 8" in partitioned(text) and "sdy.manual_computation" not in partitioned(text)
    rhino.kernels.register(
        "doubled", "m n -> m n", need_replication_factors=("n",), flops=lambda x: x.shape[0] * x.shape[1],
        resize=lambda config, operands, results: {"grid_x": operands[0].shape[0] // ROWS},
    )  # fmt: skip
    try:
        made = partitioned(text)
    finally:
        rhino.kernels.unregister("doubled")
    assert "sdy.manual_computation" in made and "grid_x = 4 : i32" in made and "flops = 16384" in made
    executable = compile_module(made, "h100")
    assert re.search(r"f32\[128,128\]\S* custom-call\(.*|f32\[128,128\]\S* fusion\(", executable.hlo_text())
    assert not executable.collectives()

"""`python -m examples.export`: what it writes parses, names every argument, and donates the whole state."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from examples import export
from examples.models import convnet, gpt, mlp
from rhino.dialect.context import make_context, parse_file

ROOT = Path(__file__).parents[3]
MODELS = {"gpt": gpt, "mlp": mlp, "convnet": convnet}


def main_arguments(module: Any) -> list[dict[str, Any]]:
    main = next(op for op in module.body.operations if op.operation.name == "func.func" and op.sym_name.value == "main")
    return [{attr.name: attr.attr for attr in attrs} for attrs in main.arg_attrs]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suffix", [".mlir", ".mlirbc"])
def test_export_parses_and_describes_every_argument(
    name: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"step{suffix}"
    export.main([name, "--batch", "4", "-o", str(path)])
    assert f"{path}: " in capsys.readouterr().out

    module = parse_file(path, make_context())
    assert module.operation.verify()
    config = MODELS[name].PRESETS["tiny"]
    state, batch = MODELS[name].abstract_inputs(config, 4)
    arguments = main_arguments(module)
    names = [argument["rhino.name"].value for argument in arguments]
    assert names == export.argument_names(lambda state, batch: None, (state, batch))
    assert len(set(names)) == len(names)
    donated = ["tf.aliasing_output" in argument for argument in arguments]
    count = len(jax.tree.leaves(state))
    assert donated == [True] * count + [False] * (len(arguments) - count)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (n in ("unet", "wide_resnet", "vit", "t5"))) for n in export.MODELS],
)
def test_rhino_opt_finds_the_roles_of_the_arguments(name: str, tmp_path: Path) -> None:
    if name == "lstm":
        pytest.importorskip("equinox")
    path = tmp_path / "step.mlir"
    export.main([name, "--batch", "8", "-o", str(path)])
    command = [sys.executable, "-m", "rhino.cli.opt", str(path), "--rhino-classify-args"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    roles = dict(re.findall(r'rhino\.name = "([^"]*)", rhino\.role = "(\w+)"', done.stdout))
    module = importlib.import_module(f"examples.models.{name}")
    names = export.argument_names(lambda state, batch: None, module.abstract_inputs(module.PRESETS["tiny"], 8))
    assert list(roles) == names
    for argument, role in roles.items():
        if argument.startswith("batch["):
            assert role == "batch", argument
        elif argument.startswith("state.params"):
            assert role == "param", argument
        else:
            # Adafactor keeps an unused place of one element for what it does not factor.
            assert role == "opt_state" or (name == "t5" and "v_" in argument), argument


@pytest.mark.parametrize(("name", "preset"), [("moe", "70b"), ("wide_resnet", "13b"), ("llama", "llama2-70b")])
def test_large_models_are_exported_from_shapes_alone(name: str, preset: str, tmp_path: Path) -> None:
    path = tmp_path / "step.mlirbc"
    export.main([name, "--preset", preset, "--scan", "--remat", "-o", str(path)])
    assert path.stat().st_size < 2e6
    names = [argument["rhino.name"].value for argument in main_arguments(parse_file(path, make_context()))]
    assert len(names) == len(set(names)) > 30


def test_names_are_those_that_jax_prints(tmp_path: Path) -> None:
    config = gpt.PRESETS["tiny"]
    inputs = gpt.abstract_inputs(config, 2)
    train_step = gpt.make_train_step(config)[1]
    text = jax.jit(train_step, keep_unused=True).lower(*inputs).as_text(debug_info=True)
    names = export.argument_names(train_step, inputs)
    assert "state.params['h_0']['attn']['query']['kernel']" in names
    for name in names:
        assert f'loc("{name}")' in text


def test_options_change_the_program(tmp_path: Path) -> None:
    sizes = {}
    for options in (["--scan"], ["--no-scan"], ["--remat"], ["--dtype", "bf16"], ["--no-tied"]):
        path = tmp_path / "gpt.mlir"
        export.main(["gpt", "--batch", "2", "--seq", "32", *options, "-o", str(path)])
        sizes[" ".join(options)] = text = path.read_text()
        assert "tensor<2x33xi32>" in text
    assert "stablehlo.while" in sizes["--scan"]
    assert "stablehlo.while" not in sizes["--no-scan"]
    assert "optimization_barrier" in sizes["--remat"]
    assert "bf16" in sizes["--dtype bf16"]
    assert "lm_head" in sizes["--no-tied"]


def test_set_changes_any_field_and_the_batch_defaults_to_the_presets(tmp_path: Path) -> None:
    path = tmp_path / "gpt.mlir"
    export.main(["gpt", "--fused", "--set", "layers=1", "--set", "seq-len=16", "-o", str(path)])
    text = path.read_text()
    assert f"tensor<{gpt.BATCH['tiny']}x17xi32>" in text
    assert "['h_0']['attn']['qkv']['kernel']" in text
    assert "['h_1']" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt", "--preset", "9b"], "no preset '9b' of gpt; it has: tiny"),
        (["mlp", "--seq", "8"], "no option seq_len"),
        (["unet", "--scan"], "the unet model has no option scan"),
        (["gpt", "--set", "depth=3"], "no option depth"),
        (["moe", "--set", "routing=hash"], "it must be 'einsum', 'sort' or 'ragged'"),
    ],
)
def test_bad_options_name_the_remedy(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        export.main([*arguments, "-o", str(tmp_path / "x.mlir")])
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_175b_model_is_exported(tmp_path: Path) -> None:
    path = tmp_path / "gpt175b.mlirbc"
    command = [sys.executable, "-m", "examples.export", "gpt", "--preset", "175b", "--batch", "256", "--remat"]
    subprocess.run([*command, "-o", str(path)], cwd=ROOT, check=True, timeout=300)
    arguments = main_arguments(parse_file(path, make_context()))
    # step, Adam's count, tokens; and 16 tensors a layer, 2 embeddings and the last norm, three times.
    assert len(arguments) == 3 + 3 * (16 * 96 + 4)

"""The scripts a new user runs, as they are run: in a process of their own, on 8 virtual CPU devices."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(script: str, *arguments: str, timeout_s: float = 300) -> str:
    """What `python -m examples.SCRIPT` prints on 8 virtual devices; fails if it does."""
    command = [sys.executable, "-m", f"examples.{script}", "--cpu-devices", "8", *arguments]
    # The devices come from the option alone, whatever the tests' own environment asks of XLA.
    env = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step +\d+ +loss (\S+)", output, re.MULTILINE)]


def test_training_shows_its_plan_and_agrees_with_one_device(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    output = run("train_gpt", "--preset", "tiny", "--steps", "12", "--check", "--compare", "--save-plan", str(path))
    assert "120,576 parameters on 8 x cpu" in output
    assert len(losses(output)) == 12
    assert losses(output)[-1] < losses(output)[0] - 1
    assert "largest relative difference of the 12 losses" in output
    assert "state.params['wte']['embedding']" in output
    plan = json.loads(path.read_text())
    assert math.prod(size for _, size in plan["mesh"]) == 8
    named = {argument["name"] for argument in plan["arguments"] if argument["role"] == "param"}
    assert len(named) == 2 * 16 + 4, "the 16 tensors of each layer, the two embeddings, and the last norm"


@pytest.mark.long
def test_plain_jit_with_the_plans_shardings_agrees_with_rhino() -> None:
    options = ("--preset", "tiny", "--steps", "5")
    planned, plain = losses(run("train_gpt", *options)), losses(run("plain_jit", *options))
    assert len(planned) == len(plain) == 5
    assert plain == pytest.approx(planned, rel=2e-4)  # printed to four decimals


@pytest.mark.long
def test_evaluation_follows_training() -> None:
    output = run("eval_gpt", "--preset", "tiny", "--steps", "30")
    before, after = (float(bits) for bits in re.findall(r": (\S+) bits per byte", output))
    assert before == pytest.approx(8, abs=0.1), "an untrained model knows nothing: 8 bits for each byte"
    assert after < 5.5


@pytest.mark.long
def test_the_10m_model_trains_20_steps_with_single_device_losses() -> None:
    output = run("train_gpt", "--preset", "10m", "--steps", "20", "--check", timeout_s=1800)
    assert re.search(r"GPT with 10,\d{3},\d{3} parameters", output)
    assert len(losses(output)) == 20

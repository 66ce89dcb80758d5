"""`rhino cluster`: tables for people, JSON and YAML that load back, and one-line errors."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rhino.cli import cluster as command
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.catalog import preset_names


def rhino(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="rhino")
    command.add_parser(parser.add_subparsers(dest="command"))
    return command.run(parser.parse_args(["cluster", *words]))


def test_list_shows_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert rhino("list") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in preset_names())
    assert "8 x 50 GB/s" in shown


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert rhino("list", "--json", "-") == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in data["clusters"]] == list(preset_names())
    assert all(entry["memory_bytes"] > 0 for entry in data["clusters"])


def test_show_gives_each_value_with_its_unit_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert rhino("show", "dgx-h100:4") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("dgx-h100:4" in line for line in lines)
    assert any("peak bf16" in line and "989.4 TFLOP/s" in line and "white paper" in line for line in lines)
    assert any("memory" in line and "79.1 GiB" in line and "XLA" in line for line in lines)
    assert any("inter-host" in line and "joins 32 devices" in line and "ConnectX-7" in line for line in lines)


def test_show_as_json_to_a_file_is_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"
    assert rhino("show", "p3.8xlarge:2", "--json", str(path)) == 0
    assert "p3.8xlarge:2" in capsys.readouterr().out
    data = json.loads(path.read_text())
    cluster = Cluster.load("p3.8xlarge:2")
    assert data["digest"] == cluster.digest()
    assert data["num_devices"] == 8
    del data["digest"], data["num_devices"]
    assert Cluster.from_dict(data) == cluster


def test_show_as_yaml_is_a_file_to_edit_and_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rhino("show", "dgx-a100:2", "--yaml") == 0
    path = tmp_path / "mine.yaml"
    path.write_text(capsys.readouterr().out)
    assert Cluster.load(path) == Cluster.load("dgx-a100:2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "dgx-h101"), "did you mean dgx-h100"),
        (("show", "cpu", "--json", "/none/c.json"), "/none/c.json: cannot write"),
        (("calibrate", "--devices", "0"), "--devices 0 is not a positive integer"),
        (("calibrate", "-o", "/none/c.yaml"), "/none/c.yaml: no folder /none"),
        (("calibrate", "--processes", "2"), "--coordinator, --processes and --process are given together"),
        (("calibrate", "--name", "a:2"), "--name 'a:2' is empty or contains a colon"),
    ],
)
def test_errors_are_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(RhinoError) as caught:
        rhino(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_calibrate_writes_a_file_that_loads(tmp_path: Path) -> None:
    code = (
        "import argparse, sys; from rhino.cli import cluster as c; from rhino.machine import calibrate as k; "
        "k.CPU = k.Experiments(32, 1 << 16, (1 << 10,), 0.0); "
        "p = argparse.ArgumentParser(); c.add_parser(p.add_subparsers()); sys.exit(c.run(p.parse_args(sys.argv[1:])))"
    )
    path = tmp_path / "m.yaml"
    words = ["cluster", "calibrate", "-o", str(path), "--name", "mine", "--devices", "2", "--json", "-"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    result = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    cluster = Cluster.load(path)
    assert json.loads(result.stdout)["digest"] == cluster.digest()
    assert cluster.name == "mine:1"
    assert cluster.num_devices == 2
    assert f"wrote {path}" in result.stderr

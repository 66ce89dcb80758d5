"""`rhino reshard`: docs/design/resharding.md, "Closed cases", JSON, placement on hosts, and one-line errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rhino.cli.main import main
from rhino.machine import Cluster

CASE = ["--shape", "1024,1024,512", "--dtype", "i32", "--src-mesh", "2x4", "--src-spec", "R,S0,R"]
CASE += ["--dst-mesh", "2x4", "--dst-spec", "S0,R,R"]
BYTES = 4 * 1024 * 1024 * 512


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """Four hosts of four devices whose NICs start at once and carry the tensor in a second."""
    data = Cluster.load("p3.8xlarge:4").to_dict()
    data["name"] = "unit"
    for level in data["levels"]:
        level["latency_s"] = 0.0
    data["levels"][1]["bandwidth_bytes_s"] = float(BYTES)
    path = tmp_path / "unit.yaml"
    Cluster.from_dict(data).save(path)
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["reshard", *arguments, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    data: dict[str, Any] = json.loads(out)
    return data


@pytest.mark.parametrize(
    ("source", "target", "send_recv", "naive", "bound"),
    [
        (("2x4", "S0,R,R"), ("2x4", "S0,R,R"), 2, 1 / 2, 1 / 2),
        (("2x4", "R,R,R"), ("2x4", "S0,R,R"), 2, 1, 1 / 2),
        (("2x4", "R,S0,R"), ("2x4", "S0,R,R"), 2, 3 / 4, 1 / 2),
        (("2x4", "R,S01,R"), ("2x4", "S01,R,R"), 1 / 2, 15 / 16, 1 / 2),
        (("1x4", "S1,R,R"), ("2x4", "R,R,R"), 8, 1, 1),
    ],
)
def test_the_cases_of_the_design(
    source: tuple[str, str], target: tuple[str, str], send_recv: float, naive: float, bound: float,
    cluster: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ends = ["--src-mesh", source[0], "--src-spec", source[1], "--dst-mesh", target[0], "--dst-spec", target[1]]
    case = [*CASE[:4], *ends, "--cluster", cluster]
    best = planned(capsys, *case)
    assert (best["makespan_s"], best["bound_s"], best["gap"]) == (bound, bound, 0.0)
    assert planned(capsys, *case, "--strategy", "send-recv")["makespan_s"] == send_recv
    assert planned(capsys, *case, "--scheduler", "naive")["makespan_s"] == naive


def test_json(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = planned(capsys, *CASE, "--cluster", cluster)
    units = data.pop("units")
    chunks = data.pop("chunks")
    assert data == {
        "schema": 1,
        "strategy": "broadcast",
        "scheduler": "optimal",
        "makespan_s": 0.5,
        "bound_s": 0.5,
        "bounds": {"recv": 0.5, "send": 0.5, "relay": 0.5, "unit": 0.25},
        "gap": 0.0,
        "bytes": BYTES,
        "hosts": [
            {"host": 0, "sends": BYTES // 2, "receives": 0},
            {"host": 1, "sends": BYTES // 2, "receives": 0},
            {"host": 2, "sends": 0, "receives": BYTES // 2},
            {"host": 3, "sends": 0, "receives": BYTES // 2},
        ],
    }
    assert chunks >= 1
    assert [unit["slice"] for unit in units] == [
        [[a, a + 512], [b, b + 512], [0, 512]] for a in (0, 512) for b in (0, 512)
    ]
    assert units[0]["holders"] == [0, 1, 2, 3] and units[3]["holders"] == [4, 5, 6, 7]
    assert units[0]["receivers"] == [8, 9, 10, 11] and units[3]["receivers"] == [12, 13, 14, 15]
    assert all(unit["sender"] in unit["holders"] for unit in units)
    assert sorted(unit["order"] for unit in units) == [0, 1, 2, 3]
    # What starts later comes later.
    starts = [unit["start_s"] for unit in sorted(units, key=lambda unit: unit["order"])]
    assert starts == sorted(starts) == [0.0, 0.0, 0.25, 0.25]


def test_meshes_begin_on_hosts(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = ["--shape", "8,8", "--src-mesh", "1", "--src-spec", "R,R", "--dst-spec", "R,R", "--cluster", cluster]
    (unit,) = planned(capsys, *one, "--dst-mesh", "3x2")["units"]
    assert (unit["holders"], unit["receivers"]) == ([0], [4, 5, 6, 7, 8, 9])
    # Two devices of each host: every row of the mesh is on one.
    data = planned(capsys, *one, "--dst-mesh", "3x2", "--per-host", "2")
    assert data["units"][0]["receivers"] == [4, 5, 8, 9, 12, 13]
    assert [host["receives"] for host in data["hosts"]] == [0, 256, 256, 256]
    scalar = planned(capsys, "--shape", "", *one[2:4], "--src-spec", "", "--dst-spec", "", "--dst-mesh", "2",
                     "--cluster", cluster, "--dtype", "int4")  # fmt: skip
    assert (scalar["bytes"], scalar["units"][0]["slice"]) == (1, [])


def test_table(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reshard", *CASE, "--cluster", cluster, "--compare"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "i32[1024,1024,512], 2 GiB: 2x4 R,S0,R -> 2x4 S0,R,R"
    assert lines[2] == "at the lower bound: no schedule is faster"
    assert "send-recv optimal 2 s 4" in lines
    assert "broadcast naive 750 ms 1.5" in lines
    assert "broadcast optimal 500 ms 1" in lines
    assert "0 1 GiB 0 B" in lines and "3 0 B 1 GiB" in lines
    assert any(line.startswith("0 0 0:512, 0:512, 0:512") and line.endswith("0-3 8-11") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--scheduler", "naive"], "50.00% above the lower bound: at most so much could be saved"),
        (["--cluster", "p3.8xlarge:4"], "at the lower bound but for latency, which adds 0.01%"),
    ],
)
def test_what_the_bound_proves(
    arguments: list[str], line: str, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reshard", *CASE, "--cluster", cluster, *arguments]) == 0
    assert line in capsys.readouterr().out.splitlines()


def test_comparison_in_json_and_files(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["reshard", *CASE, "--cluster", cluster, "--compare", "--json", str(out), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    found = {(c["strategy"], c["scheduler"]): c["over_bound"] for c in json.loads(out.read_text())["comparison"]}
    assert len(found) == 4 + 5 - 1
    assert found["send-recv", "optimal"] == 4.0 and found["broadcast", "optimal"] == 1.0
    assert min(found.values()) == 1.0
    chunked = planned(capsys, *CASE, "--cluster", cluster, "--chunks", "3")
    assert chunked["chunks"] <= 3


@pytest.mark.parametrize(("given", "shown"), [("int32", "i32"), ("float8_e4m3fn", "f8E4M3FN"), ("bool", "i1")])
def test_types_of_numpy_are_read_and_shown_as_mlir_spells_them(
    given: str, shown: str, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reshard", *CASE, "--cluster", cluster, "--dtype", given]) == 0
    assert capsys.readouterr().out.startswith(f"{shown}[1024,1024,512], ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "1024,x"], "--shape '1024,x' is not a list of sizes; give numbers such as 1024,1024,512"),
        (["--shape", "4,-4,4"], "--shape '4,-4,4' is not a list of sizes"),
        (["--shape", "4,4"], "--src-spec: spec R,S0,R: 3 dimensions, but the tensor has 2"),
        (["--dtype", "int7"], "--dtype 'int7' is no element type; give f32, bf16, i32"),
        (["--dtype", "string"], "--dtype 'string' is no element type"),
        (["--src-mesh", "2y4"], "--src-mesh '2y4' is not a list of sizes; give numbers such as 2x4"),
        (["--dst-mesh", "0x4"], "--dst-mesh '0x4' is not a list of sizes"),
        (["--dst-mesh", ""], "--dst-mesh '' is not a list of sizes"),
        (["--src-spec", "S2,R,R"], "--src-spec: spec S2,R,R: dimension 0: mesh axis 2, but the mesh has 2 axes"),
        (["--dst-spec", "S0,S0,R"], "--dst-spec: spec S0,S0,R: mesh axis 0 is used twice"),
        (["--dst-spec", "X,R,R"], "--dst-spec: spec X,R,R: dimension 0: 'X' is no layout"),
        (["--cluster", "p3.8xlarge:3"], "the meshes take 4 hosts of 4 devices, but cluster p3.8xlarge:3 has 3"),
        (["--per-host", "2"], "the meshes take 8 hosts of 2 devices, but cluster unit:4 has 4"),
        (["--per-host", "5"], "--per-host 5, but hosts of cluster unit:4 have 4 devices"),
        (["--cluster", "nowhere"], "cluster 'nowhere': no such preset or file"),
        (["--strategy", "pigeon"], "strategy 'pigeon' is unknown; use one of send-recv"),
        (["--scheduler", "post"], "scheduler 'post' is unknown; use one of naive"),
        (["--chunks", "0"], "chunks: 0 is not a positive number"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json: cannot write there"),
    ],
)
def test_one_line_errors(arguments: list[str], message: str, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reshard", *CASE, "--cluster", cluster, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rhino reshard: error: ") and err.count("\n") == 1
    assert message in err


def test_the_command_loads_neither_jax_nor_mlir() -> None:
    program = (
        "import sys\nfrom rhino.cli.main import main\n"
        f"assert main({['reshard', *CASE, '--cluster', 'p3.8xlarge:4', '-q']!r}) == 0\n"
        "assert not {'jax', 'jaxlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr

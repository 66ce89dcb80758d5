"""The measuring itself: processes, rounds, tables and the JSON record."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench._common import BenchError, Table, check_losses, interleave, measure_all, publish, run, select, spread

ROOT = Path(__file__).resolve().parents[3]


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_run_returns_what_the_process_printed() -> None:
    ran = run(python("import sys; print('out'); print('err', file=sys.stderr)"))
    assert (ran.stdout, ran.stderr) == ("out\n", "err\n")
    assert ran.wall_s > 0


def test_run_sees_the_memory_of_the_child_alone() -> None:
    # In a process of its own: pytest's is large, and Linux reports at least the parent's memory of a child.
    program = """
import sys
from bench._common import run
programs = "pass", "held = bytearray(b'x') * (300 << 20)", "pass"
print(*(run([sys.executable, "-c", program]).peak_rss_bytes for program in programs))
"""
    done = subprocess.run(python(program), capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    small, large, after = map(int, done.stdout.split())
    assert large - small > 270 << 20
    # The usage is that child's, not the largest of all children so far.
    assert after < large - (200 << 20)


def test_run_names_the_command_and_its_message_when_it_fails() -> None:
    with pytest.raises(BenchError, match=r"exit code 3\nwrong input"):
        run(python("import sys; sys.exit(print('wrong input', file=sys.stderr) or 3)"))


def test_run_reports_a_killed_process() -> None:
    with pytest.raises(BenchError, match="exit code -6"):
        run(python("import os; os.abort()"))


def test_run_ends_a_process_that_takes_too_long() -> None:
    with pytest.raises(BenchError, match="not done after 0 s"):
        run(python("import time; time.sleep(60)"), timeout_s=0.2)


def test_interleave_rotates_the_order_and_gives_every_case_every_round() -> None:
    seen: list[str] = []
    cases = {name: (lambda name=name: float(seen.append(name) or len(seen))) for name in "abc"}
    found = interleave(cases, 3)
    assert "".join(seen) == "abcbcacab"
    assert {name: len(samples) for name, samples in found.items()} == {"a": 3, "b": 3, "c": 3}


@dataclass(frozen=True)
class Case:
    name: str


def test_select_takes_the_cases_that_contain_a_text() -> None:
    cases = [Case("gpt-small@a"), Case("gpt-large@a"), Case("mlp@b")]
    assert select(cases, None) == cases
    assert select(cases, ["large", "@b"]) == cases[1:]
    with pytest.raises(BenchError, match="no case contains x; there are gpt-small@a, gpt-large@a, mlp@b"):
        select(cases, ["x"])


def test_a_whole_name_selects_that_case_alone() -> None:
    cases = [Case("gpt@a"), Case("gpt@a-O2"), Case("mlp@a")]
    assert select(cases, ["gpt@a"]) == cases[:1]
    assert select(cases, ["gpt@a", "-O2"]) == cases[:2]


def test_a_case_that_fails_does_not_lose_the_others() -> None:
    def measure(case: Case) -> dict[str, str]:
        if case.name == "bad":
            raise BenchError("does not fit")
        return {"case": case.name}

    results, failures = measure_all([Case("a"), Case("bad"), Case("b")], measure)
    assert results == [{"case": "a"}, {"case": "b"}]
    assert failures == [{"case": "bad", "error": "does not fit"}]


def test_spread() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "rounds": 3}


def test_table_aligns_names_left_and_numbers_right() -> None:
    table = Table("Times", ("case", "s"), (("a", "1.00"), ("longer", "10.00")))
    assert str(table).splitlines() == ["Times", "-----", "case        s", "a        1.00", "longer  10.00"]


@pytest.fixture
def results() -> dict[str, object]:
    return {"cases": [{"name": "a", "wall_s": 1.5}]}


def test_publish_writes_one_json_record_with_the_facts_that_the_numbers_depend_on(
    tmp_path: Path, results: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep" / "record.json"
    publish("demo", argparse.Namespace(json=str(path), quick=True), results, [Table("T", ("c",), (("x",),))])
    record = json.loads(path.read_text())
    assert (record["schema"], record["bench"], record["quick"], record["results"]) == (1, "demo", True, results)
    assert record["command"][:3] == ["python", "-m", "bench.demo"]
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["versions"]["jax"]
    assert "T\n-\nc\nx" in capsys.readouterr().out


def test_publish_to_stdout_prints_json_and_nothing_else(
    results: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    publish("demo", argparse.Namespace(json="-", quick=False), results, [Table("T", ("c",), ())])
    assert json.loads(capsys.readouterr().out)["results"] == results


def test_other_losses_than_expected_are_an_error() -> None:
    check_losses({"a": [2.0, 1.0, 0.5]}, [2.0, 1.0], "on one device", 1e-5)
    check_losses({"O1": [2.0, 1.0], "data": [2.0, 1.0005]}, [2.0, 1.0], "under O1", 1e-3)
    with pytest.raises(BenchError, match=r"a: the loss of step 1 is 1.1, and on one device 1.0"):
        check_losses({"a": [2.0, 1.1]}, [2.0, 1.0], "on one device", 1e-5)

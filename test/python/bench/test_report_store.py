"""Runs of benches are kept with what they depend on, and measuring goes on where it was."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench._common import BenchError
from bench.report import measure, store
from bench.report.benches import Bench, Part, benches

_COUNTING = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
path.write_text(str(int(path.read_text() or 0) + 1) if path.exists() else "1")
if sys.argv[2] == "bad":
    sys.exit("it does not fit")
if sys.argv[2] == "silent":
    sys.exit(print("skipped: no network here", file=sys.stderr))
results = {"calls": int(path.read_text()), "trials": [1], "a": [{"why": 1}]}
print(json.dumps({"machine": {"cores": 2}, "results": results}))
"""
_NOW = store.Commit("c" * 40, "2026-01-02T03:04:05Z", False)


class Counting(Bench):
    """A bench whose parts count, in a file of their own, how often they ran."""

    def command(self, part: Part) -> tuple[str, ...]:
        return ("python", "-c", _COUNTING, f"{self.module}/{part.name}", part.name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Counting("demo", (Part("a", "A"), Part("bad", "B"), Part("c", "C"), Part("silent", "D")), str(tmp_path))


def measured(bench: Bench, names: str, folder: Path, now: store.Commit = _NOW, resume: bool = False) -> list[str]:
    asked = [(bench, [part for part in bench.parts if part.name in names.split()])]
    return measure.measure_all(asked, lambda: now, resume, folder)


def calls(bench: Bench, folder: Path) -> dict[str, Any]:
    return {part: run.results["calls"] for part, run in store.load(bench.name, folder).items()}


def test_a_run_is_kept_with_its_commit_command_and_times(bench: Bench, tmp_path: Path) -> None:
    assert measured(bench, "a", tmp_path) == []
    (run,) = store.load("demo", tmp_path).values()
    assert (run.part, run.commit, run.committed, run.dirty) == ("a", _NOW.hash, _NOW.date, False)
    assert run.command[:2] == ("python", "-c")
    assert run.wall_s > 0
    assert run.cpu_s > 0
    assert run.machine == {"cores": 2}


def test_what_nobody_reads_is_not_kept(bench: Bench, tmp_path: Path) -> None:
    measured(bench, "a", tmp_path)
    assert store.load("demo", tmp_path)["a"].results == {"calls": 1, "a": [{}]}


def test_a_part_that_fails_loses_neither_the_others_nor_what_was_kept_of_it(bench: Bench, tmp_path: Path) -> None:
    old = store.Run("bad", "old", "2025", False, "2025", ("python",), 1.0, 1.0, {}, {"calls": 0})
    measure.keep(bench, old, tmp_path)
    assert measured(bench, "a bad c silent", tmp_path) == ["demo/bad", "demo/silent"]
    assert calls(bench, tmp_path) == {"a": 1, "bad": 0, "c": 1}


def test_a_part_without_a_record_says_why(bench: Bench) -> None:
    with pytest.raises(BenchError, match="demo/silent: no record; it says: skipped: no network here"):
        measure.measure(bench, bench.parts[3], _NOW)


def test_resuming_keeps_what_is_of_this_commit_and_measures_the_rest(bench: Bench, tmp_path: Path) -> None:
    measured(bench, "a", tmp_path)
    measured(bench, "a c", tmp_path, resume=True)
    assert calls(bench, tmp_path) == {"a": 1, "c": 1}
    measured(bench, "a c", tmp_path, replace(_NOW, hash="d" * 40), resume=True)
    assert calls(bench, tmp_path) == {"a": 2, "c": 2}
    (kept, *_) = store.load("demo", tmp_path).values()
    measure.keep(bench, replace(kept, command=("python", "other")), tmp_path)
    measured(bench, "a c", tmp_path, replace(_NOW, hash="d" * 40), resume=True)
    assert calls(bench, tmp_path) == {"a": 3, "c": 2}


@pytest.mark.parametrize(("then", "now"), [(True, False), (False, True)])
def test_resuming_measures_again_what_had_uncommitted_changes(
    bench: Bench, tmp_path: Path, then: bool, now: bool
) -> None:
    measured(bench, "a", tmp_path, replace(_NOW, dirty=then))
    measured(bench, "a", tmp_path, replace(_NOW, dirty=now), resume=True)
    assert calls(bench, tmp_path) == {"a": 2}


def test_runs_are_kept_in_the_order_of_the_parts(bench: Bench, tmp_path: Path) -> None:
    measured(bench, "c", tmp_path)
    measured(bench, "a", tmp_path)
    assert list(store.load("demo", tmp_path)) == ["a", "c"]
    text = store.path_of("demo", tmp_path).read_text()
    assert [line[:3] for line in text.splitlines()[1:3]] == ['"a"', '"c"']
    json.loads(text)


def test_parts_are_chosen_by_bench_and_text(bench: Bench) -> None:
    def names(*only: str) -> list[str]:
        return [part.name for _, parts in measure.chosen((bench,), only) for part in parts]

    assert names() == names("demo") == ["a", "bad", "c", "silent"]
    assert names("demo/a") == ["a"]  # not `bad`, for it is the whole name of a part
    assert names("demo/il", "demo/a") == ["a", "silent"]
    with pytest.raises(BenchError, match="no bench is named dem; there are demo"):
        names("dem")
    with pytest.raises(BenchError, match="no part of demo contains x; there are a, bad, c, silent"):
        names("demo/x")


@pytest.mark.parametrize("text", [
    "{", "[]", '{"schema": 0, "bench": "demo", "runs": {}}',
    '{"schema": 1, "bench": "demo", "runs": {"a": {"commit": "c", "command": []}}}',
])  # fmt: skip
def test_a_file_of_another_form_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    store.path_of("demo", tmp_path).write_text(text)
    with pytest.raises(BenchError, match=r"demo.json: not schema 1 .* run python -m bench.report --only demo"):
        store.load("demo", tmp_path)


def test_the_commit_is_the_last_that_changed_what_is_measured(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        options = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", "-C", tmp_path, *options, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(file: str, text: str) -> str:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git("add", "-A")
        git("commit", "-qm", text)
        return git("rev-parse", "HEAD")

    with pytest.raises(BenchError, match="not a git repository"):
        store.current(tmp_path)
    git("init", "-q")
    first = commit("python/rhino/a.py", "1")
    assert store.current(tmp_path).hash == first
    for file in ("docs/results.md", "README.md", "bench/results/demo.json", "bench/report/page.py", "test/python/a.py"):
        commit(file, "2")
        assert store.current(tmp_path).hash == first, file
    assert not store.current(tmp_path).dirty
    (tmp_path / "README.md").write_text("3")
    assert not store.current(tmp_path).dirty
    (tmp_path / "python/rhino/b.py").write_text("3")
    assert store.current(tmp_path).dirty
    assert commit("examples/a.py", "4") == store.current(tmp_path).hash


def test_every_part_has_a_name_and_a_label_of_its_own() -> None:
    known = benches()
    assert len({bench.name for bench in known}) == len(known)
    for bench in known:
        assert len({part.name for part in bench.parts}) == len(bench.parts), bench.name
        assert len({part.label for part in bench.parts}) == len(bench.parts), bench.name

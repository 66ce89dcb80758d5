"""The page of results, and the texts that quote it: what is wrong is found, and said with its place."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench._common import ROOT, BenchError
from bench._namespaces import available
from bench.report import page, texts
from bench.report.__main__ import check, write
from bench.report.benches import Bench, benches
from bench.report.store import Run, without
from bench.report.tables import Fact, Kept, ResultTable, Row, Section, clock, memory, sent, step

_MACHINE = {
    "cpu": "CPU", "cores": 2, "memory_bytes": 8 << 30, "load_1min": 0.5, "python": "3.11.7",
    "versions": {"jax": "0.10.2", "jaxlib": "0.10.2", "highspy": "1.15.1"},
}  # fmt: skip
_NAME = "cost_fidelity/gpt-1.3b-b64-remat@dgx-h100:1"


def fidelity(case: str, peak: float = 2.0**30) -> dict[str, Any]:
    return {
        "cases": [
            {
                "case": case, "mesh": [["x", 8]], "predicted_peak_bytes": peak, "xla_peak_bytes": 2.0**31,
                "peak_ratio": peak / 2**31, "baseline_peak_ratio": 0.25, "comm_ratio": 0.5, "baseline_comm_ratio": 3.0,
                "predicted_comm_bytes": {"all-reduce": 1e9}, "xla_comm_bytes": {"all-reduce": 2e9},
            }
        ]
    }  # fmt: skip


def run(part: str, results: dict[str, Any], **changes: Any) -> Run:
    made = Run(part, "a" * 40, "2026-01-01T00:00:00Z", False, "2026-01-03T04:05:06Z", (), 1.0, 1.0, _MACHINE, results)
    return replace(made, **changes)


def kept(*runs: Run) -> Kept:
    known = benches()
    found: dict[str, dict[str, Run]] = {bench.name: {} for bench in known}
    found["cost_fidelity"] = {run.part: run for run in runs}
    return Kept(known, found)


@pytest.fixture
def parts() -> list[str]:
    return [part.name for bench in benches() if bench.name == "cost_fidelity" for part in bench.parts]


def line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_page_without_results_says_what_to_run() -> None:
    text = page.render(kept())
    assert "- Predicted against XLA: `python -m bench.report --only cost_fidelity`" in text
    assert "Measured on" not in text
    assert page.figures(kept()) == {}


def test_a_row_shows_the_figures_and_what_is_missing_is_listed(parts: list[str]) -> None:
    results = kept(run(parts[1], fidelity(parts[1])))
    text = page.render(results)
    assert line(text, "| GPT 1.3 B, 8 H100") == (
        "| GPT 1.3 B, 8 H100 | 8 | 1.00 GiB | 2.00 GiB | 0.50 | 0.25 | 1.00 GB | 2.00 GB | 0.500 | 3.00 |"
    )
    assert page.figures(results)[f"{_NAME}/peak"] == "1.00 GiB"
    assert "Not measured: GPT 10 M, 8 CPU devices; GPT 1.3 B, 128 H100; Wide-ResNet 13 B, 64 V100." in text
    assert "Measured on CPU, 2 cores, 8 GiB, Python 3.11.7, jax 0.10.2" in text
    assert "older" not in text


def test_results_of_an_older_commit_say_so(parts: list[str]) -> None:
    old = run(parts[1], fidelity(parts[1]), commit="b" * 40, committed="2025-12-31T00:00:00Z")
    text = page.render(kept(run(parts[0], fidelity(parts[0])), old))
    assert line(text, "| model |").endswith("| commit |")
    assert line(text, "| GPT 10 M").endswith("| `aaaaaaaaaa` |")
    assert line(text, "| GPT 1.3 B").endswith("| `bbbbbbbbbb`, older |")
    assert "commit `bbbbbbbbbb`, an older commit, 2026-01-03; commit `aaaaaaaaaa`, 2026-01-03." in text


def test_uncommitted_changes_and_a_busy_machine_are_said(parts: list[str]) -> None:
    busy = {**_MACHINE, "load_1min": 7.6}
    text = page.render(kept(run(parts[1], fidelity(parts[1]), dirty=True, machine=busy)))
    assert line(text, "| GPT 1.3 B").endswith("| `aaaaaaaaaa`, changed |")
    assert "with changes that were not committed" in text
    assert "load average up to 8" in text


def test_two_figures_of_one_name_are_an_error() -> None:
    row = Row("a b", "", ("1",), ())
    section = Section("s", (), "", "", (ResultTable("", (("x", ""),), (row, replace(row, key="a-b"))),))
    with pytest.raises(BenchError, match="two figures are named s/a-b/x"):
        section.figures()
    assert Section("s", (), "", "", (), (Fact("one two", "", "1"),)).figures() == {"s/one-two": "1"}


def test_formats() -> None:
    assert [clock(s) for s in (0.094, 9.994, 9.996, 1234.56)] == ["0.09 s", "9.99 s", "10.0 s", "1,234.6 s"]
    assert [step(s) for s in (0.00123, 0.0123, 0.3184, 1.5, 64.25, None)] == [
        "1.23 ms", "12.3 ms", "318 ms", "1,500 ms", "64.2 s", "–"]  # fmt: skip
    assert [memory(n) for n in (5 << 20, 3 << 29)] == ["5 MiB", "1.50 GiB"]
    assert [sent(n) for n in (5e6, 1.5e9)] == ["5.0 MB", "1.50 GB"]


FIGURES = {"a/b/c": "4.7 s", "a/b/d": "5.0 s"}


def quotes(text: str) -> list[str]:
    return list(texts.check_quotes("README.md", text, FIGURES))


def test_quotes_that_are_right_are_right_also_in_tables() -> None:
    text = "| GPT | <!-- result a/b/c -->4.7 s<!-- /result --> | <!-- result a/b/d -->5.0 s<!-- /result --> |"
    assert quotes(text) == []
    assert texts.updated(text, {"a/b/c": "1 s", "a/b/d": "2 s"}) == text.replace("4.7", "1").replace("5.0", "2")


@pytest.mark.parametrize("form", ["`{}`", "```\nfirst\n{}\n```"])
def test_a_quote_in_code_is_none(form: str) -> None:
    text = form.format("<!-- result a/b/c -->4.8 s<!-- /result -->")
    assert quotes(text) == []
    assert texts.updated(text, FIGURES) == text


def test_a_wrong_number_is_found_and_written() -> None:
    text = "first\n| <!-- result a/b/c -->4.8 s<!-- /result --> |"
    assert quotes(text) == ["README.md:2: a/b/c is 4.7 s, not 4.8 s; run python -m bench.report --write"]
    assert quotes(texts.updated(text, FIGURES)) == []


def test_an_unknown_name_is_found_with_those_near_to_it() -> None:
    (said,) = quotes("<!-- result a/b/e -->1 s<!-- /result -->")
    assert said.startswith("README.md:1: no result is named a/b/e; near are a/b/")
    (said,) = quotes("<!-- result xyzxyz -->1 s<!-- /result -->")
    assert said.endswith("python -m bench.report --list xyzxyz lists them")


@pytest.mark.parametrize("text", [
    "<!-- result a/b/c -->4.7 s", "4.7 s<!-- /result -->", "<!-- result -->4.7 s<!-- /result -->",
    "<!-- result a/b/c -->4.7\ns<!-- /result -->",
])  # fmt: skip
def test_half_a_quote_is_found(text: str) -> None:
    assert any("half a quote" in said for said in quotes(text))


@pytest.mark.parametrize("text", [
    "4.7 s", "about 4.7s long", "4,700 ms", "8.35 GiB", "12 MB", "3 %", "3%", "1.9 times as fast", "2.5x",
    "2.5× faster", "20 minutes", "3 hours", "a 10-second wait",
])  # fmt: skip
def test_a_number_with_a_unit_that_quotes_nothing_is_found(text: str) -> None:
    (said,) = texts.loose_numbers("README.md", f"one\n{text} two\n", ())
    assert said.startswith("README.md:2: no result is quoted by ")


@pytest.mark.parametrize("text", [
    "mesh 2x4", "8 H100", "GPT 1.3 B", "Python 3.11 to 3.13", "24 layers", "`sleep 5 s`", "```\n5 s\n```", "8 stages",
    "[x](a/5-s.md)", "<!-- result a/b/c -->4.7 s<!-- /result -->", "<!-- result a/b/c -->1.9<!-- /result --> times",
    "<!-- 5 s -->", "f32[8] scales", "2 steps", "12 GB/s",
])  # fmt: skip
def test_other_numbers_and_code_are_not(text: str) -> None:
    assert list(texts.loose_numbers("README.md", text, ())) == []


def test_a_number_is_allowed_with_a_reason_while_it_is_there() -> None:
    allowed = (texts.Allowed("README.md", "the size of a download", ("255 MB",)),)
    assert list(texts.loose_numbers("README.md", "takes 255 MB", allowed)) == []
    assert list(texts.loose_numbers("docs/index.md", "nothing", allowed)) == []
    (said,) = texts.loose_numbers("README.md", "nothing", allowed)
    assert "'255 MB'" in said
    assert len(list(texts.loose_numbers("README.md", "takes 255 MB in 3 s", allowed))) == 1


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(texts, "ALLOWED", ())
    return tmp_path


def test_check_finds_what_write_mends(site: Path, parts: list[str]) -> None:
    results = kept(run(parts[1], fidelity(parts[1])))
    readme, written = site / "README.md", site / "docs/results.md"
    readme.write_text(f"GPT: <!-- result {_NAME}/peak -->7 GiB<!-- /result -->\n")
    (site / "docs/index.md").write_text("takes 3 s\n")
    said = [problem.partition(": ")[0] for problem in check(results, site, written)]
    assert said == ["docs/results.md", "README.md:1", "docs/index.md:1"]
    assert write(results, site, written) == ["docs/results.md", "README.md"]
    assert "1.00 GiB" in readme.read_text()
    (left,) = check(results, site, written)
    assert left.startswith("docs/index.md:1: no result is quoted by 3 s")
    assert write(results, site, written) == []


def test_check_finds_an_edited_page_and_results_of_parts_that_are_no_more(site: Path, parts: list[str]) -> None:
    results = kept(run(parts[1], fidelity(parts[1])))
    written = site / "docs/results.md"
    write(results, site, written)
    written.write_text(written.read_text().replace("0.50", "0.51"))
    (said,) = check(results, site, written)
    assert said == "docs/results.md: it is not what the results give; run python -m bench.report --write"
    gone = kept(run("gone", fidelity("gone")))
    write(gone, site, written)
    (said,) = check(gone, site, written)
    assert said == "bench/results/cost_fidelity.json: the bench has no part gone; delete its line"


def test_many_cases_that_were_not_measured_are_a_number(parts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_LISTED", 1)
    text = page.render(kept(run(parts[1], fidelity(parts[1]))))
    assert "Not measured: 3 cases (`python -m bench.report --list`)." in text


def test_every_bench_is_on_the_page() -> None:
    shown = {name for section in page.sections(kept()) for name in section.benches}
    assert shown == {bench.name for bench in benches() if isinstance(bench, Bench)} - {"console"}


_PLAIN = ("scanned", "kernels", "pipeline", "cpu_mesh", "resharding", "pipeline_multihost", "plan_quality", "stages",
          "startup", "search_time", "cost_fidelity")  # fmt: skip
_QUICK = {
    **dict.fromkeys(_PLAIN, ()),
    "joint_search": ("--no-experts",),
    "train_cpu": ("--preset", "tiny", "--rounds", "2"),
}


# Not every machine lets them make network namespaces; no other bench may say nothing.
_OF_HOSTS = ("pipeline_multihost", "resharding")
_MISSING = available()


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(name in _OF_HOSTS and bool(_MISSING), reason=str(_MISSING)))
        for name in _QUICK
    ],
)
def test_a_record_of_every_bench_has_its_section(name: str) -> None:
    command = [sys.executable, "-m", f"bench.{name}", "--quick", "--json", "-", *_QUICK[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (bench,) = (bench for bench in benches() if bench.name == name)
    results = json.loads(done.stdout)["results"]
    if name == "plan_quality":  # its section is a grid of models and clusters
        results["cases"][0]["case"] = bench.parts[0].name
    everything = kept()
    runs = {**everything.runs, name: {bench.parts[0].name: run(bench.parts[0].name, without(results, bench.unread))}}
    (section,) = (section for section in page.sections(Kept(everything.benches, runs)) if section.benches == (name,))
    assert section.figures()

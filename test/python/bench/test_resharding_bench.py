"""bench.resharding: workers answer or the bench says why not; plans are the design's; all ways arrive and are timed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bench import resharding
from bench._common import BenchError
from bench._crew import Crew
from bench._namespaces import available, network

ROOT = Path(__file__).resolve().parents[3]
MISSING = available()
needs_network = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

WORKER = """
    import time
    from bench._crew import serve

    class Worker:
        def __init__(self, first):
            self.first = first

        def this(self, did="this"):
            print("what libraries print is no answer")
            return {"index": self.first["index"], "count": self.first["count"], "text": self.first["text"], "did": did}

        def that(self):
            return self.this("that")

        def fail(self):
            if self.first["index"] == 1:
                raise ValueError("it went wrong")
            return {}

        def hang(self):
            if self.first["index"] == 2:
                time.sleep(1000)
            return {}

        def leave(self):
            if self.first["index"] == 0:
                raise SystemExit(5)
            return {}

    serve(Worker)
"""


@needs_network
def test_a_crew_answers_in_order_or_says_which_process_did_not(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "echoing.py").write_text(textwrap.dedent(WORKER), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with network(3) as hosts:
        crew = Crew(hosts, "echoing", {"text": "a"})
        for did in ("this", "that"):
            found = crew.ask({"do": did}, 60)
            assert found == [{"index": i, "count": 3, "text": "a", "did": did} for i in range(3)]
        with pytest.raises(BenchError, match=r"(?s)process 1: .*it went wrong"):
            crew.ask({"do": "fail"}, 60)
        assert hosts.started == []
        with pytest.raises(BenchError, match="no answer of process 2 after 1 s"):
            Crew(hosts, "echoing", {"text": "a"}).ask({"do": "hang"}, 1)
        with pytest.raises(BenchError, match="process 0: it ended"):
            Crew(hosts, "echoing", {"text": "a"}).ask({"do": "leave"}, 60)


def _rows(**seconds: float) -> dict[str, Any]:
    return {way: {"seconds": {"min": s}, "over_bound": s} for way, s in seconds.items()}


def test_targets_are_of_the_best_rounds_and_large_tensors() -> None:
    case = next(case for case in resharding.CASES if case.sends / case.bound >= 8)
    names = [name for name, _, _ in resharding._WAYS]
    rows = _rows(**dict.fromkeys(names, 2.0)) | _rows(**{resharding._SENDS: 8.0, resharding._OPTIMAL: 1.2})
    large = 64 << 20
    assert resharding.targets(rows, case, large) == {
        "within 1.25 of bound": True,
        "never slower": True,
        "6 x send-recv": True,
    }
    assert resharding.targets(rows, case, large - 1) == {}
    slow = rows | _rows(**{resharding._OPTIMAL: 1.3, "local all-gather": 1.2, resharding._SENDS: 7.0})
    assert set(resharding.targets(slow, case, large).values()) == {False}
    less = dataclasses.replace(case, sends=2 * case.bound)
    assert "6 x send-recv" not in resharding.targets(rows, less, large)


@pytest.mark.parametrize("case", resharding.CASES, ids=lambda case: case.name)
def test_plans_are_what_the_design_says(case: resharding.Case) -> None:
    """docs/design/resharding.md, "Closed cases", by the planner: the optimum is the bound, and what send-recv takes."""
    from fractions import Fraction
    from math import prod

    from rhino.reshard.data import MovedTensor, Network, Tile
    from rhino.reshard.plan import plan_reshard

    def tiles(side: resharding.Side, first: int) -> tuple[Tile, ...]:
        found = []
        for number in range(prod(side.mesh)):
            at = dict(zip("ab", divmod(number, side.mesh[1]), strict=True))
            bounds = []
            for axes in side.spec:
                parts, index = 1, 0
                for axis in axes:
                    size = side.mesh["ab".index(axis)]
                    parts, index = parts * size, index * size + at[axis]
                bounds.append((16 * index // parts, 16 * (index + 1) // parts))
            found.append(Tile(first + number, tuple(bounds)))
        return tuple(found)

    first = -(-prod(case.source.mesh) // case.devices) * case.devices
    tensor = MovedTensor((16, 16, 16), 4, tiles(case.source, 0), tiles(case.target, first))
    hosts = range(case.hosts)
    network = Network(
        {device: device // case.devices for device in range(case.hosts * case.devices)},
        {host: Fraction(tensor.nbytes) for host in hosts},
    )
    best = plan_reshard([tensor], network, "broadcast", "optimal")
    assert best.bound_s == best.makespan_s == Fraction(case.bound)
    assert plan_reshard([tensor], network, "send-recv", "optimal").makespan_s == Fraction(case.sends)


@needs_network
@pytest.mark.long
def test_every_way_of_a_small_case() -> None:
    argv = [sys.executable, "-m", "bench.resharding", "--quick", "--mib", "1", "--json", "-"]
    done = subprocess.run(
        [*argv, "--only", "(2,4) R S0 R", "--only", "(2,2)"], capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert results["failures"] == []
    names = {name for name, _, _ in resharding._WAYS}
    first, second = results["cases"]
    assert set(first["ways"]) == names | {resharding.PEER}
    assert set(second["ways"]) == names
    assert second["peer"] == "not supported"
    assert first["ways"][resharding._OPTIMAL]["planned_s"] == pytest.approx(first["bound_s"])

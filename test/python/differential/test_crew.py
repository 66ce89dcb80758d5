"""A child that dies or hangs is one outcome, and the next program gets another child."""

from __future__ import annotations

import sys

from bench.differential.crew import Child
from bench.differential.report import Tally, cause

# Answers as `bench.differential.child` does; the program's text says what becomes of it.
SCRIPT = """
import json, os, sys, time
for line in sys.stdin:
    told = json.loads(line)
    print(json.dumps({"ready": told["name"]}), flush=True)
    for place in told["places"]:
        if told["text"] == "abort" and place == "b":
            print("F0 Check failed: it broke", file=sys.stderr, flush=True)
            os.abort()
        if told["text"] == "hang" and place == "b":
            time.sleep(60)
        print(json.dumps({"kind": "right", "detail": "", "split": 1}), flush=True)
"""


def child(timeout_s: float = 20.0) -> Child:
    return Child(timeout_s, argv=(sys.executable, "-c", SCRIPT))


def kinds(of: Child, text: str) -> list[str]:
    return [found["kind"] for found in of.outcomes({"from": "text", "name": "p", "text": text}, ["a", "b", "c"])]


def test_death_and_what_it_said() -> None:
    one = child()
    found = list(one.outcomes({"from": "text", "name": "p", "text": "abort"}, ["a", "b", "c"]))
    assert [f["kind"] for f in found] == ["right", "died", "right"]
    assert "SIGABRT" in found[1]["detail"]
    assert "Check failed" in found[1]["detail"]
    assert kinds(one, "fine") == ["right"] * 3
    one.close()


def test_hanging() -> None:
    one = child(1.0)
    assert kinds(one, "hang") == ["right", "hung", "right"]
    one.close()


def test_answers_nobody_waited_for_are_not_taken_for_the_next_ones() -> None:
    one = child()
    assert next(iter(one.outcomes({"from": "text", "name": "p", "text": "fine"}, ["a", "b"])))["kind"] == "right"
    assert kinds(one, "fine") == ["right"] * 3
    one.close()


def test_failures_are_counted_by_cause() -> None:
    tally = Tally()
    tally.program(["stablehlo.add"])
    for line in (3, 4):
        tally.outcome("a", {"kind": "unlocated", "detail": f"x.mlir:{line}:1: value %{line} is odd", "split": 0})
    tally.outcome("b", {"kind": "wrong", "detail": "result 0: 3 of 4", "split": 1})
    tally.outcome("b", {"kind": "refused", "detail": "x.mlir:1:1: no", "split": 0})
    assert tally.bad == 3
    assert tally.to_json()["causes"][0] == {"kind": "unlocated", "text": "value _ is odd", "count": 2}
    assert cause({"kind": "wrong", "detail": "anything"}) == ("wrong", "")

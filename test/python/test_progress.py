"""What takes longer than a second says so on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import time
from typing import Any

import jax
import numpy as np
import pytest

import rhino
from rhino import progress
from rhino.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal, and no wait before something is shown. In the test: pytest sets its own before."""
    shown = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", shown)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def _until_shown(shown: Progress) -> None:
    deadline = time.monotonic() + 10
    while shown._bar is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert shown._bar is not None


def test_says_what_it_is_and_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _as_terminal(monkeypatch)
    with Progress("planning") as shown:
        _until_shown(shown)
        assert (shown._bar.tasks[0].description, shown._bar.tasks[0].total) == ("planning", None)  # type: ignore[union-attr]
        shown(2, 4, "mesh 2x4")
        task = shown._bar.tasks[0]  # type: ignore[union-attr]
        assert (task.completed, task.total, task.description) == (2, 4, "mesh 2x4")
        with Progress("inside another") as inner:
            assert inner._timer is None
    assert "planning" in terminal.getvalue()


def test_nothing_of_what_is_short_and_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = _as_terminal(monkeypatch)
    monkeypatch.setattr(progress, "QUIET_S", 60.0)
    with Progress("short"):
        pass
    with Progress("quiet", quiet=True) as shown:
        assert shown._timer is None
    assert terminal.getvalue() == ""
    monkeypatch.undo()
    with Progress("no terminal") as shown:
        assert shown._timer is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stages", [1, 2])
def test_planning_compiling_and_making_the_state_are_shown(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Told(Progress):
        def __init__(self, what: str, quiet: bool = False) -> None:
            super().__init__(what, quiet)
            told.append(what)

    for module in ("parallelized", "build", "built"):
        monkeypatch.setattr(f"rhino.api.{module}.Progress", Told)

    def train(w: Any, x: jax.Array) -> Any:
        return [a - 0.1 * g for a, g in zip(w, jax.grad(lambda w: ((x @ w[0] @ w[1]) ** 2).sum())(w), strict=True)]

    def init(key: jax.Array) -> list[jax.Array]:
        return [jax.random.normal(key, (4, 4))] * 2

    step = rhino.parallelize(train, cluster="cpu:1", stages=stages)
    x = np.ones((4, 4), np.float32)
    step.plan(jax.eval_shape(init, jax.random.key(0)), x)
    step.place(step(step.init(init, jax.random.key(0)), x))
    assert set(told) == {"planning train", "compiling train", "making the state", "placing the state"}

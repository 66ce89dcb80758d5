"""A pass that has the pass manager run others: they are steps as all others, and what ends them comes to the pass."""

from __future__ import annotations

from typing import ClassVar

import pytest
from jaxlib.mlir import ir
from test_pass_manager import Mark, module, operations

from rhino.deadline import Deadline
from rhino.ir.diagnostics import Diagnostic
from rhino.ir.session import Session
from rhino.passes.pass_manager import Instrumentation, PassManager, PassStep, PipelineError
from rhino.passes.registry import Pass, PassError, PassLog, register

__all__ = ["module"]


@register
class Outer(Pass):
    """Have the marks made, go on without them, or fail as they do."""

    name: ClassVar[str] = "rhino-outer"
    runs: ClassVar[tuple[str, ...]] = ("rhino-mark", "cse")

    fail: str = ""
    forgives: bool = False

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Run two others."""
        try:
            self.run_pipeline(["cse", Mark(self.fail)], module, log, Session(deadline=Deadline(at_s=7.0)))
        except PassError as error:
            if not self.forgives:
                raise
            log.remark(module, f"forgiven: {error.message}")
        log.count("outer")


class Recorder(Instrumentation):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def before(self, step: PassStep, module: ir.Module) -> None:
        self.seen.append(f"before {step.name}")

    def after(self, step: PassStep, module: ir.Module, failed: bool) -> None:
        self.seen.append(f"after {step.name}{' failed' if failed else ''}")


def test_passes_within_a_pass_are_steps_like_all_others(module: ir.Module) -> None:
    hook = Recorder()
    result = PassManager(module.context).add(Outer()).run(module, instrumentations=[hook])
    assert hook.seen == [
        "before rhino-outer", "before cse", "after cse", "before rhino-mark", "after rhino-mark", "after rhino-outer",
    ]  # fmt: skip
    assert result.statistics == [("rhino-mark", {"marked": 1}), ("rhino-outer", {"outer": 1})]
    assert [name for name, _ in result.timings_s] == ["rhino-outer", "cse", "rhino-mark"]
    assert sum("marked" in op.attributes for op in operations(module)) == 1


def test_time_is_told_once(module: ir.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("rhino.passes.pass_manager.time.perf_counter", lambda: float(next(ticks)))
    # The outer pass begins at 0 and ends at 5; within it the others take a second each.
    result = PassManager(module.context).add(Outer()).run(module)
    assert result.timings_s == [("rhino-outer", 3.0), ("cse", 1.0), ("rhino-mark", 1.0)]


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("pass-error", "size 15 is not divisible by 8"),
        ("rhino-error", "'rhino-outer': no mesh fits"),
        ("bug", "'rhino-outer': unexpected KeyError"),
    ],
)
def test_an_error_within_is_one_at_its_place(module: ir.Module, fail: str, said: str) -> None:
    hook, heard = Recorder(), list[Diagnostic]()
    with pytest.raises(PipelineError) as raised:
        PassManager(module.context).add(Outer(fail)).run(module, heard.append, [hook])
    (error,) = raised.value.diagnostics
    assert said in error.message and error.position.line == 4
    assert hook.seen[-2:] == ["after rhino-mark failed", "after rhino-outer failed"]
    assert [d.severity for d in heard] == ["remark", "error"]


def test_a_pass_may_go_on_after_an_error_within(module: ir.Module) -> None:
    heard = list[Diagnostic]()
    PassManager(module.context).add(Outer("pass-error", forgives=True)).run(module, heard.append)
    assert [d.message for d in heard] == ["marked it", "forgiven: size 15 is not divisible by 8"]


def test_a_pass_runs_only_what_it_says(module: ir.Module) -> None:
    @register
    class Silent(Outer):
        """As the other."""

        runs: ClassVar[tuple[str, ...]] = ("cse",)

    with pytest.raises(PipelineError, match="'rhino-outer' does not say that it runs 'rhino-mark'"):
        PassManager(module.context).add(Silent()).run(module)


def test_what_may_run_is_known_before(module: ir.Module) -> None:
    manager = PassManager(module.context).add("rhino-inline").add("rhino-plan-parallelism")
    assert manager.names[:3] == ("rhino-inline", "rhino-plan-parallelism", "rhino-expose-strided-dims")
    assert "rhino-form-fragments" in manager.names and "sdy-propagation-pipeline" in manager.names
    assert [step.name for step in manager.steps] == ["rhino-inline", "rhino-plan-parallelism"]

"""What plans look like to people: the summary and the page, with and without XLA's measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from rhino.api.plan import Plan
from rhino.machine.units import nbytes, seconds
from rhino.plan import Alternative, Predicted, Search, Tensor
from rhino.report.groups import group
from rhino.report.units import device_bytes, percent, sharding_text

GIB = 1 << 30


@pytest.fixture
def plan() -> Plan:
    layers = tuple(
        Tensor(f"state.params['h_{i}']['mlp']['kernel']", "param", (384, 1536), "f32", ((), ("x",))) for i in range(6)
    )
    others = (
        Tensor("state.params['<wte>']", "param", (512, 384), "bf16", (("x", "y"), ())),
        Tensor("state.opt_state[0].count", "opt_state", (), "i32", ()),
        Tensor("batch['tokens']", "batch", (64, 128), "i32", (("x", "y"), ())),
    )
    return Plan(
        level="O1",
        cluster="dgx-h100:1",
        mesh=(("x", 2), ("y", 4)),
        stages=1,
        microbatches=1,
        schedule="none",
        arguments=layers + others,
        outputs=(),
        predicted=Predicted(
            1.5e-3, 1.25e-3, 0.5e-3, 0.0, 3 * GIB, {"all-reduce": 1000, "all-gather": 0}, {"all-reduce": 3},
            {"argument_bytes": GIB, "output_bytes": GIB, "temp_bytes": GIB},
        ),
        search=Search(12, 0.05),
        alternatives=(
            Alternative("mesh 8x1", "20.0% slower", 1.8e-3, 2 * GIB),
            Alternative("mesh 1x8", "needs 83.1 GiB of 80.0 GiB", None, None),
        ),
    )  # fmt: skip


@pytest.fixture
def executable() -> Any:
    memory = SimpleNamespace(
        peak_bytes=2 * GIB, argument_bytes=GIB, output_bytes=GIB, temp_bytes=2 * GIB, alias_bytes=0, host_bytes=0
    )
    moves = [("all-reduce", 2, 400), ("all-reduce", 2, 400), ("all-to-all", 1, 64)]
    collectives = tuple(SimpleNamespace(kind=kind, count=count, bytes=sent) for kind, count, sent in moves)
    return SimpleNamespace(memory_analysis=lambda: memory, collectives=lambda: collectives)


def test_summary_groups_layers_and_tells_why_others_lost(plan: Plan) -> None:
    text = plan.summary()
    assert re.search(r"state\.params\['h_\*'\]\['mlp'\]\['kernel'\] +f32\[384,1536\] +\{-, x\} +x 6 +6\.75 MiB", text)
    assert re.search(r"state\.params\['<wte>'\] +bf16\[512,384\] +\{\(x,y\), -\} +48\.0 KiB", text)
    assert re.search(r"mesh 2x4 +1\.50 ms +3\.00 GiB +chosen", text)
    assert re.search(r"mesh 8x1 +1\.80 ms +2\.00 GiB +20\.0% slower", text)
    assert "needs 83.1 GiB of 80.0 GiB" in text
    assert "predicted step time 1.50 ms  (computing 1.25 ms, communication 500 us)" in text
    assert re.search(r"all-reduce +1000 B in 3", text) and "all-gather" not in text
    assert "measured" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_summary_with_measurements(plan: Plan, executable: Any) -> None:
    text = plan.summary(measured=executable)
    assert re.search(r"peak memory +3\.00 GiB +2\.00 GiB +\+50 %", text)
    assert re.search(r"arguments +1\.00 GiB +1\.00 GiB +0 %", text)
    assert re.search(r"all-reduce +1000 B in 3 +800 B in 4 +\+25 %", text)
    assert re.search(r"all-to-all +0 B +64 B in 1 +-100 %", text)


def test_one_device_and_pipelines(plan: Plan) -> None:
    assert "1 device, level O1\nmesh  one device" in replace(plan, mesh=()).summary()
    pipelined = replace(plan, stages=4, groups=4, microbatches=16, schedule="1f1b")
    assert "pipeline  4 stages, 16 micro-batches, 1f1b" in pipelined.summary()
    assert "4 stages, 16 micro-batches, 1f1b" in pipelined.report_html()


class _Checker(HTMLParser):
    """Checks that tags nest and collects what the page would fetch."""

    VOID = ("meta", "input", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for key, value in attrs if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("with_xla", [False, True])
def test_page_is_well_formed_and_fetches_nothing(plan: Plan, executable: Any, with_xla: bool) -> None:
    page = plan.report_html(measured=executable if with_xla else None)
    checker = _Checker()
    checker.feed(page)
    assert checker.open == [] and checker.fetched == []
    assert "url(" not in page and "@import" not in page and "http" not in page
    assert page == plan.report_html(measured=executable if with_xla else None)
    assert ("measured by XLA" in page) == with_xla


def test_page_shows_everything_and_escapes_names(plan: Plan) -> None:
    page = plan.report_html()
    assert "state.params[&#x27;&lt;wte&gt;&#x27;]" in page and "<wte>" not in page
    for text in (
        "Plan for dgx-h100:1",
        "{-, x}",
        "&times; 6",
        "20.0% slower",
        "12 candidates",
        "250 us of communication",
    ):
        assert text in page


def test_groups_star_only_the_numbers_that_differ() -> None:
    names = ["opt[0].mu['h_1']['k2']", "opt[0].mu['h_10']['k2']", "opt[1].x"]
    tensors = [Tensor(name, "opt_state", (4,), "f32", ((),)) for name in names]
    assert [(g.name, g.count) for g in group(tensors)] == [("opt[0].mu['h_*']['k2']", 2), ("opt[1].x", 1)]
    other = replace(tensors[1], sharding=(("x",),))
    assert [g.count for g in group([tensors[0], other])] == [1, 1]


def test_optimizer_state_split_as_its_parameters_is_one_line(plan: Plan) -> None:
    moments = tuple(
        replace(tensor, name=tensor.name.replace("state.params", f"state.opt_state[0].{kind}"), role="opt_state")
        for kind in ("mu", "nu")
        for tensor in plan.arguments
        if tensor.role == "param"
    )
    odd = replace(moments[0], sharding=(("y",), ()))
    text = replace(plan, arguments=plan.arguments + moments[1:] + (odd,)).summary()
    assert re.search(r"state\.opt_state\[0\]\.mu\.\.\. +f32, bf16 +as parameter +x 6", text)
    assert re.search(r"state\.opt_state\[0\]\.nu\.\.\. +f32, bf16 +as parameter +x 7 +6\.80 MiB", text)
    assert re.search(r"state\.opt_state\[0\]\.mu\['h_0'\]\['mlp'\]\['kernel'\] +f32\[384,1536\] +\{y, -\}", text)
    further = tuple(replace(m, sharding=((*m.sharding[0], "z"), *m.sharding[1:])) for m in moments)
    text = replace(plan, arguments=plan.arguments + further, mesh=(*plan.mesh, ("z", 2))).summary()
    assert re.search(r"state\.opt_state\[0\]\.mu\.\.\. +f32, bf16 +as parameter, and over z +x 7 +3\.40 MiB", text)


def test_units(plan: Plan) -> None:
    assert [seconds(s) for s in (0, 2.5e-9, 1.234e-6, 0.0999, 1, 12.34, 250)] == [
        "0 s", "2.50 ns", "1.23 us", "99.9 ms", "1.00 s", "12.3 s", "250 s",
    ]  # fmt: skip
    assert [nbytes(n) for n in (0, 1023, 1024, 80 * GIB, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "80.0 GiB",
        "3.00 TiB",
    ]
    assert [percent(a, b) for a, b in ((1, 0), (1, 1), (3, 2), (0.999, 1))] == ["", "0 %", "+50 %", "0 %"]
    assert sharding_text(()) == "{}"
    sub_axis = Tensor("w", "param", (8, 8), "f32", (("x:(1)2", "y"), ()))
    assert device_bytes(sub_axis, replace(plan, mesh=(("x", 4), ("y", 2)))) == 64

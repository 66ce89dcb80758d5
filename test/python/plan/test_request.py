"""Options are declared once: passes, flags, keywords and docs have those of the request, and nothing else."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import rhino
from rhino.cli import compile as compile_command
from rhino.cli import plan
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.passes.pipelines import Auto
from rhino.passes.registry import options_of
from rhino.request import (
    COMPILE_OPTIONS,
    DEFAULTS,
    OPTIONS,
    PLAIN,
    CompileKeywords,
    CompileRequest,
    Keywords,
    PlanRequest,
    requests,
)  # fmt: skip

GUIDE = Path(__file__).parents[3] / "docs/guide"
COMMANDS = {**dict.fromkeys(OPTIONS, plan), **dict.fromkeys(COMPILE_OPTIONS, compile_command)}
ASKED = OPTIONS | COMPILE_OPTIONS
USERS = {name: option for name, option in ASKED.items() if option.metavar}


def test_rhino_auto_has_the_options_of_the_request() -> None:
    found = {spec.field: spec for spec in options_of(Auto) if spec.field != "topology"}
    assert list(found) == list(OPTIONS)
    for name, option in OPTIONS.items():
        assert found[name].default == getattr(DEFAULTS, name)
        assert found[name].choices == (*option.choices, *option.own)


@pytest.mark.parametrize("name", USERS)
def test_users_find_each_option(name: str) -> None:
    keyword, flag = ASKED[name].keyword or name, f"--{name.replace('_', '-')}"
    told = inspect.getdoc(rhino.parallelize)
    assert told is not None and re.search(rf"^ *([a-z_]+, )*{keyword}(, [a-z_]+)*: ", told, re.MULTILINE)
    assert re.search(rf"`{keyword}\b", (GUIDE / "python-api.md").read_text(encoding="utf-8"))
    assert re.search(rf"`{flag}\b", (GUIDE / "cli.md").read_text(encoding="utf-8"))
    assert flag in COMMANDS[name].add_parser(argparse.ArgumentParser().add_subparsers()).format_help()


def test_keywords_are_those_of_the_request_and_no_others() -> None:
    assert set(CompileKeywords.__annotations__) == set(COMPILE_OPTIONS)
    assert set(Keywords.__annotations__) == {option.keyword or name for name, option in USERS.items()}
    assert requests({"search_budget": 3, "overlap": True}) == (PlanRequest(budget=3.0), CompileRequest(overlap=True))
    with pytest.raises(TypeError, match="unexpected keyword argument 'fewer'"):
        rhino.parallelize(lambda x: x, fewer=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no option 'sooner'"):
        PlanRequest.of(sooner=1)
    with pytest.raises(TypeError, match="compiling has no option 'level'; its options are overlap"):
        CompileRequest.of(level="O1")


def test_nothing_given_is_the_default() -> None:
    assert PlanRequest.of(**dict.fromkeys(OPTIONS)) == DEFAULTS
    assert CompileRequest.of(**dict.fromkeys(COMPILE_OPTIONS)) == PLAIN


def test_the_cluster_of_a_step_says_its_times_where_nothing_else_does() -> None:
    host, hosts = Cluster.load("dgx-h100:1"), Cluster.load("dgx-h100:4")
    assert CompileRequest.of(overlap="dgx-h100:4").on(host).times == hosts
    assert CompileRequest.of(overlap=True).on(host).times == host
    assert CompileRequest.of().on(host).times is None
    # Several processes must not come to different orders.
    assert CompileRequest.of().on(host, alone=True).times == host
    assert CompileRequest.of(overlap=False).on(host, alone=True).times is None
    with pytest.raises(RhinoError, match="nothing says by which cluster's times"):
        CompileRequest(overlap=True).on(None).times  # noqa: B018


def test_what_is_asked_of_compiling_is_plain_data_for_processes_to_compare() -> None:
    asked = CompileRequest.of({"xla_gpu_enable_triton_gemm": False}, overlap="dgx-h100:1")
    assert asked.told() == {"overlap": "dgx-h100:1", "options": {"xla_gpu_enable_triton_gemm": False}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"memory_limit": "40GiB"}, {"memory_limit": 40 << 30}),
        ({"mesh": (2, 4)}, {"mesh": "2x4"}),
        ({"stages": "auto", "microbatches": 4}, {"stages": -1, "microbatches": 4}),
        ({"budget": 20}, {"budget": 20.0}),
    ],
)
def test_what_is_given_is_read(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert PlanRequest.of(**given) == PlanRequest(**expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"level": "O9"}, "level 'O9' is not available; O0, O1, O2 are"),
        ({"annotations": "planned"}, "annotations 'planned' is not available; keep, ignore are"),
        ({"budget": -1}, "budget -1 is not a time in seconds"),
        ({"budget": 0}, "budget 0 is not a time in seconds"),
        ({"microbatches": -2}, "microbatches -2 is not a number of micro-batches"),
        ({"stages": 0}, "stages 0 is not a number of stages"),
        ({"memory_limit": "much"}, "memory limit 'much' is not a positive number of bytes"),
    ],
)
def test_what_is_not_valid_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RhinoError) as error:
        PlanRequest.of(**given)
    assert error.value.message == message

"""Collectives beside computing: what is compiled again with which profile, what is kept, and what XLA makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rhino
from rhino.cli.main import main
from rhino.compile.executable import compile_module
from rhino.compile.overlap import OPTIONS, PROFILE, overlapped
from rhino.compile.timeline import Event, Timeline
from rhino.errors import RhinoError
from rhino.ir.other_trips import IN_PLACE, OtherTrips
from rhino.machine import Cluster
from rhino.xla.backends import LESS_MEMORY

CLUSTER = Cluster.load("dgx-h100:1")


@dataclass
class Compiled:
    """What one compilation gives: how long its step is, how long computing waits in it, and its peak."""

    total_s: float
    waited_s: float
    peak_bytes: int = 1 << 30
    kind: str = "all-gather"
    other_trips: OtherTrips = IN_PLACE
    awaited: Mapping[str, float] = field(default_factory=dict)

    def timeline(self, cluster: Cluster) -> Timeline:
        assert cluster is CLUSTER
        events = (
            Event("while.1", "loop", "compute", 0.0, 2e-3, 1, "", 0),
            Event("dot.2", "product", "compute", 0.0, 1e-6, 24, "", 1),
            *(Event(name, "all-reduce", "send", 0.0, 3e-6, 24, "", 1) for name in self.awaited),
        )
        return Timeline(self.total_s, {}, {}, {self.kind: self.waited_s}, {}, 25, 0.0, 0, events, self.awaited)

    def memory_analysis(self) -> Any:
        return SimpleNamespace(peak_bytes=self.peak_bytes)


class Compiler:
    """Gives these in turn, and keeps the options and profiles that it was given."""

    def __init__(self, *made: Compiled) -> None:
        self.made, self.asked, self.profiles = [*made], list[dict[str, Any]](), list[str]()

    def __call__(self, options: Mapping[str, Any]) -> Any:
        self.asked.append({name: value for name, value in options.items() if name != PROFILE})
        if PROFILE in options:
            self.profiles.append(Path(options[PROFILE]).read_text())
        return self.made[len(self.asked) - 1]


def test_where_computing_hardly_waits_one_compilation_is_enough() -> None:
    compiler = Compiler(Compiled(1.0, 0.009))
    assert overlapped(compiler, CLUSTER, {"mine": 1}) is compiler.made[0]
    assert compiler.asked == [{**OPTIONS, "mine": 1}]


def test_else_the_scheduler_is_told_what_each_instruction_takes() -> None:
    compiler = Compiler(Compiled(1.0, 0.1), Compiled(0.95, 0.05))
    assert overlapped(compiler, CLUSTER, {}) is compiler.made[1]
    assert compiler.asked == [dict(OPTIONS)] * 2
    assert compiler.profiles == [
        'costs { name: "dot.2" cost_us: 1.000 }\ncosts { name: "while.1" cost_us: 2000.000 }\n'
    ]


def test_a_chain_of_collectives_is_said_to_be_longer_than_what_is_in_its_way() -> None:
    first, second = Compiled(1.0, 0.1, awaited={"all-reduce.3": 2e-6, "all-reduce.4": 8e-6}), Compiled(0.95, 0.05)
    compiler = Compiler(first, second, Compiled(0.9, 0.01))
    assert overlapped(compiler, CLUSTER, {}) is compiler.made[2]
    as_it_is, first_said = ([float(us) for us in re.findall(r"cost_us: ([\d.]+)", p)] for p in compiler.profiles)
    assert as_it_is == [3.0, 3.0, 1.0, 2000.0]
    assert first_said == [3.0, pytest.approx(8.4), 1.0, 2000.0]
    # Where computing waits for less than a fiftieth, or nothing is in the way, that is not worth a compilation.
    for waits in (replace(first, waited_s=0.015), replace(first, awaited={"all-reduce.3": 2e-6})):
        compiler = Compiler(waits, second)
        assert overlapped(compiler, CLUSTER, {}) is second
    # Where sums in a later trip are better, the program as it is may be better still.
    other = Compiler(made("all-to-all", LATER, 0.9, 0.0))
    compiler = Compiler(replace(first, kind="all-reduce"), Compiled(0.8, 0.0))
    assert overlapped(compiler, CLUSTER, {}, Changing({LATER: other})) is compiler.made[1]
    assert [profile.count("8.400") for profile in compiler.profiles] == [1]


def test_what_it_makes_worse_is_not_taken() -> None:
    compiler = Compiler(Compiled(1.0, 0.1), Compiled(1.1, 0.2))
    assert overlapped(compiler, CLUSTER, {}) is compiler.made[0]


def test_what_does_not_fit_is_not_taken_and_the_plain_order_is_if_nothing_fits() -> None:
    much = CLUSTER.device.plan_bytes + 1
    compiler = Compiler(Compiled(1.0, 0.1), Compiled(0.9, 0.0, much))
    assert overlapped(compiler, CLUSTER, {}) is compiler.made[0]
    both = Compiled(1.0, 0.1, much + 1), Compiled(0.9, 0.0, much + 1)
    # Under XLA's own limit of memory, and then in the plain order.
    compiler = Compiler(*both, Compiled(1.1, 0.1), Compiled(1.0, 0.1))
    assert overlapped(compiler, CLUSTER, {"mine": 1}) is compiler.made[3]
    assert compiler.asked[2] == {**OPTIONS, **LESS_MEMORY, "mine": 1}
    compiler = Compiler(*both, *both, Compiled(1.2, 0.3, much))
    assert overlapped(compiler, CLUSTER, {"mine": 1}) is compiler.made[4]
    assert compiler.asked[4] == {"mine": 1}
    # Nothing is won by the plain order where it takes no less.
    compiler = Compiler(*both, *both, Compiled(1.2, 0.3, much + 1))
    assert overlapped(compiler, CLUSTER, {}) is compiler.made[1]


LATER, ALL, FIRST = OtherTrips(True), OtherTrips(True, "all"), OtherTrips(False, "first")


class Changing:
    """Compiles programs with things in other trips, of those that there are, by these compilers."""

    def __init__(self, compilers: Mapping[OtherTrips, Compiler], there: Mapping[OtherTrips, OtherTrips] | None = None):
        self.compilers, self.there, self.asked = compilers, there or {}, list[OtherTrips]()

    def __call__(self, trips: OtherTrips) -> tuple[OtherTrips, Any]:
        self.asked.append(trips)
        there = self.there.get(trips, trips if trips in self.compilers else IN_PLACE)
        return there, self.compilers.get(there)


def made(kind: str, trips: OtherTrips, total_s: float, waited_s: float, peak_bytes: int = 1 << 30) -> Compiled:
    return Compiled(total_s, waited_s, peak_bytes, kind, trips)


def test_where_computing_waits_for_sums_they_are_tried_later() -> None:
    def waiting(total_s: float, waited_s: float) -> Compiled:
        return made("all-reduce", IN_PLACE, total_s, waited_s)

    def late(total_s: float, waited_s: float, peak_bytes: int = 1 << 30) -> Compiled:
        return made("all-reduce", LATER, total_s, waited_s, peak_bytes)

    compiler, later = Compiler(waiting(1.0, 0.1)), Compiler(late(0.95, 0.05), late(0.9, 0.0))
    assert overlapped(compiler, CLUSTER, {"mine": 1}, Changing({LATER: later})) is later.made[1]
    assert (compiler.asked, later.asked) == ([{**OPTIONS, "mine": 1}], [{**OPTIONS, "mine": 1}] * 2)
    # And no further, be it that computing waits long even so.
    compiler, later = Compiler(waiting(1.0, 0.3)), Compiler(late(0.95, 0.2), late(0.9, 0.2))
    assert overlapped(compiler, CLUSTER, {}, Changing({LATER: later})) is later.made[1]
    # Where that is hardly better, or does not fit, the program is compiled by the cluster's times, too.
    for other in (late(0.992, 0.0), late(0.8, 0.0, CLUSTER.device.plan_bytes + 1)):
        compiler, later = Compiler(waiting(1.0, 0.1), waiting(0.97, 0.07)), Compiler(other)
        assert overlapped(compiler, CLUSTER, {}, Changing({LATER: later})) is compiler.made[1]
    # It is not made where there are none, and not asked for where computing waits for something else, or not long.
    compiler, changing = Compiler(waiting(1.0, 0.1), waiting(0.9, 0.0)), Changing({})
    assert overlapped(compiler, CLUSTER, {}, changing) is compiler.made[1]
    assert changing.asked == [LATER]
    for first in (made("all-to-all", IN_PLACE, 1.0, 0.1), waiting(1.0, 0.015)):
        compiler, changing = Compiler(first, Compiled(0.9, 0.0)), Changing({})
        assert overlapped(compiler, CLUSTER, {}, changing) is compiler.made[1]
        assert not changing.asked


def test_where_computing_waits_for_gathers_they_are_tried_earlier() -> None:
    def waiting(total_s: float, waited_s: float) -> Compiled:
        return made("all-gather", IN_PLACE, total_s, waited_s)

    def early(trips: OtherTrips, *timed: tuple[float, float]) -> Compiler:
        return Compiler(*(made("all-gather", trips, *one) for one in timed))

    # Both are tried, by the cluster's times, too, after the program as it is.
    compiler = Compiler(waiting(1.0, 0.1), waiting(0.97, 0.07))
    every, first = early(ALL, (0.95, 0.05), (0.9, 0.01)), early(FIRST, (0.9, 0.05), (0.8, 0.0))
    changing = Changing({ALL: every, FIRST: first})
    assert overlapped(compiler, CLUSTER, {"mine": 1}, changing) is first.made[1]
    assert changing.asked == [ALL, FIRST]
    assert every.asked == first.asked == [{**OPTIONS, "mine": 1}] * 2
    # They must save something.
    compiler = Compiler(waiting(1.0, 0.1), waiting(0.97, 0.07))
    changing = Changing({ALL: early(ALL, (0.963, 0.0)), FIRST: early(FIRST, (0.962, 0.0))})
    assert overlapped(compiler, CLUSTER, {}, changing) is compiler.made[1]
    # What comes to the same is compiled once: sums alone, which did not do; or nothing.
    compiler, later = Compiler(made("all-reduce", IN_PLACE, 1.0, 0.1)), early(LATER, (0.9, 0.1), (0.9, 0.1))
    changing = Changing({LATER: later}, {ALL: LATER, FIRST: IN_PLACE})
    assert overlapped(compiler, CLUSTER, {}, changing) is later.made[0]
    assert changing.asked == [LATER, ALL, FIRST]
    # Where the cluster's times are enough, they are not asked for.
    compiler, changing = Compiler(waiting(1.0, 0.1), waiting(0.95, 0.015)), Changing({})
    assert overlapped(compiler, CLUSTER, {}, changing) is compiler.made[1]
    assert not changing.asked


def test_a_step_does_not_fail_by_options_that_xla_no_longer_has() -> None:
    plain = Compiled(1.0, 0.1)

    def compile_with(options: Mapping[str, Any]) -> Any:
        if options.keys() & OPTIONS.keys():
            raise RhinoError("XLA cannot compile the module for h100: No such compile option")
        return plain

    with pytest.warns(rhino.RhinoWarning, match="plain order: XLA cannot compile .* No such compile option"):
        assert overlapped(compile_with, CLUSTER, {}) is plain


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """Plain gradient descent of eight square layers."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean(h * h)

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


@pytest.fixture(scope="module")
def planned() -> tuple[str, Cluster]:
    """The step on eight H100s whose links have the textbook's times."""
    fast = CLUSTER.levels[0]
    cluster = replace(CLUSTER, levels=(replace(fast, bandwidth_bytes_s=4e11, protocols={}),))
    weights = [jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)] * 8
    batch = jax.ShapeDtypeStruct((16384, 2048), jnp.bfloat16)
    found = rhino.parallelize(step, cluster=cluster, mesh=(8,), donate_argnums=0).plan(weights, batch)
    return found.module, cluster


def test_computing_waits_for_a_fraction_of_the_time(planned: tuple[str, Cluster], gpu_compiler: None) -> None:
    module, cluster = planned
    plain, beside = (compile_module(module, "h100", overlap=times) for times in (None, cluster))
    before, after = (sum(one.timeline(cluster).exposed_s.values()) for one in (plain, beside))
    assert after < 0.7 * before
    assert beside.timeline(cluster).total_s < 0.95 * plain.timeline(cluster).total_s
    # The same program: it sends the same, in other portions at most.
    sent = [sum(c.bytes for c in one.collectives()) for one in (plain, beside)]
    assert sent[0] == pytest.approx(sent[1], rel=1e-3)


def test_what_fits_is_put_beside_computing_though_xla_would_spare_memory(
    planned: tuple[str, Cluster], gpu_compiler: None
) -> None:
    """At the limit of XLA's scheduler computing waits; plans may take more of a device than that is by default."""
    module, cluster = planned
    limit = {"xla_gpu_memory_limit_slop_factor": 0}
    free, limited = (compile_module(module, "h100", options=o, overlap=cluster) for o in ({}, limit))
    waited = [sum(one.timeline(cluster).exposed_s.values()) for one in (free, limited)]
    assert waited[0] < 0.7 * waited[1]


def test_the_command_says_where_it_cannot_be(
    planned: tuple[str, Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "planned.mlir"
    file.write_text(planned[0])
    assert main(["compile", str(file), "--overlap"]) == 1
    assert "on CPUs nothing runs beside computing; leave --overlap out" in capsys.readouterr().err
    assert main(["compile", str(file), "--target", "h100", "--cluster", "dgx-h100:1"]) == 1
    assert "give --timeline FILE or --overlap, too" in capsys.readouterr().err


@pytest.mark.slow
def test_the_stages_of_a_pipeline(tmp_path: Path, gpu_compiler: None) -> None:
    weights = [jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)] * 8
    batch = jax.ShapeDtypeStruct((16384, 2048), jnp.bfloat16)
    options: dict[str, Any] = {"cluster": "dgx-h100:1", "stages": 2, "mesh": (4,), "donate_argnums": 0}
    found = rhino.parallelize(step, **options, microbatches=2).plan(weights, batch)
    file = tmp_path / "planned.mlir"
    file.write_text(found.module)
    sent = []
    for flags in ([], ["--overlap"]):
        out = tmp_path / "out.json"
        assert main(["compile", str(file), "--target", "h100", "-q", "--json", str(out), *flags]) == 0
        sent.append(sum(c["bytes"] for c in json.loads(out.read_text())["collectives"]))
    assert sent[0] == pytest.approx(sent[1], rel=1e-3)

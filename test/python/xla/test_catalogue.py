"""The catalogue against XLA, and against the comments and descriptions that rest on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rhino.compile.executable import compile_module
from rhino.compile.probe import compile_as_is, shows, status, version
from rhino.compile.target import DEVICELESS
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.catalog import preset_names
from rhino.xla import BACK_ENDS, BackEnd, back_end
from rhino.xla.behaviour import TRIED, Behaviour, Probe, program
from rhino.xla.catalogue import CATALOGUE, behaviour
from rhino.xla.collectives import M, dot
from rhino.xla.memory import L

ROOT = Path(__file__).resolve().parents[3]
PROBED = [found for found in CATALOGUE if found.probe is not None]


@pytest.mark.parametrize("found", [b for b in PROBED if "cpu" in b.where], ids=lambda b: b.name)
def test_on_cpus_it_is_as_the_catalogue_says(found: Behaviour) -> None:
    assert status(found, "cpu") == ("shows" if found.holds("cpu", version()) else "absent")


# Its program takes XLA half a minute.
LONG = ("shared-made-once",)


def on_gpus() -> Iterator[Any]:
    """Behaviours and GPUs that have them; those between the oldest and the newest for `--all`."""
    for b in PROBED:
        gpus = [target for target in b.where if target != "cpu"]
        for target in gpus:
            long = b.name in LONG or target not in (gpus[0], gpus[-1])
            yield pytest.param(b, target, id=f"{b.name}-{target}", marks=[pytest.mark.long] * long)


@pytest.mark.parametrize(("found", "target"), on_gpus())
def test_on_gpus_it_is_as_the_catalogue_says(found: Behaviour, target: str, gpu_compiler: None) -> None:
    assert status(found, target) in ("shows", "absent")


def barrier(after: str, name: str) -> str:
    return f"%{name} = stablehlo.optimization_barrier %{after} : {L}\n"


# What a probe must not show any more when its program is changed so, and where.
CHANGES: dict[str, tuple[str, Callable[[str], str]]] = {
    "elementwise-fused": (
        "h100",
        lambda t: t.replace("%2 = ", f"{barrier('1', 'x')}%2 = ").replace("%1, %a", "%x, %a"),
    ),
    "elementwise-made-again": (
        "h100",
        lambda t: (
            t.replace("%1 = ", f"{barrier('0', 'x')}%1 = ").replace("sine %0", "sine %x").replace("%2, %0", "%2, %x")
        ),
    ),
    "siblings-merged": ("h100", lambda t: t.replace("%4 = ", f"{barrier('2', 'x')}%4 = ").replace("%2, %1", "%x, %1")),
    "fills-merged": ("h100", lambda t: t.replace('"stablehlo.scatter"(%y', '"stablehlo.scatter"(%a')),
    "rows-summed-with-another-apart": ("h100", lambda t: t.replace("subtract %b, %2", "subtract %0, %2")),
    "rows-stacked-apart": ("h100", lambda t: t.replace("reshape %d", "reshape %a")),
    "rows-alone": ("h100", lambda t: t.replace("return %d, %1", "return %0, %1")),
    "fills-read": ("h100", lambda t: t.replace("maximum %s, %y", "maximum %s, %a")),
    "sliced-early": ("h100", lambda t: t.replace('constraint %0 <@mesh, [{"x"}', 'constraint %3 <@mesh, [{"x"}')),
    "stacks-laid-out-anew": ("h100", lambda t: t.replace('[{}, {}, {"x"}]', '[{}, {"x"}, {}]')),
    "roundings-undone": (
        "v100",
        lambda t: t.replace("%0 = ", f"{barrier('c', 'x').replace('f32', 'bf16')}%0 = ").replace("%a, %c", "%a, %x"),
    ),
    "maxima-fused-into-dots": (
        "h100",
        lambda t: t.replace("%0 = ", f"{barrier('r', 'x').replace('f32', 'bf16')}%0 = ").replace("%r, %w", "%x, %w"),
    ),
    "kernels-turned": (
        "h100",
        lambda t: t.replace("[0, 1, i, o]", "[o, 0, 1, i]").replace("3x3x64x128", "128x3x3x64"),
    ),
    "long-sums-in-two": ("h100", lambda t: t.replace("4097", "4096")),
    "gathered-apart": ("h100", lambda t: t.replace('[{}, {"x"}]', '[{"x"}, {}]')),
    "dots-read-memory": ("cpu", lambda t: t.replace("dot_general %0", "dot_general %a")),
    "constants-sink-into-loops": (
        "cpu",
        lambda t: t.replace("%f = stablehlo.constant", "%x = stablehlo.constant").replace(
            "%r:3", f"{barrier('x', 'f')}%r:3"
        ),
    ),
    "scatters-absorbed": (
        "h100",
        lambda t: t.replace("%1 = ", f"{barrier('s', 'x')}%1 = ").replace("%s, %p", "%x, %p"),
    ),
    "updates-in-place": ("cpu", lambda t: t.replace(", tf.aliasing_output = 0 : i32", "")),
    "brought-not-overwritten": (
        "h100",
        lambda t: re.sub(r"(?s)%0 = .*?\n\s*%1 = stablehlo.sine %0", "%1 = stablehlo.sine %a", t).replace(
            "pinned_host", "device"
        ),
    ),
    "fusions-overwrite": (
        "cpu",
        lambda t: re.sub(
            r"%1 = stablehlo.sine %0 : (\S+)",
            r"%x = stablehlo.transpose %0, dims = [1, 0] : (\1) -> \1\n%y = stablehlo.sine %0 : \1\n"
            r"%1 = stablehlo.add %x, %y : \1",
            t,
        ),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_probe_does_not_show_what_is_not_there(name: str, gpu_compiler: None) -> None:
    target, change = CHANGES[name]
    probe = behaviour(name).probe
    assert probe is not None
    assert change(probe.text) != probe.text
    assert not probe.shows(compile_as_is(replace(probe, text=change(probe.text)), target))


def test_a_process_that_does_not_end_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = program(f"%a: {M} @[-, x], %b: {M} @[x, -] -> {M} @[-, -]", dot("0", "a", "b") + f"return %0 : {M}")
    command = "import rhino.compile.probe as p; from rhino.xla.behaviour import Probe; p.behaviour = lambda _: "
    command += f"type('B', (), {{'probe': Probe({healthy!r}, fatal=True)}}); p.main"
    monkeypatch.setattr("rhino.compile.probe._CHILD", command)
    assert not shows("none", Probe(healthy, fatal=True), "cpu")


def test_a_probe_that_cannot_begin_is_an_error() -> None:
    with pytest.raises(RhinoError, match=r"did not begin: .*no behaviour of XLA is named 'no-name'"):
        shows("no-name", Probe("", fatal=True), "cpu")


def test_a_program_that_is_refused_for_another_reason_is_an_error() -> None:
    with pytest.raises(RhinoError, match="not a valid StableHLO module"):
        shows("x", Probe("module {", refused="sdy"), "cpu")


def test_what_changed_is_said() -> None:
    merged = behaviour("sums-merge")
    assert status(merged, "cpu") == "absent"
    assert status(replace(merged, field=""), "cpu") == "changed"
    resharded = behaviour("resharded-once")
    assert status(replace(resharded, until="0.1"), "cpu") == "changed"
    assert status(replace(resharded, since="99"), "cpu") == "changed"
    assert status(replace(resharded, probe=None, unprobed="why"), "cpu") == "not probed"


def names_in(text: str) -> list[str]:
    """The behaviours that a source file says it rests on, as `XLA: name` or `XLA: name, name`, in order."""
    name = r"[a-z0-9]+(?:-[a-z0-9]+)+"
    return [n for said in re.findall(rf"XLA: ({name}(?:,\s+{name})*)", text) for n in re.split(r",\s+", said)]


def test_every_rule_in_a_comment_exists_and_every_rule_is_used() -> None:
    folders = [ROOT / "python/rhino", ROOT / "passes", ROOT / "dialect"]
    told = {
        name
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if path.name == "backends.py" or not path.is_relative_to(ROOT / "python/rhino/xla")
        for name in names_in(path.read_text(encoding="utf-8"))
    }
    names = {found.name for found in CATALOGUE}
    assert told - names == set()
    assert names - told == set()


def test_names_are_read_over_lines() -> None:
    assert names_in("# XLA: sums-merge, whole-\n`XLA: a-b,\n    c-d`. XLA: not") == ["sums-merge", "a-b", "c-d"]


@pytest.mark.parametrize("found", CATALOGUE, ids=lambda b: b.name)
def test_records_are_whole(found: Behaviour) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", found.name)
    assert found.says.endswith(".")
    assert (found.probe is None) == bool(found.unprobed)
    assert set(found.where) <= set(BACK_ENDS)
    assert {found.since, found.until} <= {"", *TRIED}
    assert found.seen or found.probe is None
    # A field divides the back ends, and its probe is run on either side.
    if found.field:
        assert {found.holds(target) for target in found.where} == {True, False}


def test_names_are_distinct() -> None:
    assert len({found.name for found in CATALOGUE}) == len(CATALOGUE)


def test_every_field_of_a_back_end_is_a_behaviour() -> None:
    said = {found.field for found in CATALOGUE} - {""}
    assert said == {field.name for field in fields(BackEnd)} - {"options"}


def test_every_target_is_described() -> None:
    assert tuple(BACK_ENDS) == ("cpu", *DEVICELESS)
    assert back_end("cuda") == back_end("h100")
    assert [back_end(t).widened for t in ("cpu", "v100", "a100", "h100")] == ["nothing", "dots", "elements", "nothing"]


@pytest.mark.parametrize("name", preset_names())
def test_presets_say_of_reduce_scatter_what_the_back_end_does(name: str) -> None:
    cluster = Cluster.load(name)
    assert cluster.reduce_scatter == back_end(cluster.device.xla_target).reduce_scatters


def test_probes_are_compiled_without_rhino_s_own_changes() -> None:
    """What `prepare` mends does not show in a program that it was asked to compile."""
    probe = behaviour("start-counts-on-each-device").probe
    assert probe is not None
    assert probe.shows(compile_as_is(probe, "cpu"))
    assert not probe.shows(compile_module(probe.text))

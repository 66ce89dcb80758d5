"""A tensor on its way from columns on two hosts to rows on two others: units, messages in time, and the bound."""

from __future__ import annotations

from rhino.machine import Cluster
from rhino.machine.units import nbytes, seconds
from rhino.reshard.data import MovedTensor, Network
from rhino.reshard.networks import network_of
from rhino.reshard.plan import ReshardPlan, plan_reshard
from rhino.reshard.tiles import parse_spec, spec_tiles
from tools.pictures.svg import TILES, Svg

NAME = "resharding"
_SHAPE, _ITEM_BYTES = (1024, 1024, 512), 4
_SIDE, _TOP = 132, 100
_LEFT, _WIDE = 150, 510


def draw() -> str:
    """The picture as SVG."""
    cluster = Cluster.load("p3.8xlarge:4")
    network = network_of(cluster)
    mesh = (2, cluster.devices_per_host)
    source = spec_tiles(_SHAPE, mesh, parse_spec("R,S0,R"))
    target = spec_tiles(_SHAPE, mesh, parse_spec("S0,R,R"), first_device=mesh[0] * mesh[1])
    tensor = MovedTensor(_SHAPE, _ITEM_BYTES, source, target)
    plans = {
        name: plan_reshard([tensor], network, strategy=strategy, scheduler=scheduler)
        for name, strategy, scheduler in (
            ("to each receiver", "send-recv", "optimal"),
            ("in the order given", "broadcast", "naive"),
            ("the plan", "broadcast", "optimal"),
        )
    }
    plan = plans["the plan"]
    bound = float(plan.bound_s)
    svg = Svg(
        NAME,
        f"{nbytes(sum(unit.nbytes for unit in plan.units))} from columns on two hosts to rows on two others",
        f"{len(plan.units)} units go over the network, each once. The plan takes {seconds(float(plan.makespan_s))}, "
        f"and nothing can be faster than {seconds(bound)}.",
    )
    svg.heading(20, 32, "A tensor between two stages", "What has the same holders and the same receivers is a unit.")
    host = network.host_of
    for x, name, tiles in ((40, "before", source), (520, "after", target)):
        svg.text(x, _TOP - 14, name, "bold")
        for i, slice_ in enumerate(dict.fromkeys(tile.slice for tile in tiles)):
            holders = [tile.device for tile in tiles if tile.slice == slice_]
            at = _at(x, slice_)
            svg.box(*at, TILES[4 + i], 0)
            svg.label(*at, f"host {host[holders[0]]}")
    svg.text(280, _TOP - 14, f"{len(plan.units)} units", "bold")
    for unit in plan.units:
        at = _at(280, unit.slice)
        svg.box(*at, TILES[unit.index], 0)
        svg.label(*at, f"unit {unit.index}")
    for x in (190, 430):
        svg.line((x, _TOP + _SIDE / 2), (x + 70, _TOP + _SIDE / 2), style="arrow", arrow=True)

    y: float = _TOP + _SIDE + 44
    longest = max(float(one.makespan_s) for one in plans.values())
    svg.heading(
        20, y, "What each host sends", "One message at a time. In a box: the unit, and the host that it goes to."
    )
    y = _messages(svg, y + 34, plan, network, _WIDE / longest)
    svg.heading(
        20,
        y,
        "How long it takes",
        f"No plan is faster than {seconds(bound)}, the red line: the most that a host must take in.",
    )
    y += 32
    top = y
    for name, one in plans.items():
        time = float(one.makespan_s)
        svg.text(20, y + 15, name, "soft")
        svg.box(_LEFT, y, time * _WIDE / longest, 20, "a" if one is plan else "card", 2)
        svg.text(_LEFT + 8, y + 14.5, seconds(time), "small")
        y += 27
    svg.line((_LEFT + bound * _WIDE / longest, top - 5), (_LEFT + bound * _WIDE / longest, y), style="mark")
    return str(svg)


def _at(x: float, slice_: tuple[tuple[int, int], ...]) -> tuple[float, float, float, float]:
    """The rectangle of a slice's first two dimensions in the square at `x`."""
    (row, row_end), (column, column_end) = slice_[:2]
    scale = _SIDE / _SHAPE[0]
    return x + column * scale, _TOP + row * scale, (column_end - column) * scale, (row_end - row) * scale


def _messages(svg: Svg, y: float, plan: ReshardPlan, network: Network, scale: float) -> float:
    """The program's messages, a line for each host that sends; returns the coordinate below."""
    program = plan.program
    lanes = sorted({hop.source for phase in program.phases for step in phase.steps for hop in step.hops})
    for i, lane in enumerate(lanes):
        svg.text(20, y + 32 * i + 15, f"host {lane}", "soft")
    start = 0.0
    for phase in program.phases:
        for step in phase.steps * phase.periods:
            took = {hop: hop.length / float(network.bandwidth_bytes_s[hop.source]) for hop in step.hops}
            for hop, time in took.items():
                unit = program.bundles[hop.bundle][0]
                at = _LEFT + start * scale, y + 32 * lanes.index(hop.source), time * scale, 24
                svg.box(*at, TILES[unit], 2)
                svg.label(*at, f"{unit} to {hop.target}", "small")
            start += max(took.values())
    return y + 32 * len(lanes) + 26

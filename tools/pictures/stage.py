"""A pipeline's stages: on which devices they are, which layers they keep, and what goes between them."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from rhino.machine import Cluster
from rhino.machine.units import nbytes, seconds
from rhino.pipeline.program import Transfer
from rhino.program import dtype_bytes
from tools.pictures.pipeline import Pipeline, read
from tools.pictures.plans import staged
from tools.pictures.svg import WIDTH, Svg

NAME = "stage"
_WIDE, _GAP, _FAR, _TOP = 122, 54, 78, 118


def draw() -> str:
    """The picture as SVG."""
    plan = staged("eager-1f1b")
    pipeline = read(plan)
    per_host = Cluster.load(plan.cluster).devices_per_host
    host_of = [devices[0] // per_host for devices in pipeline.devices]
    hosts = sorted(set(host_of))
    svg = Svg(
        NAME,
        f"{plan.stages} stages on {len(hosts)} hosts",
        " ".join(f"Stage {s} on devices {_range(pipeline.devices[s])}." for s in range(plan.stages)),
    )
    svg.heading(
        20,
        32,
        f"{plan.cluster} as a pipeline of {plan.stages} stages",
        "A layer's weights stay on the devices of its stage.",
    )
    # Between hosts there is room for the edges of both.
    x_of = [0.0]
    for here, there in pairwise(host_of):
        x_of.append(x_of[-1] + _WIDE + (_GAP if here == there else _FAR))
    left = (WIDTH - x_of[-1] - _WIDE) / 2
    x_of = [left + x for x in x_of]
    high = 156
    for host in hosts:
        inside = [stage for stage, on in enumerate(host_of) if on == host]
        x, end = x_of[inside[0]] - 12, x_of[inside[-1]] + _WIDE + 12
        svg.box(x, _TOP - 46, end - x, high + 60, "card", 8)
        svg.text(x + 12, _TOP - 24, f"host {host}", "soft")
    for stage, x in enumerate(x_of):
        svg.box(x, _TOP - 12, _WIDE, high + 12, "paper", 5)
        svg.text(x + 10, _TOP + 8, f"stage {stage}", "bold")
        svg.text(x + 10, _TOP + 24, f"devices {_range(pipeline.devices[stage])}", "soft small")
        held = [(t.name, "c" if t.role == "param" else "g") for t in plan.arguments if t.stages == (stage,)]
        for i, (name, fill) in enumerate(sorted(held, key=lambda one: one[1])):
            svg.box(x + 8, _TOP + 34 + 26 * i, _WIDE - 16, 21, fill)
            svg.label(x + 8, _TOP + 34 + 26 * i, _WIDE - 16, 21, _short(name), "small mono")
        for i, (told, time) in enumerate((("forward", pipeline.forward_s), ("backward", pipeline.backward_s))):
            svg.text(x + 8, _TOP + high - 26 + 15 * i, told, "small soft")
            svg.text(x + _WIDE - 8, _TOP + high - 26 + 15 * i, seconds(time[stage]), "small", "end")
    for transfer in pipeline.program.transfers:
        _transfer(svg, pipeline, x_of, host_of, transfer)
    y = _TOP + high + 36
    svg.box(20, y, 12, 12, "c")
    svg.text(38, y + 10, "parameters", "soft")
    svg.box(126, y, 12, 12, "g")
    svg.text(144, y + 10, "part of the batch", "soft")
    svg.line((270, y + 6), (298, y + 6), style="arrow", arrow=True)
    svg.text(306, y + 10, "within a host", "soft")
    svg.line((410, y + 6), (438, y + 6), style="mark", arrow=True)
    svg.text(446, y + 10, "over the network", "soft")
    return str(svg)


def _transfer(svg: Svg, pipeline: Pipeline, x_of: list[float], host_of: list[int], transfer: Transfer) -> None:
    start, end, backward = transfer.from_stage, transfer.to_stage, transfer.of == "backward"
    value = pipeline.program.values[transfer.source]
    y = _TOP + (96 if backward else 48)
    far = host_of[start] != host_of[end]
    if start < end:
        points = (x_of[start] + _WIDE + 3, y), (x_of[end] - 3, y)
    else:
        points = (x_of[start] - 3, y), (x_of[end] + _WIDE + 3, y)
    svg.line(*points, style="mark" if far else "arrow", arrow=True)
    middle = (points[0][0] + points[1][0]) / 2
    told = nbytes(prod(value.shape) * dtype_bytes(value.dtype)).replace(".0 ", " ")
    svg.text(middle, y - 8, "gradient" if backward else "output", "small soft", "middle")
    svg.text(middle, y + 17, told, "small", "middle")


def _short(name: str) -> str:
    return name.removeprefix("params['").removesuffix("']")


def _range(devices: tuple[int, ...]) -> str:
    return f"{devices[0]} to {devices[-1]}"

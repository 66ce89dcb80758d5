"""A mesh over the devices of two hosts, and which device holds which part of three tensors."""

from __future__ import annotations

from itertools import product
from math import prod

from rhino.machine import Cluster
from rhino.machine.units import nbytes
from rhino.plan import Tensor
from rhino.report.units import device_bytes, sharding_text, tensor_type
from tools.pictures.plans import sharded
from tools.pictures.svg import TILES, Svg

NAME = "mesh"


def tiles(tensor: Tensor, mesh: tuple[tuple[str, int], ...]) -> dict[tuple[int, ...], list[int]]:
    """Of each part of a tensor, by its place along each dimension, the devices that hold it."""
    found: dict[tuple[int, ...], list[int]] = {}
    sizes = dict(mesh)
    for device, coordinates in enumerate(product(*(range(size) for _, size in mesh))):
        at = dict(zip(sizes, coordinates, strict=True))
        place = []
        for axes in tensor.sharding:
            index = 0
            for axis in axes:
                index = index * sizes[axis] + at[axis]
            place.append(index)
        found.setdefault(tuple(place), []).append(device)
    return found


def draw() -> str:
    """The picture as SVG."""
    plan = sharded()
    cluster = Cluster.load(plan.cluster)
    (outer, hosts), (inner, per_host) = plan.mesh
    by_name = {tensor.name: tensor for tensor in plan.arguments}
    shown = [by_name[name] for name in ("batch", "params['up']", "params['down']")]
    svg = Svg(
        NAME,
        f"A mesh of {hosts} by {per_host} devices, and three tensors split over it",
        f"Axis {outer} counts the hosts and axis {inner} the devices of a host. "
        + " ".join(f"{t.name} is split {sharding_text(t.sharding)}." for t in shown),
    )
    svg.heading(20, 32, f"{plan.cluster}: {hosts} hosts of {per_host} devices", "The mesh is a grid over all devices.")
    left, top, side, gap = 190, 104, 62, 10
    across = per_host * (side + gap) - gap
    svg.text(left, top - 22, f"axis {inner}, size {per_host}: links within a host, the fastest", "soft")
    svg.line((left, top - 13), (left + across, top - 13), style="arrow", arrow=True)
    for host in range(hosts):
        y = top + host * (side + 14)
        svg.box(left - 6, y - 6, across + 12, side - 12, "card", 6)
        svg.text(left - 20, y + 24, f"host {host}", "soft", "end")
        for device in range(per_host):
            index = host * per_host + device
            svg.box(left + device * (side + gap), y, side, side - 24, TILES[index])
            svg.label(left + device * (side + gap), y, side, side - 24, str(index), "bold")
    bottom = top + hosts * (side + 14) - 34
    svg.line((112, top - 6), (112, bottom + 10), style="arrow", arrow=True)
    svg.text(22, (top + bottom) / 2 - 14, f"axis {outer},")
    svg.text(22, (top + bottom) / 2 + 3, f"size {hosts}:")
    svg.text(22, (top + bottom) / 2 + 20, "the network")
    x0 = left + across + 30
    for i, level in enumerate(cluster.levels):
        speed = f"{level.bandwidth_bytes_s * level.nics / 1e9:.3g} GB/s"
        svg.text(x0, top + 16 + 40 * i, level.name, "bold")
        svg.text(x0, top + 33 + 40 * i, f"{speed} one way", "soft small")

    y, width, height = bottom + 62, 196, 168
    for i, tensor in enumerate(shown):
        x = 20 + i * (width + 46)
        parts = tiles(tensor, plan.mesh)
        count = [max(place[d] for place in parts) + 1 for d in range(2)]
        svg.text(x, y, f"{tensor.name}", "bold")
        svg.text(x, y + 18, f"{tensor_type(tensor)}  {sharding_text(tensor.sharding)}", "small mono")
        high, wide = height / count[0], width / count[1]
        for (row, column), devices in parts.items():
            at = x + column * wide, y + 30 + row * high
            svg.box(*at, wide, high, TILES[devices[0]], 0)
            svg.label(*at, wide, high, " and ".join(map(str, devices)), "small" if high < 30 else "")
        copies = len(next(iter(parts.values())))
        told = f"{prod(count)} parts, " + ("no copies" if copies == 1 else f"each {copies} times")
        svg.text(x, y + height + 50, told, "soft small")
        svg.text(x, y + height + 66, f"{nbytes(device_bytes(tensor, plan))} on a device", "soft small")
    return str(svg)

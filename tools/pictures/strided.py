"""One matrix for queries, keys and values, in contiguous parts and stored strided as a plan has it."""

from __future__ import annotations

from math import prod

from rhino.report.units import sharding_text
from tools.pictures.plans import fused
from tools.pictures.svg import Svg

NAME = "strided"
_CHUNKS = (("q", "a"), ("k", "b"), ("v", "c"))
_LEFT, _WIDE, _HIGH = 20, 680, 38


def draw() -> str:
    """The picture as SVG."""
    plan = fused()
    tensor = next(t for t in plan.arguments if t.is_strided)
    sizes = dict(plan.mesh)
    rows, columns = tensor.shape
    stored = "x".join(map(str, tensor.stored_shape))
    devices = prod(sizes[axis] for axis in tensor.sharding[-1])
    svg = Svg(
        NAME,
        f"{columns} columns of queries, keys and values on {devices} devices",
        f"In contiguous parts a device has columns that do not belong together. Stored as {stored}, "
        f"split {sharding_text(tensor.sharding)}, it has the same columns of each.",
    )
    chunk = columns // len(_CHUNKS)
    svg.heading(
        20, 32, f"{tensor.name}: {rows} x {columns}, one matrix for three", "The columns, as your code has them:"
    )
    _bar(svg, _LEFT, 64, _WIDE, [(name, fill, chunk) for name, fill in _CHUNKS])

    part = columns // devices
    y = 138.0
    svg.heading(20, y, f"In {devices} contiguous parts", "No device has queries, keys and values that belong together.")
    for device in range(devices):
        held = []
        for i, (name, fill) in enumerate(_CHUNKS):
            first, last = max(device * part, i * chunk), min((device + 1) * part, (i + 1) * chunk)
            if first < last:
                held.append((f"{name}[{first - i * chunk}:{last - i * chunk}]", fill))
        _device(svg, y + 32, device, devices, held)

    y = 270.0
    share = chunk // devices
    title = f"Stored as {stored}, split {sharding_text(tensor.sharding)}, as the plan has it"
    svg.heading(20, y, title, "A device has the same columns of all three. Nothing moves before they meet.")
    for device in range(devices):
        first, last = device * share, (device + 1) * share
        _device(svg, y + 32, device, devices, [(f"{name}[{first}:{last}]", fill) for name, fill in _CHUNKS])
    return str(svg)


def _device(svg: Svg, y: float, device: int, devices: int, held: list[tuple[str, str]]) -> None:
    """A device's columns of each chunk, one under the other."""
    gap = 16
    wide = (_WIDE - gap * (devices - 1)) / devices
    x = _LEFT + device * (wide + gap)
    svg.text(x, y + 10, f"device {device}", "soft small")
    line = 54 / len(held)
    for i, (name, fill) in enumerate(held):
        svg.box(x, y + 16 + i * line, wide, line, fill, 2)
        svg.label(x, y + 16 + i * line, wide, line, name, "small mono")


def _bar(svg: Svg, x: float, y: float, width: float, held: list[tuple[str, str, int]]) -> None:
    total = sum(count for *_, count in held)
    for name, fill, count in held:
        wide = width * count / total
        svg.box(x, y, wide, _HIGH, fill, 2)
        svg.label(x, y, wide, _HIGH, f"{name}: {count} columns")
        x += wide

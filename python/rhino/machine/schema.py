"""From a tree of values to a `Cluster`: every field checked, every error naming its place, its cause and the remedy.

Owns the meaning of the YAML fields (docs/guide/clusters.md is their reference). Knows no YAML syntax.
"""

from __future__ import annotations

import math
from typing import NoReturn

from rhino.errors import RhinoError, nearest
from rhino.machine.document import YamlNode
from rhino.machine.model import DTYPES, Cluster, Device, Efficiency, Level, rate_name

_CLUSTER = (
    "schema", "name", "description", "hosts", "devices_per_host", "device", "levels", "reduce_scatter",
    "efficiency", "sources",
)  # fmt: skip
_DEVICE = ("kind", "xla_target", "peak_flops", "memory_bytes", "memory_bandwidth_bytes_s")
_LEVEL = ("name", "size", "bandwidth_bytes_s", "latency_s", "nics", "duplex", "medium")
_EFFICIENCY = ("matmul", "memory", "convolution", "attention", "attention_backward")


def suggestion(word: str, known: tuple[str, ...]) -> str:
    """A remedy for an unknown word: its close match if there is one, then what is known."""
    close = nearest(word, known)
    return (f"did you mean {close}? " if close else "") + f"known: {', '.join(known)}"


class _Fields:
    """One mapping of the file. Readers raise RhinoError `file:line:column: path: cause` on the first bad value."""

    def __init__(self, node: YamlNode, where: str, path: str, known: tuple[str, ...]) -> None:
        self.node, self.where, self.path = node, where, path
        if not isinstance(node.value, dict):
            self.fail(node, "", "is not a mapping of fields", f"write its fields: {', '.join(known)}")
        self.fields: dict[str, YamlNode] = node.value
        for name in self.fields:
            if name not in known:
                self.fail(self.fields[name], name, "unknown field", suggestion(name, known))

    def fail(self, node: YamlNode, name: str, cause: str, remedy: str) -> NoReturn:
        place = f"{self.where}:{node.line}:{node.column}" if node.line else self.where
        path = ".".join(part for part in (self.path, name) if part)
        raise RhinoError(f"{place}: {path}: {cause}" if path else f"{place}: {cause}", remedy)

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def get(self, name: str, what: str) -> YamlNode:
        if name not in self.fields:
            self.fail(self.node, name, "missing field", f"give {what}")
        return self.fields[name]

    def text(self, name: str, what: str) -> str:
        node = self.get(name, what)
        if not isinstance(node.value, str) or not node.value.strip():
            self.fail(node, name, f"{_show(node)} is not a name", f"give {what}")
        return node.value

    def number(self, name: str, what: str, zero: bool = False) -> float:
        """A finite number above zero (or zero itself where it makes sense); the remedy says what it is."""
        node = self.get(name, what)
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.fail(node, name, f"{_show(node)} is not a number", f"give {what}")
        if value < 0 or (value == 0 and not zero):
            bound = "must not be negative" if zero else "must be above zero"
            self.fail(node, name, f"{value} {bound}", f"give {what}")
        return float(value)

    def integer(self, name: str, what: str) -> int:
        value = self.number(name, what)
        if value != int(value):
            self.fail(self.fields[name], name, f"{_show(self.fields[name])} is not a whole number", f"give {what}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        node = self.fields.get(name, YamlNode(default))
        if not isinstance(node.value, bool):
            self.fail(node, name, f"{_show(node)} is neither true nor false", "write true or false")
        return node.value

    def child(self, name: str, known: tuple[str, ...], what: str) -> _Fields:
        path = ".".join(part for part in (self.path, name) if part)
        return _Fields(self.get(name, what), self.where, path, known)


def _show(node: YamlNode) -> str:
    if isinstance(node.value, dict | tuple):
        return "a mapping" if isinstance(node.value, dict) else "a list"
    return "an empty value" if node.value is None else repr(node.value)


def read_cluster(root: YamlNode, where: str) -> Cluster:
    """The cluster a document describes. RhinoError on the first missing, ill-typed, out-of-range or unknown field."""
    top = _Fields(root, where, "", _CLUSTER)
    if "schema" in top and (version := top.integer("schema", "1")) != 1:
        top.fail(top.fields["schema"], "schema", f"version {version} is not 1", "use a rhino that knows it")
    name = top.text("name", "a short name of the cluster")
    if ":" in name:
        top.fail(top.fields["name"], "name", f"{name!r} contains a colon", "give the number of hosts in `hosts`")
    hosts = top.integer("hosts", "the number of hosts, 1 or more") if "hosts" in top else 1
    per_host = top.integer("devices_per_host", "the number of devices of a host, 1 or more")
    device = _read_device(top)
    levels = _read_levels(top, hosts, per_host)
    efficiency = _read_efficiency(top)
    description = top.text("description", "a sentence, or nothing") if _filled(top, "description") else ""
    reduce_scatter = top.flag("reduce_scatter", True)
    sources = _read_sources(top, tuple(level.name for level in levels))
    try:
        return Cluster(name, hosts, per_host, device, levels, reduce_scatter, efficiency, description, sources)
    except RhinoError as error:
        cause = error.message.removeprefix(f"cluster {name}: levels: ")
        top.fail(top.get("levels", "levels"), "levels", cause, error.remedy)


def _filled(fields: _Fields, name: str) -> bool:
    return name in fields and fields.fields[name].value not in ("", None)


def _read_device(top: _Fields) -> Device:
    fields = top.child("device", _DEVICE, "the device's kind, peak FLOP/s and memory")
    rates = _Fields(
        _rates(fields, "peak_flops", "peak FLOP/s by type, f32 at least"), top.where, "device.peak_flops", DTYPES
    )
    rates.get("f32", "the peak FLOP/s of f32; other types fall back on it")
    return Device(
        kind=fields.text("kind", 'the name of the chip, "h100"'),
        xla_target=fields.text("xla_target", 'the compile target, "h100" or "cpu"'),
        peak_flops={key: rates.number(key, f"FLOP/s of {key}, dense") for key in DTYPES if key in rates},
        memory_bytes=fields.integer("memory_bytes", "the bytes of one device's memory"),
        memory_bandwidth_bytes_s=fields.number("memory_bandwidth_bytes_s", "bytes per second of one device"),
    )


def _rates(fields: _Fields, name: str, what: str, prefix: str = "") -> YamlNode:
    """A mapping whose keys have a type after `prefix`, with these as in `DTYPES` whichever spelling the file has."""
    node = fields.get(name, what)
    if not isinstance(node.value, dict):
        return node
    found: dict[str, YamlNode] = {}
    for key, value in node.value.items():
        known = prefix + rate_name(key.removeprefix(prefix)) if key.startswith(prefix) else key
        if known in found:
            fields.fail(value, f"{name}.{key}", f"{known} is given twice", "remove one of the two")
        found[known] = value
    return YamlNode(found, node.line, node.column)


def _read_levels(top: _Fields, hosts: int, per_host: int) -> tuple[Level, ...]:
    node = top.get("levels", "the levels of links, the fastest first")
    if not isinstance(node.value, tuple) or not node.value:
        top.fail(node, "levels", f"{_show(node)} is not a list of levels", "list the levels, the fastest first")
    levels: list[Level] = []
    for index, item in enumerate(node.value):
        last = index == len(node.value) - 1
        level = _read_level(_Fields(item, top.where, f"levels[{index}]", _LEVEL), last, hosts, per_host)
        below = levels[-1].size if levels else 1
        fields = _Fields(item, top.where, f"levels[{index}]", _LEVEL)
        place = fields.fields.get("size", item)
        if level.name in [other.name for other in levels]:
            fields.fail(fields.fields["name"], "name", f"{level.name!r} names two levels", "rename one")
        if not last and ((levels and level.size <= below) or level.size % below):
            fields.fail(place, "size", f"{level.size} is not a larger multiple of the level below, {below}",
                        "give the number of devices that one group of this level joins")  # fmt: skip
        if not last and level.size % per_host and per_host % level.size:
            fields.fail(place, "size", f"{level.size} cuts across hosts of {per_host} devices",
                        f"give a divisor or a multiple of {per_host}")  # fmt: skip
        levels.append(level)
    return tuple(levels)


def _read_level(fields: _Fields, last: bool, hosts: int, per_host: int) -> Level:
    everything = hosts * per_host
    size_node = fields.fields.get("size")
    if size_node is None and last:
        size = everything
    elif size_node is not None and size_node.value in ("all", "host"):
        size = per_host if size_node.value == "host" else everything
        if last != (size_node.value == "all") and per_host != everything:
            fields.fail(size_node, "size", "only the last level, and it alone, joins all devices", "reorder the levels")
    else:
        size = fields.integer("size", "devices in one group of this level, `host`, or `all` for the last level")
        if last and size != everything:
            fields.fail(fields.fields["size"], "size", f"{size} is not the {everything} devices of the cluster",
                        "write `all`: the last level joins every device")  # fmt: skip
    duplex = fields.text("duplex", "full or half") if "duplex" in fields else "full"
    if duplex not in ("full", "half"):
        fields.fail(fields.fields["duplex"], "duplex", f"{duplex!r} is neither full nor half", "write full or half")
    medium = fields.text("medium", "links or memory") if "medium" in fields else "links"
    if medium not in ("links", "memory"):
        fields.fail(fields.fields["medium"], "medium", f"{medium!r} is neither links nor memory",
                    "write links, or memory where devices are threads of one process")  # fmt: skip
    return Level(
        name=fields.text("name", 'a name, "intra-host" or "inter-host"'),
        size=size,
        bandwidth_bytes_s=fields.number("bandwidth_bytes_s", "bytes per second of one NIC in one direction"),
        latency_s=fields.number("latency_s", "seconds of one hop", zero=True),
        nics=fields.integer("nics", "the NICs of each group of the level below") if "nics" in fields else 1,
        duplex=duplex,
        medium=medium,
    )


def _read_efficiency(top: _Fields) -> Efficiency:
    if "efficiency" not in top:
        return Efficiency()
    fields = top.child("efficiency", _EFFICIENCY, "achievable fractions of peak")
    values = {}
    for name in _EFFICIENCY:
        if name not in fields:
            continue
        values[name] = fields.number(name, "a fraction in (0, 1]")
        if values[name] > 1:
            fields.fail(fields.fields[name], name, f"{values[name]} is above 1", "give a fraction in (0, 1]")
    return Efficiency(**values)


def _read_sources(top: _Fields, levels: tuple[str, ...]) -> dict[str, str]:
    if not _filled(top, "sources"):
        return {}
    paths = [name for name in _CLUSTER if name not in ("schema", "sources")]
    paths += [f"device.{name}" for name in _DEVICE] + [f"device.peak_flops.{name}" for name in DTYPES]
    paths += [f"levels.{level}" for level in levels]
    paths += [f"levels.{level}.{name}" for level in levels for name in _LEVEL]
    paths += [f"efficiency.{name}" for name in _EFFICIENCY]
    named = _rates(top, "sources", "field: where its value comes from", "device.peak_flops.")
    fields = _Fields(named, top.where, "sources", tuple(paths))
    return {path: fields.text(path, "a document, a URL or a measurement") for path in fields.fields}

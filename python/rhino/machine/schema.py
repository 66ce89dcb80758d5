"""From a document to a `Cluster`: what its fields, which `model` tells, do not say by themselves.

Owns how levels, hosts and sources belong together (docs/guide/clusters.md is the reference). Knows no syntax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from rhino.errors import RhinoError
from rhino.machine.model import SCHEMA, Cluster, rate_name, source_path
from rhino.schema.document import Document
from rhino.schema.kinds import Fault, Faults, Field, ListOf, MapOf, Record, Schema, Version, suggestion
from rhino.schema.records import record


def read_cluster(document: Document) -> Cluster:
    """The cluster a document describes. RhinoError on the first missing, ill-typed, out-of-range or unknown field."""
    if isinstance(document.data, dict):
        blank = [key for key in ("description", "sources") if document.data.get(key, "") in ("", None)]
        given = {key: value for key, value in document.data.items() if key not in blank}
        document = replace(document, data=given)
    data = document.checked(_FILE)
    hosts, per_host = data.setdefault("hosts", 1), data["devices_per_host"]
    for level in data["levels"]:
        level["size"] = _size(level, hosts, per_host)
    try:
        return _FILE.read(data)
    except RhinoError as error:
        cause = error.message.partition(": levels ")[2]
        raise document.error(Fault(("levels",), cause, error.remedy)) from None


def _size(level: Mapping[str, Any], hosts: int, per_host: int) -> int:
    size = level.get("size", "all")
    return size if isinstance(size, int) else per_host if size == "host" else hosts * per_host


def _problems(data: Mapping[str, Any]) -> Faults:
    if ":" in data["name"]:
        yield Fault(("name",), f"{data['name']!r} contains a colon", "give the number of hosts in `hosts`")
    if "f32" not in map(rate_name, data["device"]["peak_flops"]):
        remedy = "give the FLOP/s of f32: other types fall back on it"
        yield Fault(("device", "peak_flops"), "has no key 'f32'", remedy)
    yield from _level_problems(data["levels"], data.get("hosts", 1), data["devices_per_host"])
    known = tuple(_paths(_CLUSTER, "", [level["name"] for level in data["levels"]]))
    for path in data.get("sources", ()):
        if source_path(path) not in known:
            yield Fault(("sources", path), "is not known", suggestion(path, known))


def _level_problems(levels: list[dict[str, Any]], hosts: int, per_host: int) -> Faults:
    everything, below = hosts * per_host, 1
    names: set[str] = set()
    for i, level in enumerate(levels):
        given, size, last = level.get("size"), _size(level, hosts, per_host), i == len(levels) - 1
        at = ("levels", i, "size")
        if given is None and not last:
            remedy = "give the devices in one group of this level, or `host`"
            yield Fault(("levels", i), "has no key 'size'", remedy)
        elif given in ("all", "host") and last != (given == "all") and per_host != everything:
            yield Fault(at, f"is '{given}', but only the last level, and it alone, joins all devices", "reorder them")
        elif last and size != everything:
            remedy = "write `all`: the last level joins every device"
            yield Fault(at, f"is {size}, but the cluster has {everything} devices", remedy)
        elif not last and ((i and size <= below) or size % below):
            remedy = "give the number of devices that one group of this level joins"
            yield Fault(at, f"is {size}, no larger multiple of the level below, {below}", remedy)
        elif not last and size % per_host and per_host % size:
            remedy = f"give a divisor or a multiple of {per_host}"
            yield Fault(at, f"is {size}, which cuts across hosts of {per_host} devices", remedy)
        if level["name"] in names:
            yield Fault(("levels", i, "name"), f"'{level['name']}' names two levels", "rename one")
        names.add(level["name"])
        below = size


def _paths(schema: Schema, at: str, levels: list[str]) -> Iterator[str]:
    """The paths of fields below one that a source may be of."""
    inner: Mapping[str, Schema] = {}
    if isinstance(schema, Record):
        inner = {key: known.schema for key, known in schema.fields.items() if key != "sources"}
    elif isinstance(schema, MapOf):
        inner = dict.fromkeys(schema.keys, schema.value)
    elif isinstance(schema, ListOf) and at == "levels.":  # a level has a name, a protocol has none
        inner = dict.fromkeys(levels, schema.element)
    for key, one in inner.items():
        yield at + key
        yield from _paths(one, f"{at}{key}.", levels)


_CLUSTER = record(Cluster)
_FILE = Record(
    {"schema": Field(Version(SCHEMA), "the version of this form", optional=True), **_CLUSTER.fields},
    make=Cluster,
    rules=_problems,
)

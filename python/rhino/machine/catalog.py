"""From a cluster's name to the cluster: presets shipped as YAML, files of the user, and `local`.

Owns the spelling of specs ("dgx-h100:4") and the list of presets. Knows no field of the files.
"""

from __future__ import annotations

import functools
import re
from importlib.resources import files
from pathlib import Path

from rhino.errors import RhinoError
from rhino.machine.model import Cluster
from rhino.machine.schema import read_cluster
from rhino.schema.kinds import suggestion
from rhino.schema.yaml_text import from_yaml

_ALIASES = {"dgx-h200": "h200"}


def preset_names() -> tuple[str, ...]:
    """The presets, sorted."""
    folder = files("rhino.machine").joinpath("presets")
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load(spec: str) -> Cluster:
    """See `Cluster.load`."""
    spec = spec.strip()
    base, colon, count = spec.rpartition(":")
    base = base if colon else spec
    if _is_file(spec):
        return read_file(spec)
    if colon and _is_file(base):
        return read_file(base).with_hosts(_hosts(spec, count))
    if "/" in spec:
        return read_file(spec)
    if base == "local":
        if colon:
            raise RhinoError(f"cluster {spec!r}: local has the hosts that jax sees", "write local alone")
        return Cluster.local()
    name = _ALIASES.get(base, base)
    if name not in preset_names():
        raise RhinoError(
            f"cluster {spec!r}: no such preset or file",
            suggestion(base, (*preset_names(), "local"))
            + ", or the path of a .yaml file, such as rhino cluster show dgx-h100 --yaml prints",
        )
    hosts = _hosts(spec, count) if colon else None
    cluster = read_preset(name)
    return cluster if hosts is None else cluster.with_hosts(hosts)


def read_preset(name: str) -> Cluster:
    """One preset by its exact name."""
    resource = files("rhino.machine").joinpath("presets", f"{name}.yaml")
    return _read(resource.read_text(encoding="utf-8"), f"{name}.yaml")


def read_file(path: str | Path) -> Cluster:
    """The cluster of a YAML file. RhinoError with file:line:column when it cannot be read or is not valid."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RhinoError(f"{path}: not a text file", "give a YAML cluster file") from None
    except OSError as error:
        raise RhinoError(
            f"{path}: cannot read: {error.strerror}", f"give a YAML file or a preset: {', '.join(preset_names())}"
        ) from None
    return _read(text, str(path))


@functools.lru_cache(64)
def _read(text: str, where: str) -> Cluster:
    remedy = "`rhino cluster show dgx-h100 --yaml` prints a complete one"
    return read_cluster(from_yaml(text, "the cluster", where, remedy))


def _is_file(spec: str) -> bool:
    return spec.endswith((".yaml", ".yml", ".json")) or Path(spec).is_file()


def _hosts(spec: str, count: str) -> int:
    if not re.fullmatch(r"[0-9]+", count) or int(count) < 1:
        raise RhinoError(f"cluster {spec!r}: hosts {count!r} is not a positive integer", "write NAME:HOSTS, dgx-h100:4")
    return int(count)

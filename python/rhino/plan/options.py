"""What users write for a memory limit and for a mesh, as numbers: shared by the Python API and the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rhino.errors import RhinoError

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def memory_bytes(limit: int | float | str | None) -> int:
    """Bytes of a limit such as 40e9, "40GiB" or "512 MB"; 0 for None, which stands for nine tenths of the device's.

    Raises:
      RhinoError: not a positive number of bytes.
    """
    if limit is None:
        return 0
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([A-Za-z]*)\s*", str(limit))
    unit = _UNITS.get(found[2].upper()) if found else None
    nbytes = int(float(found[1]) * unit) if found and unit else 0
    if nbytes < 1:
        raise RhinoError(
            f"memory limit {limit!r} is not a positive number of bytes", 'write it as 40000000000 or "40GiB"'
        )
    return nbytes


def mesh_text(mesh: Sequence[int] | Mapping[str, int] | str | None) -> str:
    """The mesh as the pass option writes it, "2x4" or "data=2,model=4"; empty for None: the search chooses.

    Raises:
      RhinoError: not a list of positive sizes, or of axes with such sizes.
    """
    if mesh is None or mesh == "":
        return ""
    named = isinstance(mesh, Mapping) or (isinstance(mesh, str) and "=" in mesh)
    if isinstance(mesh, str):
        parts = mesh.split(",") if named else re.split(r"[x,]", mesh.lower())
    else:
        parts = [f"{name}={size}" for name, size in mesh.items()] if isinstance(mesh, Mapping) else list(map(str, mesh))
    parts = [re.sub(r"\s", "", part) for part in parts]
    form = r"[^=,]+=[1-9]\d*" if named else r"[1-9]\d*"
    twice = named and len({part.split("=")[0] for part in parts}) < len(parts)
    if twice or not parts or not all(re.fullmatch(form, part) for part in parts):
        raise RhinoError(
            f"mesh {mesh!r} is not a list of positive sizes, with names of their own or without",
            'write it as (2, 4), "2x4" or {"data": 2, "model": 4}, outermost first',
        )
    return (",".join if named else "x".join)(parts)


def mesh_of_devices(sizes: Mapping[Any, int], stages: int) -> str:
    """As `mesh_text`, of the axes of the user's `jax.sharding.Mesh`, those of one device left out.

    Of a pipeline it is the mesh of a stage: what is left of it without an outermost axis over the stages, else nothing.
    """
    axes = [(str(name), size) for name, size in sizes.items() if size > 1]
    if stages > 1:
        axes = axes[1:] if axes and axes[0][1] == stages else []
        if not axes:
            return ""
    if all(re.fullmatch(r"\w+", name) for name, _ in axes):
        return mesh_text(dict(axes) or (1,))
    return mesh_text([size for _, size in axes])


def stage_count(stages: int | str | None) -> int:
    """Pipeline stages as `rhino-auto` takes them: 0 for "if needed" (None), -1 for "auto".

    Raises:
      RhinoError: neither a count nor "auto".
    """
    if stages is None:
        return 0
    if stages == "auto":
        return -1
    try:
        count = int(stages)
    except ValueError:
        count = 0
    if count < 1:
        raise RhinoError(f"stages {stages!r} is not a number of stages", 'give 1 or more, or "auto"')
    return count

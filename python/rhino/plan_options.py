"""What users write for a memory limit and for a mesh, as numbers: shared by the Python API and the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def mesh_text(mesh: Sequence[int] | str | None) -> str:
    """The mesh as the pass option writes it, "2x4"; empty for None, which leaves the choice to the search.

    Raises:
      RhinoError: not a list of positive sizes.
    """
    if mesh is None or mesh == "":
        return ""
    parts = re.split(r"[x,]", mesh.lower()) if isinstance(mesh, str) else [str(size) for size in mesh]
    if not parts or not all(re.fullmatch(r"\s*[1-9]\d*\s*", part) for part in parts):
        raise RhinoError(
            f"mesh {mesh!r} is not a list of positive sizes", 'write it as (2, 4) or "2x4", outermost first'
        )
    return "x".join(part.strip() for part in parts)


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

"""The plan's JSON: the file that `Plan.save` writes and `Plan.load` checks field by field.

Owns the schema of the file. Bytes depend on the plan alone: no time, no path, keys in a fixed order, floats as Python
writes them, and the module without locations, compressed when it is long.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rhino.errors import RhinoError
from rhino.plan.data import SCHEMA, VERSION, PlanData, mesh_problems
from rhino.plan.strided import factors_of
from rhino.program.element_types import element_type
from rhino.schema.document import from_json
from rhino.schema.kinds import Fault, Faults, Field, Record, String
from rhino.schema.records import record, write

_INLINE_BYTES = 16384  # a module up to this size stays readable in the file
_GIVE = "give a file that Plan.save wrote"


def plan_data(plan: PlanData) -> dict[str, Any]:
    """The plan without its module, as plain data in the order of the file."""
    return {"schema": SCHEMA, **write(plan)}


def dumps(plan: PlanData) -> str:
    """The text of the plan's file."""
    data = plan_data(plan)
    if plan.source is not None:
        data["module"] = _pack(plan.module)
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def save(plan: PlanData, path: Path) -> None:
    """See `Plan.save`."""
    try:
        path.write_text(dumps(plan), encoding="utf-8")
    except OSError as error:
        raise RhinoError(f"{path}: cannot write: {error.strerror}", "give a path that can be written") from None


def load(path: Path) -> PlanData:
    """See `Plan.load`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RhinoError(f"{path}: cannot read: {error.strerror}", _GIVE) from None
    except UnicodeDecodeError as error:
        raise RhinoError(f"{path}: not JSON: {error}", _GIVE) from None
    return loads(text, str(path))


def loads(text: str, path: str) -> PlanData:
    """The plan in the text of a file; errors name the file as `path`.

    Raises:
      RhinoError: as `load`.
    """
    document = from_json(text, "the plan", path, "save the plan again with Plan.save")
    data = document.checked(_FILE)
    for tensor in (*data["arguments"], *data["outputs"]):
        tensor.setdefault("role", "")
        tensor["dtype"] = element_type(tensor["dtype"]) or tensor["dtype"]  # somebody may have written NumPy's name
    try:
        source = _unpack(data["module"]) if "module" in data else None
    except (ValueError, EOFError, OSError, zlib.error):
        raise document.error(Fault(("module", "data"), "is damaged")) from None
    return replace(_PLAN.read(data), source=source)


def _problems(data: Mapping[str, Any]) -> Faults:
    """What the fields of a plan do not say: how tensors, their stored shapes and the axes of meshes belong together."""
    yield from mesh_problems(data)
    axes = list(dict.fromkeys(axis for mesh in (data["mesh"], *data.get("meshes", ())) for axis, _ in mesh))
    for key in ("arguments", "outputs"):
        for i, tensor in enumerate(data[key]):
            shape = tensor["shape"]
            stored, dims, at = tensor.get("stored_shape", shape), tensor["sharding"], (key, i, "sharding")
            if factors_of(tuple(shape), tuple(stored)) is None:
                yield Fault((key, i, "stored_shape"), f"{stored} does not cut dimensions of {shape} into factors")
            if len(dims) != len(stored):
                which = "the shape" if stored == shape else "the stored shape"
                yield Fault(at, f"has {len(dims)} dimensions, but {which} has {len(stored)}")
            for axis in (axis for dim in dims for axis in dim):
                if axis.partition(":")[0] not in axes:
                    yield Fault(at, f"names axis '{axis}', but the mesh has {', '.join(axes) or 'none'}")


_PLAN = record(PlanData)
_MODULE = Record(
    {
        "encoding": Field(String(("text", "gzip+base64")), "how the text is written"),
        "data": Field(String(), "the text of the module"),
    },
    extensible=True,
)
_FILE = Record(
    {"schema": VERSION, **_PLAN.fields, "module": Field(_MODULE, "the annotated module", optional=True)},
    extensible=True,
    rules=_problems,
)


def _pack(text: str) -> dict[str, str]:
    raw = text.encode()
    if len(raw) <= _INLINE_BYTES:
        return {"encoding": "text", "data": text}
    packed = gzip.compress(raw, compresslevel=6, mtime=0)
    return {"encoding": "gzip+base64", "data": base64.b64encode(packed).decode()}


def _unpack(module: Mapping[str, str]) -> str:
    if module["encoding"] == "text":
        return module["data"]
    return gzip.decompress(base64.b64decode(module["data"], validate=True)).decode()

"""The plan's JSON: the file that `Plan.save` writes and `Plan.load` checks field by field.

Owns the schema of the file. Bytes depend on the plan alone: no time, no path, keys in a fixed order, floats as Python
writes them, and the module without locations, compressed when it is long.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rhino.errors import RhinoError
from rhino.machine.padding import Unsplit
from rhino.plan.data import SCHEMA, Alternative, Machine, PlanData, Predicted, Search, Tensor
from rhino.plan.strided import factors_of
from rhino.program.element_types import element_type
from rhino.program.kernel_use import KernelUse

_INLINE_BYTES = 16384  # a module up to this size stays readable in the file
_REMEDY = "save the plan again with Plan.save"


def plan_data(plan: PlanData) -> dict[str, Any]:
    """The plan without its module, as plain data in the order of the file."""
    return {
        "schema": SCHEMA,
        "level": plan.level,
        "cluster": plan.cluster,
        **({"machine": asdict(plan.machine)} if plan.machine else {}),
        "mesh": [list(axis) for axis in plan.mesh],
        **({"meshes": [[list(axis) for axis in mesh] for mesh in plan.meshes]} if plan.meshes else {}),
        "stages": plan.stages,
        "groups": plan.groups,
        "microbatches": plan.microbatches,
        "schedule": plan.schedule,
        "statistics": plan.statistics,
        "program": plan.program,
        "predicted": asdict(plan.predicted),
        "search": asdict(plan.search),
        "alternatives": [_without_none(asdict(entry)) for entry in plan.alternatives],
        **({"kernels": [asdict(use) for use in plan.kernels]} if plan.kernels else {}),
        **({"unsplit": [asdict(one) for one in plan.unsplit]} if plan.unsplit else {}),
        "arguments": [_tensor_data(tensor) for tensor in plan.arguments],
        "outputs": [_without_role(_tensor_data(tensor)) for tensor in plan.outputs],
    }


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
        raise RhinoError(f"{path}: cannot read: {error.strerror}", "give a file that Plan.save wrote") from None
    except UnicodeDecodeError as error:
        raise RhinoError(f"{path}: not JSON: {error}", "give a file that Plan.save wrote") from None
    return loads(text, str(path))


def loads(text: str, path: str) -> PlanData:
    """The plan in the text of a file; errors name the file as `path`.

    Raises:
      RhinoError: as `load`.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise RhinoError(f"{path}: not JSON: {error}", "give a file that Plan.save wrote") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise RhinoError(f"{path}: not a plan: it has no schema", "give a file that Plan.save wrote")
    if data["schema"] != SCHEMA:
        newer = isinstance(data["schema"], int) and data["schema"] > SCHEMA
        remedy = "use a newer rhino, or plan again with this one" if newer else "plan again with this rhino"
        raise RhinoError(f"{path}: schema {data['schema']!r} is not {SCHEMA}", remedy)
    try:
        return _plan(data)
    except _Bad as bad:
        raise RhinoError(f"{path}: {bad}", _REMEDY) from None


class _Bad(Exception):
    """A field of the file is missing or ill-typed; the text names it."""


def _plan(data: dict[str, Any]) -> PlanData:
    mesh = _mesh(_get(data, "mesh", ""), "mesh")
    meshes = tuple(_mesh(entry, "meshes") for entry in _list(data.get("meshes", []), "meshes"))
    axes = list(dict.fromkeys(axis for found in (mesh, *meshes) for axis, _ in found))
    return PlanData(
        level=_text(_get(data, "level", ""), "level"),
        cluster=_text(_get(data, "cluster", ""), "cluster"),
        mesh=mesh,
        meshes=meshes,
        stages=_whole(_get(data, "stages", ""), "stages"),
        groups=_whole(data.get("groups", 1), "groups"),
        microbatches=_whole(_get(data, "microbatches", ""), "microbatches"),
        schedule=_text(_get(data, "schedule", ""), "schedule"),
        arguments=_each(data, "arguments", lambda entry, path: _tensor(entry, path, axes)),
        outputs=_each(data, "outputs", lambda entry, path: _tensor(entry, path, axes)),
        predicted=_predicted(_record(_get(data, "predicted", ""), "predicted")),
        search=_search(_record(_get(data, "search", ""), "search")),
        alternatives=_each(data, "alternatives", _alternative),
        program=_text(data.get("program", ""), "program"),
        statistics=_text(data.get("statistics", "batch"), "statistics"),
        kernels=_each(data, "kernels", _kernel) if "kernels" in data else (),
        machine=_machine(_record(data["machine"], "machine")) if "machine" in data else None,
        unsplit=_each(data, "unsplit", _unsplit) if "unsplit" in data else (),
        source=_unpack(data["module"]) if "module" in data else None,
    )


def _mesh(value: Any, path: str) -> tuple[tuple[str, int], ...]:
    return tuple((_text(axis, path), _whole(size, path)) for axis, size in _pairs(value, path))


def _tensor_data(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "role": tensor.role,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        **({"stored_shape": list(tensor.stored_shape)} if tensor.is_strided else {}),
        "sharding": [list(axes) for axes in tensor.sharding],
        **({"stages": list(tensor.stages)} if tensor.stages else {}),
    }


def _without_role(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "role"}


def _without_none(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}


def _tensor(entry: dict[str, Any], path: str, axes: list[str]) -> Tensor:
    shape = _sizes(_get(entry, "shape", path), f"{path}.shape")
    stored = _sizes(entry["stored_shape"], f"{path}.stored_shape") if "stored_shape" in entry else shape
    if factors_of(shape, stored) is None:
        raise _Bad(f"{path}.stored_shape {list(stored)} does not cut dimensions of {list(shape)} into factors")
    dims = _list(_get(entry, "sharding", path), f"{path}.sharding")
    sharding = tuple(tuple(_text(a, f"{path}.sharding") for a in _list(dim, f"{path}.sharding")) for dim in dims)
    if len(sharding) != len(stored):
        which = "the shape" if stored == shape else "the stored shape"
        raise _Bad(f"{path}.sharding has {len(sharding)} dimensions, but {which} has {len(stored)}")
    for axis in (axis for dim in sharding for axis in dim):
        if axis.partition(":")[0] not in axes:
            raise _Bad(f"{path}.sharding names axis {axis!r}, but the mesh has {', '.join(axes) or 'none'}")
    role = _text(entry.get("role", ""), f"{path}.role")
    name, given = _text(_get(entry, "name", path), f"{path}.name"), _text(_get(entry, "dtype", path), f"{path}.dtype")
    dtype = element_type(given) or given  # a file that somebody wrote may have NumPy's name
    stages = _sizes(entry.get("stages", []), f"{path}.stages")
    return Tensor(name, role, shape, dtype, sharding, stored, stages)


def _sizes(value: Any, path: str) -> tuple[int, ...]:
    return tuple(_whole(n, path) for n in _list(value, path))


def _predicted(data: dict[str, Any]) -> Predicted:
    values: dict[str, Any] = {}
    for field in fields(Predicted):
        path = f"predicted.{field.name}"
        value = _get(data, field.name, "predicted")
        if field.name in ("comm_bytes", "collectives", "memory"):
            values[field.name] = {key: _whole(n, f"{path}.{key}") for key, n in _record(value, path).items()}
        else:
            values[field.name] = _whole(value, path) if field.name == "peak_bytes" else _number(value, path)
    return Predicted(**values)


def _machine(data: dict[str, Any]) -> Machine:
    counts = (_whole(_get(data, name, "machine"), f"machine.{name}") for name in ("hosts", "devices_per_host"))
    return Machine(_text(_get(data, "device", "machine"), "machine.device"), *counts)


def _search(data: dict[str, Any]) -> Search:
    gap = _number(_get(data, "gap", "search"), "search.gap")
    return Search(_whole(_get(data, "candidates", "search"), "search.candidates"), gap)


def _alternative(entry: dict[str, Any], path: str) -> Alternative:
    time_s = _number(entry["step_time_s"], f"{path}.step_time_s") if "step_time_s" in entry else None
    peak = _whole(entry["peak_bytes"], f"{path}.peak_bytes") if "peak_bytes" in entry else None
    return Alternative(
        _text(_get(entry, "name", path), f"{path}.name"), _text(_get(entry, "why", path), f"{path}.why"), time_s, peak
    )


def _kernel(entry: dict[str, Any], path: str) -> KernelUse:
    values: dict[str, Any] = {}
    for field in fields(KernelUse):
        value, where = _get(entry, field.name, path), f"{path}.{field.name}"
        if field.name == "dims":
            values["dims"] = tuple(tuple(_text(a, where) for a in _list(dim, where)) for dim in _list(value, where))
        elif field.name in ("name", "where", "replicated"):
            values[field.name] = _text(value, where)
        else:
            values[field.name] = _number(value, where) if field.name.endswith("_s") else _whole(value, where)
    return KernelUse(**values)


def _unsplit(entry: dict[str, Any], path: str) -> Unsplit:
    values: dict[str, Any] = {}
    for field in fields(Unsplit):
        value, where = _get(entry, field.name, path), f"{path}.{field.name}"
        read = _text if field.name == "name" else _number if field.name == "step_time_s" else _whole
        values[field.name] = read(value, where)
    return Unsplit(**values)


def _pack(text: str) -> dict[str, str]:
    raw = text.encode()
    if len(raw) <= _INLINE_BYTES:
        return {"encoding": "text", "data": text}
    packed = gzip.compress(raw, compresslevel=6, mtime=0)
    return {"encoding": "gzip+base64", "data": base64.b64encode(packed).decode()}


def _unpack(value: Any) -> str:
    entry = _record(value, "module")
    encoding, data = (_text(_get(entry, key, "module"), f"module.{key}") for key in ("encoding", "data"))
    if encoding == "text":
        return data
    if encoding != "gzip+base64":
        raise _Bad(f"module.encoding is {encoding!r}, neither 'text' nor 'gzip+base64'")
    try:
        return gzip.decompress(base64.b64decode(data, validate=True)).decode()
    except (ValueError, EOFError, OSError, zlib.error):
        raise _Bad("module.data is damaged") from None


# --- reading typed values, each error with the path of the field ----------------------------------------------------


def _get(data: dict[str, Any], key: str, path: str) -> Any:
    if key not in data:
        raise _Bad(f"{path}.{key} is missing" if path else f"{key} is missing")
    return data[key]


def _typed(value: Any, kinds: type | tuple[type, ...], path: str, what: str) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise _Bad(f"{path} is {json.dumps(value)[:40]}, not {what}")
    return value


def _text(value: Any, path: str) -> str:
    return str(_typed(value, str, path, "a text"))


def _whole(value: Any, path: str) -> int:
    number = int(_typed(value, int, path, "a whole number"))
    if number < 0:
        raise _Bad(f"{path} is {number}, below zero")
    return number


def _number(value: Any, path: str) -> float:
    return float(_typed(value, (int, float), path, "a number"))


def _list(value: Any, path: str) -> list[Any]:
    return list(_typed(value, list, path, "a list"))


def _record(value: Any, path: str) -> dict[str, Any]:
    return dict(_typed(value, dict, path, "an object"))


def _pairs(value: Any, path: str) -> list[list[Any]]:
    pairs = [_list(pair, path) for pair in _list(value, path)]
    if any(len(pair) != 2 for pair in pairs):
        raise _Bad(f"{path} is not a list of [axis, size] pairs")
    return pairs


def _each(data: dict[str, Any], key: str, read: Callable[[dict[str, Any], str], Any]) -> tuple[Any, ...]:
    entries = _list(_get(data, key, ""), key)
    return tuple(read(_record(entry, f"{key}[{i}]"), f"{key}[{i}]") for i, entry in enumerate(entries))

"""How fragments take and give their values, as XLA compiled them: told by each process to those that did not.

Owns the shardings at the fragments' ends and how they are told. Knows nothing of how fragments are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from rhino.compile._jax_processes import share
from rhino.errors import RhinoError
from rhino.runtime.compile import CompiledPipeline

_COMPILE_S = 3600.0  # how long one process may compile while the others wait


@dataclass(frozen=True, slots=True)
class Boundary:
    """The shardings of a fragment's operands and results."""

    takes: tuple[Any, ...]
    gives: tuple[Any, ...]


def boundaries(compiled: CompiledPipeline) -> list[Boundary]:
    """How each fragment takes and gives its values, as XLA compiled it, wherever that was.

    With several processes each tells the others of its own; every process must call it.
    """
    own = {
        index: Boundary(tuple(e.compiled.input_shardings[0]), tuple(e.compiled.output_shardings))
        for index, e in enumerate(compiled.executables)
        if e is not None
    }
    if len(own) < len(compiled.executables):
        told = {str(index): [list(map(_encode, end)) for end in (b.takes, b.gives)] for index, b in own.items()}
        devices = {device.id: device for group in compiled.devices for device in group}
        for text in share("compiled fragments", json.dumps(told).encode(), _COMPILE_S):
            for index, ends in json.loads(text).items():
                if int(index) not in own:
                    takes, gives = (tuple(_decode(entry, devices) for entry in end) for end in ends)
                    own[int(index)] = Boundary(takes, gives)
    return [own[index] for index in range(len(compiled.executables))]


def _encode(sharding: Any) -> dict[str, Any]:
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        sharding = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())
    if not isinstance(sharding, NamedSharding):
        raise RhinoError(f"XLA gave a value of a pipeline a sharding that cannot be told to others: {sharding}")
    mesh = sharding.mesh
    return {
        "axes": list(zip(mesh.axis_names, mesh.devices.shape, strict=True)),
        "devices": [device.id for device in mesh.devices.flat],
        "spec": [None if part is None else [part] if isinstance(part, str) else list(part) for part in sharding.spec],
    }


def _decode(entry: dict[str, Any], devices: Mapping[int, Any]) -> NamedSharding:
    grid = np.empty(len(entry["devices"]), dtype=object)
    grid[:] = [devices[number] for number in entry["devices"]]
    mesh = Mesh(grid.reshape([size for _, size in entry["axes"]]), tuple(name for name, _ in entry["axes"]))
    return NamedSharding(mesh, PartitionSpec(*(None if part is None else tuple(part) for part in entry["spec"])))

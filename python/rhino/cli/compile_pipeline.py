"""What `rhino compile` does with a step in fragments: all of them compiled, memory and traffic by group of devices.

Owns the outputs. Knows nothing of how fragments are compiled; jax is imported when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rhino.errors import RhinoError
from rhino.machine.units import nbytes

if TYPE_CHECKING:
    from rhino.request import CompileRequest
    from rhino.runtime import PipelineExecutable


def compile_fragments(source: str | bytes, target: str, devices: int | None, how: CompileRequest) -> PipelineExecutable:
    """Every fragment compiled for the target, as asked.

    Raises:
      RhinoError: the module is for another number of devices, has no schedule, or XLA refuses.
    """
    from rhino.runtime import build

    executable = build(source, None, target, how=how)
    if devices is not None and devices != executable.devices:
        raise RhinoError(
            f"the module's stages have {executable.devices} devices, and {devices} were asked for",
            "leave --devices out, or plan for a cluster of that many",
        )
    return executable


def to_json(executable: PipelineExecutable) -> dict[str, Any]:
    """The keys of `rhino compile --json`, of the group of devices that needs most; all groups besides.

    Results take the buffers of arguments or are counted as temporaries, so that `output_bytes` and `alias_bytes` are 0.
    """
    memory = executable.memory_analysis()
    collectives = executable.collectives()
    fullest = max(memory.groups, key=lambda group: group.peak_bytes)
    groups = [
        {
            "group": group.group,
            "peak_bytes": group.peak_bytes,
            "argument_bytes": group.argument_bytes,
            "kept_bytes": group.kept_bytes,
            "running_bytes": group.running_bytes,
            "at": group.task,
            "collectives": [collective.to_json() for collective in collectives[group.group]],
        }
        for group in memory.groups
    ]
    return {
        "target": executable.target,
        "devices": executable.devices,
        "peak_bytes": fullest.peak_bytes,
        "argument_bytes": fullest.argument_bytes,
        "output_bytes": 0,
        "temp_bytes": fullest.kept_bytes + fullest.running_bytes,
        "alias_bytes": 0,
        "collectives": groups[fullest.group]["collectives"],
        "stages": executable.program.stages,
        "microbatches": executable.program.microbatches,
        "groups": groups,
        "transfers": [
            {"from": src, "to": dst, "bytes": sent} for (src, dst), sent in sorted(executable.transfers().items())
        ],
        "seconds": executable.seconds,
    }


def show(executable: PipelineExecutable) -> None:
    """Print memory, collectives and transfers of each group."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    data = to_json(executable)
    fragments, distinct = len(executable.program.fragments), len(set(executable.compiled.programs))
    console.print(
        f"compiled for {executable.target}, {data['stages']} stages on {len(data['groups'])} groups of devices, "
        f"{data['devices']} devices, {fragments} fragments ({distinct} different), in {executable.seconds:.2f} s"
    )
    table = Table(
        "group", "arguments", "kept", "running", "peak per device", "collectives", "sends to others",
        box=None, pad_edge=False,
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for group in data["groups"]:
        sent = sum(entry["bytes"] for entry in data["transfers"] if entry["from"] == group["group"])
        table.add_row(
            str(group["group"]),
            nbytes(group["argument_bytes"]),
            nbytes(group["kept_bytes"]),
            nbytes(group["running_bytes"]),
            nbytes(group["peak_bytes"]),
            nbytes(sum(collective["bytes"] for collective in group["collectives"])),
            nbytes(sent),
        )
    console.print(table)

"""What XLA measured of a compiled plan, taken from an executable, in the terms of the predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """Per device: bytes from XLA's buffer assignment; executions and bytes sent by kind of collective."""

    peak_bytes: int
    memory: Mapping[str, int]
    collectives: Mapping[str, int]
    comm_bytes: Mapping[str, int]


def measure(executable: Any) -> Measured | None:
    """The measurements of a `rhino.compile` Executable, or of the fullest stage of a pipeline; None for None."""
    if executable is None:
        return None
    memory = executable.memory_analysis()
    collectives = executable.collectives()
    counts: dict[str, int] = {}
    sent: dict[str, int] = {}
    if hasattr(memory, "groups"):
        fullest = max(memory.groups, key=lambda group: group.peak_bytes)
        temp_bytes = int(fullest.kept_bytes + fullest.running_bytes)
        parts = {"argument_bytes": int(fullest.argument_bytes), "temp_bytes": temp_bytes}
        collectives = collectives[fullest.group]
    else:
        keys = ("argument_bytes", "output_bytes", "temp_bytes", "alias_bytes", "host_bytes")
        parts = {key: int(getattr(memory, key)) for key in keys}
    for collective in collectives:
        counts[collective.kind] = counts.get(collective.kind, 0) + collective.count
        sent[collective.kind] = sent.get(collective.kind, 0) + collective.bytes
    return Measured(int(memory.peak_bytes), parts, counts, sent)

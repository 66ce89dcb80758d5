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
    """The measurements of a `rhino.compile` Executable; None for None."""
    if executable is None:
        return None
    memory = executable.memory_analysis()
    counts: dict[str, int] = {}
    sent: dict[str, int] = {}
    for collective in executable.collectives():
        counts[collective.kind] = counts.get(collective.kind, 0) + collective.count
        sent[collective.kind] = sent.get(collective.kind, 0) + collective.bytes
    parts = {key: int(getattr(memory, key)) for key in ("argument_bytes", "output_bytes", "temp_bytes", "alias_bytes")}
    return Measured(int(memory.peak_bytes), parts, counts, sent)

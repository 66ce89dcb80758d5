"""What a device of a stage holds: the rows that a peak is computed of, whatever the schedule.

Owns the formula (docs/design/pipelines.md, "Memory"). How the rows are found is in `rhino.pipeline.search.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhino.schema.kinds import Fault, Faults, Int
from rhino.schema.records import described, record, told


@described
class StageMemory:
    """Bytes on one device of a stage: a row of `rhino.memory`."""

    argument_bytes: int = told(Int(0), "arguments it keeps, the batch included")
    kept_bytes: int = told(Int(0), "what lives through the loop besides: accumulators, parameters cast once")
    saved_bytes: int = told(Int(0), "what the forward of a micro-batch leaves for its backward")
    loop_bytes: int = told(Int(0), "the most that one forward or backward needs, its saved bytes included")
    update_bytes: int = told(
        Int(0), "the most that is needed before or after the loop, besides arguments: accumulators, too"
    )


def peak_bytes(stages: Sequence[StageMemory], in_flight: Sequence[int]) -> int:
    """The peak of a device that runs these stages, each with so many micro-batches from their forward to backward."""
    static, once = group_bytes(stages)
    return max(static + sum(max(1, k) * m.saved_bytes for m, k in zip(stages, in_flight, strict=True)), once)


def group_bytes(stages: Sequence[StageMemory]) -> tuple[int, int]:
    """Bytes of a device that runs these stages: in the loop, what is saved left out; and the peak outside the loop."""
    arguments = sum(m.argument_bytes for m in stages)
    kept = sum(m.kept_bytes for m in stages)
    running = max(m.loop_bytes - m.saved_bytes for m in stages)
    once = max(m.update_bytes - m.kept_bytes for m in stages)
    return arguments + kept + running, arguments + max(0, kept + once)


def _faults(row: Mapping[str, Any]) -> Faults:
    if row["loop_bytes"] < row["saved_bytes"]:
        yield Fault(("loop_bytes",), f"is {row['loop_bytes']}, but it includes the {row['saved_bytes']} of saved_bytes")


ROW = record(StageMemory, rules=_faults)

"""What a device of a stage holds: the rows that a peak is computed of, whatever the schedule.

Owns the formula (docs/design/pipelines.md, "Memory"). How the rows are found is in `rhino.pipeline.search.memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on one device of a stage.

    Attributes:
      argument_bytes: arguments it owns, batch included.
      kept_bytes: what lives through the whole micro-batch loop besides: accumulators, parameters cast once.
      saved_bytes: what one micro-batch's forward leaves for its backward.
      loop_bytes: the most that one forward or backward needs at once, its own saved bytes included.
      update_bytes: the most that the ops before or after the loop need at once, accumulators included.
    """

    argument_bytes: int
    kept_bytes: int
    saved_bytes: int
    loop_bytes: int
    update_bytes: int

    def peak_bytes(self, in_flight: int) -> int:
        """The peak with this many micro-batches between their forward and their backward, alone on its devices."""
        static, once = group_bytes([self])
        return max(static + max(1, in_flight) * self.saved_bytes, once)


def group_bytes(stages: Sequence[StageMemory]) -> tuple[int, int]:
    """Bytes of a device that runs these stages: in the loop, what is saved left out; and the peak outside the loop."""
    arguments = sum(m.argument_bytes for m in stages)
    kept = sum(m.kept_bytes for m in stages)
    running = max(m.loop_bytes - m.saved_bytes for m in stages)
    once = max(m.update_bytes - m.kept_bytes for m in stages)
    return arguments + kept + running, arguments + max(0, kept + once)

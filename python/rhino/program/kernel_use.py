"""What a planned program makes of a kernel, as the search counts it and a plan tells it. Owns the record alone."""

from __future__ import annotations

from dataclasses import dataclass

from rhino.program.data import Dims


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Calls of one kernel that are split alike: what they cost one device in a step.

    Of a pipeline, a device of the stage that takes longest for them.

    Attributes:
      name: entry of the table of kernels, or the calls' target.
      count: executions in a step.
      dims: axes per dimension of the first operand.
      flops, time_s: arithmetic, and seconds of it or of memory traffic, whichever takes longer.
      sent_bytes, sent_s: what changing layouts around the calls sends, and its time.
      where: source line of the first call.
      replicated: why every device computes all of it; empty where it can be split.
    """

    name: str
    count: int
    dims: Dims
    flops: int
    time_s: float
    sent_bytes: int
    sent_s: float
    where: str
    replicated: str

    @property
    def key(self) -> tuple[object, ...]:
        """What calls have in common that are shown together."""
        return self.name, self.dims, self.replicated

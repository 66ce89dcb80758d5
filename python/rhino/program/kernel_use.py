"""What a planned program makes of a kernel, as the search counts it and a plan tells it. Owns the record alone."""

from __future__ import annotations

from rhino.program.data import Dims
from rhino.schema.kinds import Float, Int, ListOf, String
from rhino.schema.records import described, told


@described
class KernelUse:
    """Calls of one kernel that are split alike: what they cost one device in a step.

    Of a pipeline, a device of the stage that takes longest for them.
    """

    name: str = told(String(), "the entry of the table of kernels, or the calls' target")
    count: int = told(Int(1), "executions per step")
    dims: Dims = told(ListOf(ListOf(String())), "axes per dimension of the first operand")
    flops: int = told(Int(0), "arithmetic of one device and step")
    time_s: float = told(Float(0), "seconds of it or of memory traffic, whichever takes longer")
    sent_bytes: int = told(Int(0), "bytes sent to change layouts around the calls")
    sent_s: float = told(Float(0), "seconds of that")
    where: str = told(String(), "source line of the first call")
    replicated: str = told(String(), "why every device computes all of it; empty if it can be split")

    @property
    def key(self) -> tuple[object, ...]:
        """What calls have in common that are shown together."""
        return self.name, self.dims, self.replicated

"""What padding a dimension would give, where the devices do not divide its size: the finding, and a sentence of it.

Owns when it is worth telling. Who finds it out is `rhino.sharding.padding`; plans keep it.
"""

from __future__ import annotations

from rhino.machine.units import nbytes, seconds
from rhino.schema.kinds import Float, Int, String
from rhino.schema.records import described, told

# What is worth telling: shares of time, and of memory.
_FASTER, _SMALLER = 5e-3, 0.02


@described
class Unsplit:
    """A dimension of an argument that a plan would split further if its size divided.

    What it would gain is of a plan on the same mesh with the padded size, wherever it occurs.
    """

    name: str = told(String(), "an argument")
    dim: int = told(Int(0), "one of its dimensions")
    size: int = told(Int(1), "the size of that")
    parts: int = told(Int(1), "into how many parts it is stored")
    padded: int = told(Int(1), "the next size that all devices divide")
    step_time_s: float = told(Float(0), "what a step would take with that size")
    peak_bytes: int = told(Int(0), "the memory it would take on one device")


def gains(found: Unsplit, step_time_s: float, peak_bytes: int) -> bool:
    """Whether padding would be felt, against the plan as it is."""
    return found.step_time_s < step_time_s * (1 - _FASTER) or found.peak_bytes < peak_bytes * (1 - _SMALLER)


def describe(found: Unsplit, devices: int, step_time_s: float, peak_bytes: int) -> str:
    """One line for people, against the plan as it is."""
    now = "is not split" if found.parts == 1 else f"is split into {found.parts} parts"
    if found.step_time_s < step_time_s * (1 - _FASTER):
        time = f"take {seconds(found.step_time_s)} instead of {seconds(step_time_s)}"
    else:
        time = "be no faster"
    saved = peak_bytes - found.peak_bytes
    more = "less" if saved > 0 else "more"
    room = f" and need {nbytes(abs(saved))} {more} per device" if abs(saved) > peak_bytes * _SMALLER else ""
    return (
        f"dim {found.dim} of {found.name} ({found.size}) {now}: {devices} devices do not divide it; "
        f"padded to {found.padded}, a step would {time}{room}"
    )

"""A planned call compiled so that it fits: planned again, within less, where XLA needs more memory than devices have.

Owns when that is tried, and what is said. How calls are planned and compiled is in `build` and `built`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from rhino.api.agreed import agreed_most
from rhino.api.built import Built, executable
from rhino.compile.room import Shortage, shortage
from rhino.errors import RhinoError, RhinoWarning
from rhino.machine import Cluster

# Each time the limit is less by as much as the last prediction was too small.
_TIMES = 3


def fitting(built: Built, cluster: Cluster, again: Callable[[int], Built] | None) -> Built:
    """A call, compiled: as it was planned, or planned again, where the program has no room.

    Warns of both: of a program that was planned again, and of one that does not fit and stays.

    Args:
      again: plans the call within so many bytes per device; None where the user said what the plan has to be.

    Raises:
      RhinoError: the devices are of this process's kind but too few, or XLA refuses.
    """
    if built.compiled is not None:
        return built
    executable(built, cluster)
    for _ in range(_TIMES):
        short = lacking(built, cluster)
        if short is None:
            return built
        if again is None:
            break
        try:
            other = again(short.limit)
        except RhinoError as error:
            said = f"{short.found}, and there is no plan within {short.limit} bytes: {error.message}"
            warnings.warn(said, RhinoWarning, stacklevel=3)
            return built
        executable(other, cluster)
        before, after = (b.plan.predicted.step_time_s * 1e3 for b in (built, other))
        warnings.warn(
            f"{short.found}. Planned again within {short.limit} bytes: {other.plan.shape_name}, predicted step "
            f"{after:.4g} ms instead of {before:.4g}",
            RhinoWarning,
            stacklevel=3,
        )
        built = other
    warn_if_lacking(built, cluster)
    return built


def lacking(built: Built, cluster: Cluster) -> Shortage | None:
    """What the compiled program of a call lacks; in a job, that of the process whose XLA takes the most.

    Kernels that XLA chooses by timing them may work in memory of their own.
    """
    if not built.peak_bytes or cluster.device.xla_target == "cpu":
        return None
    peak = built.peak_bytes if built.job is None else agreed_most(built.job, built.peak_bytes)
    return shortage(peak, built.plan.predicted.peak_bytes, cluster)


def warn_if_lacking(built: Built, cluster: Cluster) -> None:
    """Say that a program does not fit, and within what to plan; nothing if it does."""
    if short := lacking(built, cluster):
        warnings.warn(str(short), RhinoWarning, stacklevel=3)

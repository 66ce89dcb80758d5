"""Lets XLA run collectives beside computing, in an order that goes by the times of a cluster.

Owns the options that takes, the profile from which XLA's scheduler learns the times, and the choice among what was
compiled. How a program is compiled is the caller's.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rhino.compile.timeline import Timeline
from rhino.errors import RhinoError, RhinoWarning

if TYPE_CHECKING:
    from rhino.compile.executable import Executable
    from rhino.machine import Cluster

# What a reduction of gradients waits for in a loop is the last gradient that it is combined with: small ones only.
# XLA: asynchronous-collectives
OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_enable_analytical_sol_latency_estimator": True,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 4 * 2**20,
    }
)
# A trip of a loop over layers has little beside which its own collectives could run: they move to another trip.
PIPELINED: Mapping[str, Any] = MappingProxyType(
    {f"xla_gpu_enable_pipelined_{kind}": True for kind in ("all_gather", "all_reduce", "reduce_scatter")}
)
# A file, which is gone when the program is compiled.
PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
# Of a step, what computing may wait for without a second compilation.
_WORTH = 0.01


def overlapped(
    compile_with: Callable[[Mapping[str, Any]], Executable], cluster: Cluster, options: Mapping[str, Any]
) -> Executable:
    """The program in the order in which computing waits least for collectives, if it fits the devices.

    XLA's scheduler puts a collective beside as much computing as it takes to its mind. That knows the times of few
    devices and of no network. So the program is compiled, every instruction is priced as `read_timeline` does, and it
    is compiled again with these times in the form of a measured profile. What has the shorter timeline is kept. It
    takes more memory than the plain order, because gradients are put off, and layers' weights are gathered in the trip
    before theirs: where neither fits what plans may use of a device, collectives stay in their trips, and where that
    does not either, the plain order is compiled.

    Args:
      compile_with: compiles the program with these options beside Rhino's own.
      options: the caller's, which win.

    Raises:
      RhinoError: XLA refuses the plain order, too.
    """
    try:
        for ours in ({**OPTIONS, **PIPELINED}, OPTIONS):
            fits = [
                (seconds, one)
                for seconds, one in _ordered(compile_with, cluster, {**ours, **options})
                if one.memory_analysis().peak_bytes <= cluster.device.plan_bytes
            ]
            if fits:
                return min(fits, key=lambda one: one[0])[1]
    except RhinoError as error:
        # These options are XLA's own business, and change: a step must not fail by them.
        plain = compile_with(options)
        warnings.warn(f"collectives wait in XLA's plain order: {error}", RhinoWarning, stacklevel=2)
        return plain
    return compile_with(options)


def _ordered(
    compile_with: Callable[[Mapping[str, Any]], Executable], cluster: Cluster, options: Mapping[str, Any]
) -> list[tuple[float, Executable]]:
    """The program by XLA's own times, and by the cluster's where computing waits: seconds of a step, and what it is."""
    first = compile_with(options)
    timeline = first.timeline(cluster)
    found = [(timeline.total_s, first)]
    if sum(timeline.exposed_s.values()) > _WORTH * timeline.total_s:
        # XLA reads the file while it compiles, and never again.
        with tempfile.NamedTemporaryFile("w", prefix="rhino-", suffix=".pbtxt", encoding="utf-8") as file:
            file.write(profile(timeline))
            file.flush()
            again = compile_with({PROFILE: file.name, **options})
        found.append((again.timeline(cluster).total_s, again))
    return found


def profile(timeline: Timeline) -> str:
    """What each instruction takes, as XLA's ProfiledInstructionsProto in text: names, and microseconds of one run."""
    seconds = {event.name: event.seconds for event in timeline.events}
    return "".join(f'costs {{ name: "{name}" cost_us: {1e6 * seconds[name]:.3f} }}\n' for name in sorted(seconds))

"""Lets XLA run collectives beside computing, in an order that goes by the times of a cluster.

Owns the options that takes, the profile from which XLA's scheduler learns the times, and the choice among what was
compiled. How a program is compiled is the caller's.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rhino.compile.timeline import Timeline
from rhino.errors import RhinoError, RhinoWarning
from rhino.xla.backends import LESS_MEMORY

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
# A file, which is gone when the program is compiled.
PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
# Of a step, what computing may wait for without a further compilation.
_WORTH = 0.01
_SUMS = ("all-reduce", "reduce-scatter")
# Of a step, what computing must wait for sums, and what putting them off must save: it takes memory, too.
_LATER = 0.02
# Where computing waits for so much of a step even so, sums are combined up to so many bytes.
_MUCH, _SMALL = 0.1, 2**20
_COMBINED = "xla_gpu_all_reduce_combine_threshold_bytes"
# Compiles a program with options of XLA's beside Rhino's own.
Compiler = Callable[[Mapping[str, Any]], "Executable"]
_Timed = tuple[Timeline, "Executable"]


def overlapped(
    compile_with: Compiler,
    cluster: Cluster,
    options: Mapping[str, Any],
    compile_later: Callable[[], Compiler | None] = lambda: None,
) -> Executable:
    """The program in the order in which computing waits least for collectives, if it fits the devices.

    XLA's scheduler puts a collective beside as much computing as it takes to its mind. That knows the times of few
    devices and of no network. So the program is compiled, every instruction is priced as `read_timeline` does, and it
    is compiled again with these times in the form of a measured profile. Where computing waits for sums, the program
    that sums gradients in loops later (`rhino.ir.late_sums`) is tried in the same way. What has the shortest timeline
    is kept. It takes more memory than the plain order, because gradients are put off: where nothing fits what plans
    may use of a device, the same is tried with XLA's own limit of memory, and then the plain order is compiled.

    XLA can also move collectives of a loop to another trip (`xla_gpu_enable_pipelined_all_gather` and the like): that
    is left alone, since it ended the process on an LSTM.

    Args:
      options: the caller's, which win.
      compile_later: what compiles the program that sums gradients later; None if it has no such sums.

    Raises:
      RhinoError: XLA refuses the plain order, too.
    """
    try:
        found = _in_orders(compile_with, compile_later, cluster, {**OPTIONS, **options})
        if not _fitting(found, cluster):
            # Under XLA's own limit less is put off.
            found = _in_orders(compile_with, compile_later, cluster, {**OPTIONS, **LESS_MEMORY, **options})
    except RhinoError as error:
        # These options are XLA's own business, and change: a step must not fail by them.
        plain = compile_with(options)
        warnings.warn(f"collectives wait in XLA's plain order: {error}", RhinoWarning, stacklevel=2)
        return plain
    fits = _fitting(found, cluster)
    return _shortest(fits)[1] if fits else compile_with(options)


def _in_orders(
    compile_with: Compiler,
    compile_later: Callable[[], Compiler | None],
    cluster: Cluster,
    options: Mapping[str, Any],
) -> list[_Timed]:
    """The program by XLA's own times and, where computing waits, by the cluster's, and with sums that are later."""
    first = compile_with(options)
    found = [(first.timeline(cluster), first)]
    later = compile_later() if _waits(found[0][0], _SUMS, _LATER) else None
    if later is not None:
        found.extend(_later(later, cluster, options))
    if _shortest(_fitting(found, cluster) or found)[1] is first:
        found.extend(_by_profile(compile_with, found[0], cluster, options))
    return found


def _later(later: Compiler, cluster: Cluster, options: Mapping[str, Any]) -> Iterator[_Timed]:
    """The program whose sums are later; with smaller sums, too, where computing waits for them even so."""
    first = later(options)
    found = [(first.timeline(cluster), first)]
    found.extend(_by_profile(later, found[0], cluster, options))
    if _COMBINED not in options and _waits(_shortest(found)[0], _SUMS, _MUCH):
        # Between other collectives of the trip there is room for a small one: one runs at a time.
        smaller = later({_COMBINED: _SMALL, **options})
        found.append((smaller.timeline(cluster), smaller))
    yield from found


def _by_profile(
    compile_with: Compiler, first: _Timed, cluster: Cluster, options: Mapping[str, Any]
) -> Iterator[_Timed]:
    """The program again by the cluster's times, if computing waits."""
    timeline = first[0]
    if _waits(timeline, timeline.exposed_s):
        # XLA reads the file while it compiles, and never again.
        with tempfile.NamedTemporaryFile("w", prefix="rhino-", suffix=".pbtxt", encoding="utf-8") as file:
            file.write(profile(timeline))
            file.flush()
            again = compile_with({PROFILE: file.name, **options})
        yield again.timeline(cluster), again


def _waits(timeline: Timeline, kinds: Iterable[str], worth: float = _WORTH) -> bool:
    """Whether computing waits for collectives of these kinds for more than a share of the step."""
    return sum(timeline.exposed_s.get(kind, 0.0) for kind in kinds) > worth * timeline.total_s


def _shortest(found: Sequence[_Timed]) -> _Timed:
    """What takes least; sums that are later must be worth it."""
    return min(found, key=lambda one: one[0].total_s * (1 + _LATER * one[1].summed_later))


def _fitting(found: Sequence[_Timed], cluster: Cluster) -> list[_Timed]:
    """Those that plans may take of a device."""
    return [one for one in found if one[1].memory_analysis().peak_bytes <= cluster.device.plan_bytes]


def profile(timeline: Timeline) -> str:
    """What each instruction takes, as XLA's ProfiledInstructionsProto in text: names, and microseconds of one run."""
    seconds = {event.name: event.seconds for event in timeline.events}
    return "".join(f'costs {{ name: "{name}" cost_us: {1e6 * seconds[name]:.3f} }}\n' for name in sorted(seconds))

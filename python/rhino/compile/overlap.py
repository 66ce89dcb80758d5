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
from rhino.ir.other_trips import IN_PLACE, OtherTrips
from rhino.xla.backends import BESIDE, LESS_MEMORY

if TYPE_CHECKING:
    from rhino.compile.executable import Executable
    from rhino.machine import Cluster

# XLA: asynchronous-collectives
OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_enable_analytical_sol_latency_estimator": True,
        **BESIDE,
    }
)
# A file, which is gone when the program is compiled.
PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
# Of a step, what computing may wait for without a further compilation.
_WORTH = 0.01
_SUMS, _GATHERS = ("all-reduce", "reduce-scatter"), ("all-gather",)
# Than the longest of other collectives, how much longer one is said to take that comes first.
_LONGER = 1.05
# Of a step, what computing must wait for sums, or for gathers, and what doing them in other trips of loops must save.
_OTHERWISE, _SAVED = 0.02, 0.01
_LATER = OtherTrips(sums_later=True)
# With sums at once, products that make gradients are not free to be beside gathers; but gathers that fill a trip may be
# in the way of those of activations. XLA's order is that of a list, and neither is always better.
_EARLIER = (OtherTrips(sums_later=True, gathers_earlier="all"), OtherTrips(gathers_earlier="first"))
# Compiles a program with options of XLA's beside Rhino's own.
Compiler = Callable[[Mapping[str, Any]], "Executable"]
# Compiles a program whose loops do things in other trips; with what of these there was to do.
Changing = Callable[[OtherTrips], tuple[OtherTrips, Compiler]]
_Timed = tuple[Timeline, "Executable"]


def overlapped(
    compile_with: Compiler,
    cluster: Cluster,
    options: Mapping[str, Any],
    changing: Changing | None = None,
) -> Executable:
    """The program in the order in which computing waits least for collectives, if it fits the devices.

    XLA's scheduler puts a collective beside as much computing as it takes to its mind. That knows the times of few
    devices and of no network. So the program is compiled, every instruction is priced as `read_timeline` does, and it
    is compiled again with these times in the form of a measured profile. Where computing waits for sums, the program
    that sums gradients in loops later (`rhino.ir.late_sums`) is tried in the same way, and where it waits for gathers,
    those that gather parameters earlier (`rhino.ir.early_gathers`). What has the shortest timeline is kept. It takes
    more memory than the plain order, because gradients are put off: where nothing fits what plans may use of a device,
    the program as it is is tried with XLA's own limit of memory, and then in the plain order, which is kept if it takes
    less memory than any other.

    XLA can also move collectives of a loop to another trip (`xla_gpu_enable_pipelined_all_gather` and the like): that
    is left alone, since it ended the process on an LSTM.

    Args:
      options: the caller's, which win.
      changing: what compiles the program with things done in other trips of its loops.

    Raises:
      RhinoError: XLA refuses the plain order, too.
    """
    try:
        found = _in_orders(compile_with, changing, cluster, {**OPTIONS, **options})
        if not _fitting(found, cluster):
            # Under XLA's own limit less is put off; what other trips take comes on top.
            found += _in_orders(compile_with, None, cluster, {**OPTIONS, **LESS_MEMORY, **options})
    except RhinoError as error:
        # These options are XLA's own business, and change: a step must not fail by them.
        plain = compile_with(options)
        warnings.warn(f"collectives wait in XLA's plain order: {error}", RhinoWarning, stacklevel=2)
        return plain
    fits = _fitting(found, cluster)
    if not fits:
        plain = compile_with(options)
        fits = [one for one in found if _peak(one[1]) <= _peak(plain)] or [(plain.timeline(cluster), plain)]
    return _shortest(fits)[1]


def _in_orders(
    compile_with: Compiler, changing: Changing | None, cluster: Cluster, options: Mapping[str, Any]
) -> list[_Timed]:
    """The program by XLA's own times and, where computing waits, by the cluster's, and with things in other trips."""
    first = compile_with(options)
    found = [(first.timeline(cluster), first)]
    tried = {IN_PLACE}

    def best() -> _Timed:
        return _shortest(_fitting(found, cluster) or found)

    def try_otherwise(trips: OtherTrips) -> None:
        there, compiler = (IN_PLACE, compile_with) if changing is None else changing(trips)
        if there not in tried:
            tried.add(there)
            other = compiler(options)
            timed = other.timeline(cluster), other
            found.extend((timed, *_by_profile(compiler, timed, cluster, options)))

    if _waits(found[0][0], _SUMS, _OTHERWISE):
        try_otherwise(_LATER)
    found.extend(_by_profile(compile_with, found[0], cluster, options, again=best()[1] is first))
    if _waits(best()[0], _GATHERS, _OTHERWISE):
        for trips in _EARLIER:
            try_otherwise(trips)
    return found


def _by_profile(
    compile_with: Compiler, first: _Timed, cluster: Cluster, options: Mapping[str, Any], again: bool = True
) -> Iterator[_Timed]:
    """The program by the cluster's times, if computing waits, and so that awaited collectives come first.

    Args:
      again: whether the former, too: another program is known to be better than this one as it is.
    """
    timeline = first[0]
    if not _waits(timeline, timeline.exposed_s):
        return
    profiles = [profile(timeline)] if again else []
    if timeline.awaited and _waits(timeline, timeline.exposed_s, _OTHERWISE):
        profiles.append(profile(timeline, awaited_first=True))
    for text in dict.fromkeys(profiles):
        # XLA reads the file while it compiles, and never again.
        with tempfile.NamedTemporaryFile("w", prefix="rhino-", suffix=".pbtxt", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            made = compile_with({PROFILE: file.name, **options})
        yield made.timeline(cluster), made


def _waits(timeline: Timeline, kinds: Iterable[str], worth: float = _WORTH) -> bool:
    """Whether computing waits for collectives of these kinds for more than a share of the step."""
    return sum(timeline.exposed_s.get(kind, 0.0) for kind in kinds) > worth * timeline.total_s


def _shortest(found: Sequence[_Timed]) -> _Timed:
    """What takes least; doing things in other trips must be worth it."""
    return min(found, key=lambda one: one[0].total_s * (1 + _SAVED * bool(one[1].other_trips)))


def _fitting(found: Sequence[_Timed], cluster: Cluster) -> list[_Timed]:
    """Those that plans may take of a device."""
    return [one for one in found if _peak(one[1]) <= cluster.device.plan_bytes]


def _peak(program: Executable) -> int:
    return program.memory_analysis().peak_bytes


def profile(timeline: Timeline, awaited_first: bool = False) -> str:
    """What each instruction takes, as XLA's ProfiledInstructionsProto in text: names, and microseconds of one run.

    XLA's scheduler goes from the end of a loop's body to its beginning. Of collectives that could be next it takes the
    one that ends the longest chain of them, be it a sum of gradients that nothing waits for: that has computing beside
    it only as long as there is some that the chain of activations does not hold up.

    Args:
      awaited_first: says that each collective of that chain takes longer than any other, so that it is taken first, and
        the others run beside what it makes free.
    """
    seconds = {event.name: event.seconds for event in timeline.events}
    if awaited_first:
        seconds |= {name: max(seconds[name], _LONGER * other_s) for name, other_s in timeline.awaited.items()}
    return "".join(f'costs {{ name: "{name}" cost_us: {1e6 * seconds[name]:.3f} }}\n' for name in sorted(seconds))

"""A compiled program in time: every kernel, collective and copy to the host in XLA's order, on a stream for each kind.

Owns the simulation and its sums. What one instruction takes is `hlo_times`'; no plan and no search is known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rhino.compile.between import between
from rhino.compile.collectives import site_of
from rhino.compile.hlo import Computation, HloModule, Instruction, called_computations, parse_hlo
from rhino.compile.hlo_loops import trip_count
from rhino.compile.hlo_times import FROM_HOST, TO_HOST, HloTimes, host_copy_of, is_convolution
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.host import Starting, host_rates

_SOURCE = re.compile(r'source_file="([^"]*)"(?:\s+source_line=(\d+))?')
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction, or one loop as a whole, where it runs first.

    Attributes:
      kind: "product", "kernel", "moves", "loop", the kind of a collective, "from-host" or "to-host".
      stream: "compute", "send", or the last two.
      start_s: seconds from the beginning of the step; of what is in a loop, in its first iteration.
      seconds: of one execution.
      executions: in a step.
      source: file and line, else the operation's name, else "".
      depth: loops around it.
    """

    name: str
    kind: str
    stream: str
    start_s: float
    seconds: float
    executions: int
    source: str
    depth: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """One device's step.

    Attributes:
      total_s: from its beginning to its end.
      compute_s: of kernels, by kind.
      sent_s: of collectives and copies from and to the host, by kind, whether hidden or not.
      exposed_s: by these kinds, how long computing waits for them.
      exposed_by: the same by source.
      kernels: executions of what computes.
      host_s: in which the host starts all this (`rhino.machine.host`), beside it: no step takes less.
      unknown_loops: loops whose trip counts cannot be read, counted once.
      events: in order of their start.
      awaited: of the collectives of a loop's body between two products, of one trip or two, which wait for one another:
        by name, the seconds that the longest of the body's other collectives takes.
    """

    total_s: float
    compute_s: Mapping[str, float]
    sent_s: Mapping[str, float]
    exposed_s: Mapping[str, float]
    exposed_by: Mapping[str, float]
    kernels: int
    host_s: float
    unknown_loops: int
    events: tuple[Event, ...]
    awaited: Mapping[str, float] = field(default_factory=dict)

    @property
    def period_s(self) -> float:
        """Seconds from one step to the next."""
        return max(self.total_s, self.host_s)

    def to_json(self) -> dict[str, Any]:
        """The sums, as `rhino compile --json` has them; seconds."""
        return {name: value for name, value in asdict(self).items() if name not in ("events", "awaited")}

    def trace(self) -> str:
        """The events as JSON for Perfetto and chrome://tracing: a row per stream, loops by their first iteration."""
        rows = {"compute": 1, "send": 2, FROM_HOST: 3, TO_HOST: 4}
        named: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": stream}}
            for stream, row in rows.items()
        ]
        slices = [
            {
                "ph": "X", "pid": 1, "tid": rows[e.stream], "name": e.name, "cat": e.kind,
                "ts": 1e6 * e.start_s, "dur": 1e6 * e.seconds,
                "args": {"source": e.source, "executions": e.executions},
            }
            for e in self.events
        ]  # fmt: skip
        return json.dumps({"traceEvents": [*named, *slices], "displayTimeUnit": "ms"}) + "\n"


def read_timeline(hlo_text: str, cluster: Cluster, graphs: bool = True) -> Timeline:
    """The timeline of an optimized HLO module on a cluster whose devices it was compiled for.

    Kernels run one after the other in XLA's schedule; a collective that XLA made asynchronous runs beside them, after
    the one before it, from its start until its end, where computing waits for it. So do copies from the host's memory,
    and those to it. Loops take their first
    iteration times their trips; of branches the longest counts.

    Args:
      graphs: whether kernels run as CUDA graphs, as XLA has it unless told otherwise.

    Raises:
      RhinoError: it is for more devices than the cluster has.
    """
    module = parse_hlo(hlo_text)
    if module.devices > cluster.num_devices:
        raise RhinoError(
            f"the program is for {module.devices} devices and {cluster.name} has {cluster.num_devices}",
            "name the cluster it was planned for",
        )
    run = _Simulation(module, HloTimes(module, cluster), Starting(host_rates(cluster), graphs))
    entry = module.computations[module.entry]
    run.starting.arrays(sum(one.opcode == "parameter" for one in entry.instructions.values()))
    total_s = run.computation(entry, 0.0, 1, 0)
    events = tuple(sorted(run.events, key=lambda e: (e.start_s, e.depth, e.stream)))
    return Timeline(
        total_s, dict(sorted(run.computed.items())), dict(sorted(run.sent.items())), dict(sorted(run.exposed.items())),
        dict(sorted(run.exposed_by.items(), key=lambda entry: (-entry[1], entry[0]))), run.kernels,
        run.starting.seconds, run.unknown, events, run.awaited,
    )  # fmt: skip


@dataclass
class _Simulation:
    """Where the streams are, and what was summed so far."""

    module: HloModule
    times: HloTimes
    starting: Starting
    events: list[Event] = field(default_factory=list)
    awaited: dict[str, float] = field(default_factory=dict)
    computed: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    exposed_by: dict[str, float] = field(default_factory=dict)
    kernels: int = 0
    unknown: int = 0

    def computation(self, computation: Computation, now_s: float, executions: int, depth: int) -> float:
        """When a computation that begins now ends. Sends and copies of its own have ended by then, too."""
        sending_s = now_s
        copied_s = {FROM_HOST: now_s, TO_HOST: now_s}
        # By the start of what runs beside: its kind, its source, and when it ends.
        pending: dict[str, tuple[str, str, float]] = {}
        products: set[str] = set()
        sent: dict[str, float] = {}
        for one in computation.instructions.values():
            if one.opcode == "while":
                now_s = self._loop(computation, one, now_s, executions, depth)
            elif one.opcode == "conditional":
                now_s = self._branches(one, now_s, executions, depth)
            elif one.opcode in ("call", "async-start"):
                for name in called_computations(one).get("to_apply", called_computations(one).get("calls", [])):
                    now_s = self.computation(self.module.computations[name], now_s, executions, depth)
            elif (site := site_of(self.module, computation, one)) is not None:
                self.starting.apart(executions)
                start_s = max(now_s, sending_s)
                seconds = sent[one.name] = self.times.sent(site, site.full_bytes)
                sending_s = start_s + seconds
                self.sent[site.kind] = self.sent.get(site.kind, 0.0) + executions * seconds
                self._note(one, site.kind, "send", start_s, seconds, executions, depth)
                if one.opcode.endswith("-start") and not _is_synchronous(one):
                    pending[one.name] = site.kind, _source(one), sending_s
                else:
                    now_s = self._wait(site.kind, _source(one), now_s, sending_s, executions)
            elif (copy := host_copy_of(computation, one)) is not None:
                kind = copy.kind
                self.starting.apart(executions)
                start_s, seconds = max(now_s, copied_s[kind]), self.times.copied(copy)
                copied_s[kind] = start_s + seconds
                self.sent[kind] = self.sent.get(kind, 0.0) + executions * seconds
                self._note(one, kind, kind, start_s, seconds, executions, depth)
                if one.opcode.endswith("-start"):
                    pending[one.name] = kind, _source(one), copied_s[kind]
                else:
                    now_s = self._wait(kind, _source(one), now_s, copied_s[kind], executions)
            elif one.opcode.endswith(("-done", "-update")):
                if one.opcode.endswith("-done") and one.operands and one.operands[0] in pending:
                    kind, source, end_s = pending.pop(one.operands[0])
                    now_s = self._wait(kind, source, now_s, end_s, executions)
            elif (work := self.times.compute(computation, one)) is not None:
                self.computed[work.kind] = self.computed.get(work.kind, 0.0) + executions * work.seconds
                self.kernels += executions
                if work.kind != "moves":
                    products.add(one.name)
                if is_convolution(one):
                    self.starting.apart(executions)
                else:
                    self.starting.kernel(executions)
                self._note(one, work.kind, "compute", now_s, work.seconds, executions, depth)
                now_s += work.seconds
        self.starting.end()
        if depth:
            waiting = between(computation, products).intersection(sent)
            longest_s = max((seconds for name, seconds in sent.items() if name not in waiting), default=0.0)
            self.awaited.update(dict.fromkeys(sorted(waiting), longest_s))
        return now_s

    def _wait(self, kind: str, source: str, now_s: float, end_s: float, executions: int) -> float:
        """Computing goes on when a collective has ended."""
        waited_s = executions * max(0.0, end_s - now_s)
        if waited_s:
            self.exposed[kind] = self.exposed.get(kind, 0.0) + waited_s
            self.exposed_by[source] = self.exposed_by.get(source, 0.0) + waited_s
        return max(now_s, end_s)

    def _loop(self, computation: Computation, one: Instruction, now_s: float, executions: int, depth: int) -> float:
        trips = trip_count(self.module, computation, one)
        self.unknown += trips is None
        count = 1 if trips is None else trips
        if not count:
            return now_s
        self.starting.end()
        body = self.module.computations[called_computations(one)["body"][0]]
        once_s = self.computation(body, now_s, executions * count, depth + 1) - now_s
        self._note(one, "loop", "compute", now_s, count * once_s, executions, depth)
        return now_s + count * once_s

    def _branches(self, one: Instruction, now_s: float, executions: int, depth: int) -> float:
        """The longest branch runs."""
        self.starting.end()
        names = [name for names in called_computations(one).values() for name in names]
        longest, end_s = None, now_s
        for name in names:
            tried = _Simulation(self.module, self.times, replace(self.starting, seconds=0.0))
            if (ended_s := tried.computation(self.module.computations[name], now_s, executions, depth)) > end_s:
                longest, end_s = tried, ended_s
        if longest is not None:
            self._add(longest)
        return end_s

    def _add(self, other: _Simulation) -> None:
        for ours, theirs in (
            (self.computed, other.computed), (self.sent, other.sent), (self.exposed, other.exposed),
            (self.exposed_by, other.exposed_by),
        ):  # fmt: skip
            for key, seconds in theirs.items():
                ours[key] = ours.get(key, 0.0) + seconds
        self.events += other.events
        self.awaited |= other.awaited
        self.kernels += other.kernels
        self.starting.seconds += other.starting.seconds
        self.unknown += other.unknown

    def _note(
        self, one: Instruction, kind: str, stream: str, start_s: float, seconds: float, executions: int, depth: int
    ) -> None:
        self.events.append(Event(one.name, kind, stream, start_s, seconds, executions, _source(one), depth))


def _is_synchronous(instruction: Instruction) -> bool:
    """Whether XLA waits for a collective where it starts it, although it is written in two halves."""
    return '"is_sync":true' in instruction.raw_attributes


def _source(instruction: Instruction) -> str:
    found = _SOURCE.search(instruction.raw_attributes)
    if found:
        return f"{found.group(1)}:{found.group(2)}" if found.group(2) else found.group(1)
    named = _OP_NAME.search(instruction.raw_attributes)
    return named.group(1) if named else ""

"""Cross-mesh resharding over a shaped network, by every strategy, against the lower bound and JAX's own transfers.

    python -m bench.resharding [--only TEXT ...] [--mib N] [--mbit N] [--rounds N] [--quick] [--json FILE|-]

Hosts are network namespaces of this machine, each a process with 2 or 4 CPU devices and a link shaped to 200 Mbit/s
each way, slow enough that the network and not the processor decides; how busy the processors were is printed. A case
is a tensor of N MiB, sharded over the hosts of one mesh, that becomes sharded over those of another. In each round all
ways move it once, from a common start until the last device has its part; what arrived is compared bit for bit, outside
of the time. The bound is the model's (bytes through the busiest link at its nominal rate), so headers count against us;
the calibration line says what one plain TCP stream gets. For all ways alike, processes take memory for 12 such tensors
before the first round and keep it. The peer is `jax.device_put` between processes, which can only keep a sharding on
another mesh of as many devices: where more is asked, the rest is `jax.jit` on the target mesh.

Needs Linux and root (`ip`, `tc`); says so and ends well where it cannot run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench._common import Table, interleave, main, measure_and_publish, note, parser, select, spread
from bench._crew import Crew, held
from bench._namespaces import Network, available, network
from bench._resharding_worker import PEER

# glibc (2.35) keeps what was freed, as a GPU's allocator does, and asks for huge pages: a virtual machine may take
# 0.2 s to give a process 64 MiB, which are copied in 0.01 s.
_ENVIRONMENT = {
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{name}={value}"
        for name, value in (("arena_max", 1), ("mmap_max", 0), ("trim_threshold", 1 << 40), ("hugetlb", 1))
    )
}
_OPTIMAL = "broadcast, optimal"
_SENDS = "send-recv"
# How each way is called, its strategy, and its scheduler. The other strategies get the best order, too.
_WAYS = (
    (_SENDS, "send-recv", "optimal"),
    ("local all-gather", "local-all-gather", "optimal"),
    ("global all-gather", "global-all-gather", "optimal"),
    ("broadcast, naive", "broadcast", "naive"),
    ("broadcast, greedy", "broadcast", "greedy"),
    (_OPTIMAL, "broadcast", "optimal"),
)
WAY_NAMES = (*(name for name, _, _ in _WAYS), PEER)
_OVER_BOUND, _TOLERANCE, _FASTER = 1.25, 1.05, 6.0
_LARGE_BYTES = 64 << 20

Axes = tuple[str, ...]
_R: Axes = ()
_S0: Axes = ("a",)
_S1: Axes = ("b",)
_S01: Axes = ("a", "b")


@dataclass(frozen=True, slots=True)
class Side:
    """A mesh (hosts, devices of each) and the mesh axes that each of the tensor's dimensions is split over."""

    mesh: tuple[int, int]
    spec: tuple[Axes, Axes, Axes]

    def __str__(self) -> str:
        names = {_R: "R", _S0: "S0", _S1: "S1", _S01: "S01"}
        return f"({self.mesh[0]},{self.mesh[1]}) {' '.join(names[axes] for axes in self.spec)}"


@dataclass(frozen=True, slots=True)
class Case:
    """From where to where, on hosts of so many devices. `bound` and `sends` (the time of send-recv) count how often the
    whole tensor could go through one link meanwhile, as in docs/design/resharding.md, "Closed cases"."""

    source: Side
    target: Side
    devices: int
    bound: float
    sends: float

    @property
    def name(self) -> str:
        """Both sides."""
        return f"{self.source} -> {self.target}"

    @property
    def hosts(self) -> int:
        """Of both meshes."""
        return sum(-(-math.prod(side.mesh) // self.devices) for side in (self.source, self.target))

    @property
    def peer(self) -> str:
        """What of the peer this takes; nothing where JAX has no way."""
        if math.prod(self.source.mesh) != math.prod(self.target.mesh):
            return ""
        return "device_put" if self.source.spec == self.target.spec else "device_put + jit"


_WHOLE = (_R, _R, _R)
_BY_HOST = (_S0, _R, _R)
CASES = (
    Case(Side((2, 4), _BY_HOST), Side((2, 4), _BY_HOST), 4, 1 / 2, 2),
    Case(Side((2, 4), _WHOLE), Side((2, 4), _BY_HOST), 4, 1 / 2, 2),
    Case(Side((2, 4), (_R, _S0, _R)), Side((2, 4), _BY_HOST), 4, 1 / 2, 2),
    Case(Side((2, 4), (_R, _S01, _R)), Side((2, 4), (_S01, _R, _R)), 4, 1 / 2, 1 / 2),
    Case(Side((1, 4), (_S1, _R, _R)), Side((2, 4), _WHOLE), 4, 1, 8),
    Case(Side((1, 1), _WHOLE), Side((2, 2), _WHOLE), 2, 1, 4),
    Case(Side((1, 1), _WHOLE), Side((4, 2), _WHOLE), 2, 1, 8),
)


def measure(case: Case, nbytes: int, rounds: int, rate_bits_s: float) -> dict[str, Any]:
    """All ways of a case, in interleaved rounds.

    Raises:
      BenchError: a process failed, or other values arrived than were sent.
    """
    note(f"{case.name}: {case.hosts} hosts of {case.devices} devices")
    shape = (256, 256, nbytes // (4 * 256 * 256))
    with network(case.hosts, rate_bits_s) as hosts:
        return {"case": case.name, "bytes": nbytes, **_measured(hosts, case, shape, rounds)}


def _measured(hosts: Network, case: Case, shape: Sequence[int], rounds: int) -> dict[str, Any]:
    once_s = math.prod(shape) * 4 / hosts.bytes_s
    goodput = hosts.goodput(32 << 20)
    sides = {name: {"mesh": side.mesh, "spec": side.spec} for name, side in _sides(case)}
    first = {"case": {"shape": shape, "devices": case.devices, **sides}, "bytes_s": hosts.bytes_s}
    crew = Crew(hosts, "bench._resharding_worker", first, _ENVIRONMENT)
    limit_s = 60 + 40 * once_s
    ways = [*_WAYS, (PEER, "", "")] if case.peer else [*_WAYS]
    plans: dict[str, dict[str, Any]] = {}
    for way, strategy, scheduler in ways:
        plans[way] = crew.ask({"do": "build", "way": way, "strategy": strategy, "scheduler": scheduler}, limit_s)[0]
    cpu: dict[str, list[tuple[float, float]]] = {way: [] for way in plans}
    seeds = iter(range(1, 1 << 30))

    def one(way: str) -> float:
        crew.ask({"do": "arm", "seed": next(seeds)}, 60)
        before = _busy_s()
        ends = crew.ask({"do": "go", "way": way}, limit_s)
        busy = _busy_s() - before
        crew.ask({"do": "check"}, 60)
        seconds = max(e["end"] for e in ends) - min(e["start"] for e in ends)
        cpu[way].append((sum(e["cpu_s"] for e in ends) / seconds, busy / seconds))
        return float(seconds)

    for way in plans:
        one(way)  # warms up, and is checked as the others are
        cpu[way].clear()
    found = interleave({way: _bind(one, way) for way in plans}, rounds, lambda text: note(f"  {text}"))
    cores = os.cpu_count() or 1
    rows = {}
    for way, samples in found.items():
        best = min(range(rounds), key=samples.__getitem__)
        own, busy = cpu[way][best]
        rows[way] = {
            "seconds": {**spread(samples), "samples": samples},
            "over_bound": min(samples) / (case.bound * once_s),
            "cpu_of_processes": own / cores,
            "cpu_of_machine": busy / cores,
            **plans[way],
        }
    return {
        "bound_s": case.bound * once_s,
        "model_send_recv_over_bound": case.sends / case.bound,
        "peer": case.peer or "not supported",
        "goodput_bytes_s": goodput,
        "rate_bytes_s": hosts.bytes_s,
        "ways": rows,
        "targets": targets(rows, case, math.prod(shape) * 4),
    }


def _bind(one: Callable[[str], float], way: str) -> Callable[[], float]:
    return lambda: one(way)


def _sides(case: Case) -> tuple[tuple[str, Side], tuple[str, Side]]:
    return ("source", case.source), ("target", case.target)


def targets(rows: dict[str, Any], case: Case, nbytes: int) -> dict[str, bool]:
    """What issue 5 asks of a case, by the best round of each way; nothing of small tensors."""
    if nbytes < _LARGE_BYTES:
        return {}
    best = {way: row["seconds"]["min"] for way, row in rows.items()}
    asked = {
        f"within {_OVER_BOUND} of bound": rows[_OPTIMAL]["over_bound"] <= _OVER_BOUND,
        "never slower": all(best[_OPTIMAL] <= _TOLERANCE * seconds for seconds in best.values()),
    }
    if case.sends / case.bound >= 8:
        asked[f"{_FASTER:.0f} x send-recv"] = best[_SENDS] / best[_OPTIMAL] >= _FASTER
    return asked


def _busy_s() -> float:
    """Seconds that all processors of the machine worked since it started, the kernel's interrupts included."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _, _, hard, soft, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """What is printed."""
    names = WAY_NAMES

    def cell(row: dict[str, Any], way: str) -> str:
        found = row["ways"].get(way)
        return f"{found['over_bound']:.3f}" if found else "-"

    over = Table(
        "Measured over bound (best round)",
        ("case", "bound s", *names, "the peer"),
        tuple(
            (row["case"], f"{row['bound_s']:.3f}", *(cell(row, name) for name in names), row["peer"]) for row in rows
        ),
    )
    seconds = Table(
        "Seconds of every way, and how busy the processors were in its best round",
        ("case, way", "planned", "best", "median", "worst", "processes", "machine"),
        tuple(
            (
                f"{row['case']}, {way}",
                f"{found['planned_s']:.3f}" if "planned_s" in found else "-",
                *(f"{found['seconds'][key]:.3f}" for key in ("min", "median", "max")),
                f"{found['cpu_of_processes']:.0%}",
                f"{found['cpu_of_machine']:.0%}",
            )
            for row in rows
            for way, found in row["ways"].items()
        ),
    )
    return [table for table in (over, seconds, held("case", rows)) if table.rows]


def body() -> None:
    """Measure and print."""
    p = parser("bench.resharding", __doc__)
    p.add_argument("--only", action="append", metavar="TEXT", help="only cases whose name contains TEXT; repeatable")
    p.add_argument("--mib", type=int, help="size of the tensor (default: 64; 4 with --quick)")
    p.add_argument("--rounds", type=int, help="timed rounds (default: 3; 1 with --quick)")
    p.add_argument("--mbit", type=int, default=200, help="rate of a link each way, in Mbit/s (default: 200)")
    args = p.parse_args()
    missing = available()
    if missing:
        note(f"skipped: {missing}")
        return
    nbytes = (args.mib or (4 if args.quick else 64)) << 20
    rounds = args.rounds or (1 if args.quick else 3)
    cases = select(CASES, args.only)
    measure_and_publish("resharding", args, cases, lambda case: measure(case, nbytes, rounds, args.mbit * 1e6), tables)


if __name__ == "__main__":
    main(body)

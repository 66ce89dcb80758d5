"""Protocols from measured times: lines whose minimum fits them best in relative error.

Owns the fit, which calibration and `bench.device_model` share. The same samples give the same lines; measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import log10

import numpy as np
import numpy.typing as npt

from rhino.machine.collectives import outer_terms
from rhino.machine.fit import least_relative, nonnegative
from rhino.machine.links import Groups
from rhino.machine.model import Cluster, Level
from rhino.machine.protocols import Protocol, own_bytes, ring_bytes, rounds
from rhino.program.operations import COLLECTIVES

# (kind, devices of a group, bytes of the full tensor, seconds)
Sample = tuple[str, int, int, float]
# (kind, groups that communicate at once, bytes of the full tensor, seconds)
Between = tuple[str, Groups, int, float]
_Floats = npt.NDArray[np.float64]

# What is measured once may be off by any factor, when something else ran: a sample's error counts up to this.
_WORST = 0.5
# Errors below this are noise, which the weights of a robust fit must not chase.
_NOISE = 0.03
_TURNS = 12
# By how much a further line must lower the error.
_WORTH = 0.95


def fit_protocols(
    samples: Sequence[Sample], bandwidth_bytes_s: float, most: int = 4
) -> Mapping[str, tuple[Protocol, ...]]:
    """For each kind that was measured, the protocols of a level of this bandwidth, by rising start.

    Each is a line in the terms of `rhino.machine.protocols`, none faster than the link (an all-reduce may be twice as
    fast, where a switch adds). Samples are dealt to lines by size, then each line is fitted to its samples by least
    squares in relative error, reweighted to the absolute error, and every sample goes to the line that is lowest there,
    until none moves. Of all first deals, and of up to `most` lines, the best mean error counts; a further line must
    lower it by a twentieth.
    """
    found = {}
    for kind in COLLECTIVES:
        mine = [(n, nbytes, seconds) for of, n, nbytes, seconds in samples if of == kind]
        if mine:
            found[kind] = _fit_kind(kind, mine, bandwidth_bytes_s, most)
    return found


def with_protocols(cluster: Cluster, measured: Sequence[Sample], by: str) -> Cluster:
    """The cluster, its first level's links as fast as any collective but a sum used them, with protocols fitted to all.

    Args:
      measured: collectives within that level.
      by: what measured them, for the sources.
    """
    rates = [ring_bytes(kind, n, nbytes) / seconds for kind, n, nbytes, seconds in measured if kind != "all-reduce"]
    level = replace(cluster.levels[0], bandwidth_bytes_s=max(rates))
    level = replace(level, protocols=fit_protocols(measured, level.bandwidth_bytes_s))
    path = f"levels.{level.name}"
    sources = {
        **cluster.sources,
        f"{path}.bandwidth_bytes_s": f"{by}, the most that a device sent in any collective",
        f"{path}.protocols": f"{by}, groups of {', '.join(map(str, sorted({n for _, n, _, _ in measured})))}",
    }
    return replace(cluster, levels=(level, *cluster.levels[1:]), sources=sources)


def with_hosts_joined(cluster: Cluster, hosts: int, measured: Sequence[Between], by: str) -> Cluster:
    """So many hosts of the cluster's one, joined by one more level of links, with a ring fitted to each kind measured.

    A host is one NIC. A collective's seconds are those of a start, of its steps over links and within hosts, and of
    what it sends at its own share of the bandwidth; that of the kind which uses the links best is the level's.

    Args:
      measured: collectives whose groups have members on several hosts, which begin at once.
      by: what measured them, for the sources.
    """
    name, size = "inter-host", hosts * cluster.devices_per_host
    level = Level(name, size, 1.0, 0.0)
    joined = replace(cluster, hosts=hosts, levels=(*cluster.levels, level))
    found: dict[str, _Floats] = {}
    for kind in COLLECTIVES:
        mine = [(groups, nbytes, seconds) for of, groups, nbytes, seconds in measured if of == kind]
        if not mine:
            continue
        terms = []
        for groups, nbytes, _ in mine:
            *steps, per_byte = outer_terms(joined, kind, groups)
            terms.append((1, *steps, per_byte * nbytes))
        found[kind] = least_relative(np.array(terms, dtype=np.float64), np.array([seconds for *_, seconds in mine]))
    # Seconds of a byte at one byte a second are what a rate is one over.
    bandwidth = max(1 / line[3] for line in found.values() if line[3] > 0)
    protocols = {
        kind: (
            Protocol(
                launch_s=_rounded(launch), hop_s=_rounded(hop), inner_hop_s=_rounded(inner),
                share=min(1.0, _rounded(1 / (sent * bandwidth))) if sent else 1.0,
            ),
        )
        for kind, (launch, hop, inner, sent) in found.items()
    }  # fmt: skip
    hop_s = float(np.median([way.hop_s for (way,) in protocols.values()]))
    level = replace(level, bandwidth_bytes_s=_rounded(bandwidth), latency_s=hop_s, protocols=protocols)
    sources = {**cluster.sources, f"levels.{name}": f"{by}, collectives of all devices and of one in each host"}
    return replace(joined, levels=(*cluster.levels, level), sources=sources)


def _fit_kind(kind: str, samples: Sequence[tuple[int, int, float]], rate: float, most: int) -> tuple[Protocol, ...]:
    terms = np.array(
        [[1, rounds(kind, n), ring_bytes(kind, n, v) / rate, own_bytes(kind, n, v) / rate] for n, v, _ in samples]
    )
    if kind == "collective-permute":
        terms[:, 1] = 0
    least = 0.5 if kind == "all-reduce" else 1.0  # 1 / share of what is sent
    times = np.array([seconds for _, _, seconds in samples])
    sent = terms[:, 2]
    chosen, error = _lines(terms, times, sent, least, 1)
    for count in range(2, most + 1):
        lines, better = _lines(terms, times, sent, least, count)
        if better <= error * _WORTH ** (len(lines) - len(chosen)):
            chosen, error = lines, better
    return tuple(_protocol(line) for line in sorted(map(tuple, chosen)))


def _protocol(line: Sequence[float]) -> Protocol:
    launch, hop, sent, own = (_rounded(value) for value in line)
    return Protocol(launch_s=launch, hop_s=hop, share=_rounded(1 / sent), own_share=_rounded(1 / own) if own else None)


def _rounded(value: float) -> float:
    """Three digits: more would be noise."""
    return float(value) if value <= 0 else round(float(value), 2 - int(np.floor(log10(value))))


def _lines(terms: _Floats, times: _Floats, sent: _Floats, least: float, count: int) -> tuple[list[_Floats], float]:
    """The best so many lines (one may be unused and is left out), and their mean error."""
    best: tuple[list[_Floats], float] = ([], np.inf)
    cuts = np.quantile(sent, (0.25, 0.4, 0.55, 0.7, 0.85))
    for chosen in combinations(cuts, count - 1):
        dealt = np.searchsorted(np.array(chosen), sent)
        lines: list[_Floats] = []
        for _ in range(_TURNS):
            lines = [_line(terms[dealt == i], times[dealt == i], least) for i in np.unique(dealt)]
            predicted = np.stack([terms @ line for line in lines])
            errors = np.abs(predicted.min(axis=0) / times - 1)
            error = float(np.minimum(errors, _WORST).mean())
            if error < best[1] - 1e-9:
                best = lines, error
            moved = predicted.argmin(axis=0)
            if (moved == dealt).all():
                break
            dealt = moved
    return best


def _line(terms: _Floats, times: _Floats, least: float) -> _Floats:
    """Non-negative coefficients of one line, that of what is sent at least `least`."""
    fixed = terms[:, 2] * least
    scaled, target = terms / times[:, None], 1 - fixed / times
    weights = np.ones(len(times))
    line = np.zeros(4)
    for _ in range(3):
        line = nonnegative(scaled * weights[:, None], target * weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(scaled @ line - target), _NOISE))
    line[2] += least
    return line

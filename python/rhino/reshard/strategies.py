"""How one unit gets from one sender to its receivers, by each strategy of 2211.05322 §3.1: its chunks and messages.

Owns the phases, and how long these take. Knows nothing about other units.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import isqrt

from rhino.errors import RhinoError
from rhino.reshard.data import STRATEGIES, Hop, MessageStep, Network, Phase
from rhino.reshard.units import BundleTask

# Smaller messages cost a network more in calls than in bytes.
LEAST_CHUNK_BYTES = 64 * 1024
# Chunks per further host of a chain where latency does not say how many: it is then (D - 1) / 32(D - 1) over the limit.
_FLUID_CHUNKS = 32


def fluid_chunks(depth: int) -> int:
    """The number of chunks of a chain of so many hops that comes near the limit of ever smaller chunks."""
    return _FLUID_CHUNKS * (depth - 1)


def check_strategy(strategy: str) -> None:
    """RhinoError unless it is one of `STRATEGIES`."""
    if strategy not in STRATEGIES:
        raise RhinoError(f"strategy {strategy!r} is unknown", f"use one of {', '.join(STRATEGIES)}")


def best_chunks(once: Fraction, hosts: int, latency: Fraction) -> int:
    """The K that is best for a chain over `hosts` hosts of what takes `once` seconds: about sqrt((A - 1) V / (a b))."""
    if hosts <= 1:
        return 1
    root = isqrt(int((hosts - 1) * once / latency))
    # Convex in K, so one of the two integers around the real optimum.
    return min((root, root + 1) if root else (1,), key=lambda count: (count + hosts - 1) * (latency + once / count))


def used(strategy: str, task: BundleTask) -> str:
    """The strategy that a task is really sent by: what cannot gather across hosts sends to each receiver instead."""
    return "send-recv" if strategy == "local-all-gather" and len(task.targets) > 1 else strategy


def task_chunks(strategy: str, task: BundleTask, network: Network, chunks: int | None) -> int:
    """The number of chunks a task is sent in: as given, or the best, with chunks of 64 KiB where there are several."""
    hosts = len(task.targets)
    if strategy != "broadcast" or hosts == 0:
        return 1
    most = max(1, -(-task.nbytes // task.item_bytes))
    if chunks is not None:
        return min(chunks, most)
    if hosts == 1:
        return 1
    most = min(most, max(1, task.nbytes // LEAST_CHUNK_BYTES))
    if not network.latency_s:
        return min(fluid_chunks(hosts), most)
    slowest = min(network.bandwidth_bytes_s[host] for host in task.targets)
    return min(best_chunks(task.nbytes / slowest, hosts, network.latency_s), most)


def task_time(strategy: str, task: BundleTask, sender: int, network: Network, chunks: int | None) -> Fraction:
    """Seconds that a task holds its hosts: the closed form, with pieces of whole items as in its messages.

    Where bandwidths differ, a message has that of its slower end. Without latency and with no number of chunks given a
    broadcast that is long enough for its chunks is in the fluid limit, chunks without size.
    """
    speed, latency = network.bandwidth_bytes_s, network.latency_s
    strategy = used(strategy, task)
    if not task.targets:
        return Fraction(0)
    if strategy in ("send-recv", "local-all-gather"):
        seconds = Fraction(0)
        for host, receivers in zip(task.targets, task.receivers, strict=True):
            parts = [(0, task.nbytes)] * receivers if strategy == "send-recv" else _parts(task, receivers)
            rate = min(speed[sender], speed[host])
            seconds += len(parts) * latency + sum(nbytes for _, nbytes in parts) / rate
        return seconds
    hosts = len(task.targets)
    slowest = min(speed[host] for host in (sender, *task.targets))
    if strategy == "global-all-gather":
        parts = _parts(task, hosts)
        return (len(parts) + hosts - 1) * (latency + parts[0][1] / slowest)
    count = task_chunks(strategy, task, network, chunks)
    if chunks is None and not latency and count >= fluid_chunks(hosts):
        return task.nbytes / slowest
    return (count + hosts - 1) * (latency + chunk_bytes(task.nbytes, count, task.item_bytes) / slowest)


def task_phases(
    strategy: str, task: BundleTask, sender: int, network: Network, chunks: int | None
) -> tuple[Phase, ...]:
    """The messages of a task: one phase, or none if it stays inside hosts. Bytes are cut between items."""
    strategy = used(strategy, task)
    if not task.targets:
        return ()
    if strategy == "send-recv":
        counts = zip(task.targets, task.receivers, strict=True)
        hops = [Hop(sender, host, task.bundle, 0, task.nbytes) for host, count in counts for _ in range(count)]
        return (Phase(1, 1, tuple(MessageStep((hop,)) for hop in hops)),)
    if strategy == "local-all-gather":
        parts = _parts(task, task.receivers[0])
        return (Phase(1, 1, tuple(MessageStep((Hop(sender, task.targets[0], task.bundle, *part),)) for part in parts)),)
    if strategy == "global-all-gather":
        return (Phase(1, 1, _scatter_gather(task, sender)),)
    count = task_chunks(strategy, task, network, chunks)
    stride = chunk_bytes(task.nbytes, count, task.item_bytes)
    chain = (sender, *task.targets)
    chained = tuple(
        Hop(source, target, task.bundle, 0, stride, stride, lag) for lag, (source, target) in enumerate(pairwise(chain))
    )
    return (Phase(count + len(task.targets) - 1, count, (MessageStep(chained),)),)


def chunk_bytes(nbytes: int, chunks: int, item_bytes: int) -> int:
    """Bytes of one of so many chunks, whole items and at least one."""
    return max(1, -(-nbytes // (chunks * item_bytes))) * item_bytes


def _parts(task: BundleTask, count: int) -> list[tuple[int, int]]:
    """(start, bytes) of at most `count` parts of a unit; there are fewer when it has fewer items."""
    size = chunk_bytes(task.nbytes, count, task.item_bytes)
    return [(start, min(size, task.nbytes - start)) for start in range(0, task.nbytes, size)]


def _scatter_gather(task: BundleTask, sender: int) -> tuple[MessageStep, ...]:
    """Part i goes to target i; then each target sends on, around the ring, what it got last."""
    hosts = len(task.targets)
    parts = _parts(task, hosts)
    steps = [
        MessageStep((Hop(sender, host, task.bundle, *part),)) for host, part in zip(task.targets, parts, strict=False)
    ]
    for turn in range(hosts - 1):
        hops = []
        for at, host in enumerate(task.targets):
            part = (at - turn) % hosts
            if part < len(parts):
                hops.append(Hop(host, task.targets[(at + 1) % hosts], task.bundle, *parts[part]))
        steps.append(MessageStep(tuple(hops)))
    return tuple(steps)

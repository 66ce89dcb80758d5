"""The network of the processes that are here, and modules whose transfers are planned for it.

Owns whether a module's messages are for these processes, and planning them in the module where they are not. Knows
nothing of how messages are sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from jaxlib.mlir import ir

from rhino.ir.pipeline.messages import EdgeMessages, moved_on, read_messages
from rhino.ir.pipeline.program import read_program
from rhino.ir.pipeline.transfers import lower_transfers, plan_edges
from rhino.machine import Cluster
from rhino.machine.local import host_of
from rhino.pipeline.program import Edge, PipelineProgram, SignatureEdge, all_edges
from rhino.reshard.data import Network
from rhino.runtime.compile import check_count

# Of a cluster that is not described: 10 Gbit/s and 50 microseconds. Only the number of chunks depends on them.
_BANDWIDTH_BYTES_S = 1.25e9
_LATENCY_S = 5e-5


def messages_here(
    module: ir.Module,
    devices: Sequence[Any],
    cluster: Cluster | None = None,
    strategy: str | None = None,
    scheduler: str | None = None,
) -> tuple[dict[str, EdgeMessages], bool]:
    """By name, what each edge of a module in fragments sends between these processes; and whether the text changed.

    Edges whose text is for other hosts than these processes, and those without messages, are planned as
    `rhino-lower-transfers` does, in the module, with their own strategy and scheduler. What it says of arguments and
    results is dropped where one process has all that they concern.

    Args:
      devices: what the numbers of `rhino.placement` count.
      cluster: what the network between processes is.
      strategy, scheduler: in place of what the text says; all edges are planned then.

    Raises:
      PassError: the text of an edge says what cannot be, at its transfer.
    """
    program = read_program(module)
    found = read_messages(module, program)
    check_count(program, devices)
    anew = bool(strategy or scheduler)
    other = [e.name for e in all_edges(program) if anew or not _is_said(program, e, found.get(e.name), devices)]
    if not other:
        return found, False
    lower_transfers(module, program, _network(program, devices, cluster), strategy, scheduler, other)
    return read_messages(module, read_program(module)), True


def planned_here(
    program: PipelineProgram, devices: Sequence[Any], cluster: Cluster | None, strategy: str, scheduler: str
) -> dict[str, EdgeMessages]:
    """As `messages_here`, of a program that no module has."""
    made = plan_edges(program, _network(program, devices, cluster), strategy, scheduler)
    return {edge.name: messages for edge, _, messages in made}


def _is_said(
    program: PipelineProgram,
    edge: Edge,
    messages: EdgeMessages | None,
    devices: Sequence[Any],
) -> bool:
    """Whether the text of an edge is what it would be if it were planned for these processes."""
    if isinstance(edge, SignatureEdge):
        tiles = [tile for tensor in moved_on(program, edge) for tile in (*tensor.source, *tensor.target)]
        if len({devices[tile.device].process_index for tile in tiles}) == 1:
            return messages is None
    return messages is not None and _is_for(messages, devices)


def _is_for(messages: EdgeMessages, devices: Sequence[Any]) -> bool:
    """Whether each host of an edge is one of these processes, and no two are the same."""
    if any(device >= len(devices) for host in messages.hosts for device in host):
        return False
    processes = [{devices[device].process_index for device in host} for host in messages.hosts]
    return all(len(each) == 1 for each in processes) and len(set().union(*processes)) == len(processes)


def _network(
    program: PipelineProgram, devices: Sequence[Any], cluster: Cluster | None
) -> Callable[[Sequence[int]], Network]:
    """The network of some devices, by their numbers in the program."""
    check_count(program, devices)
    whole = network_of_processes(devices, cluster)

    def among(chosen: Sequence[int]) -> Network:
        hosts = {device: whole.host_of[devices[device].id] for device in chosen}
        bandwidth = {host: whole.bandwidth_bytes_s[host] for host in sorted(set(hosts.values()))}
        return Network(hosts, bandwidth, whole.latency_s)

    return among


def network_of_processes(devices: Sequence[Any], cluster: Cluster | None) -> Network:
    """The network that joins the processes of these devices, each a host of its own to `rhino.reshard`.

    Processes of one host share its NICs: each has the same part of their bandwidth, as when all send at once.
    """
    level = cluster.inter_host if cluster else None
    total = Fraction(level.bandwidth_bytes_s) * level.nics if level else Fraction(_BANDWIDTH_BYTES_S)
    host_of_process = {device.process_index: host_of(device) for device in devices}
    sharing = Counter(host_of_process.values())
    return Network(
        {device.id: device.process_index for device in devices},
        {process: total / sharing[host_of_process[process]] for process in sorted(host_of_process)},
        Fraction(level.latency_s if level else _LATENCY_S),
    )

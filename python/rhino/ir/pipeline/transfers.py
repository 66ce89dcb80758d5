"""What a pipeline sends, planned edge by edge over a network, and written into its module as `rhino.multicast`.

Owns making one plan for edges that are alike. How a tensor gets from one mesh to another is `rhino.reshard`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.ir.pipeline.messages import EdgeMessages, moved_on, multicast_data
from rhino.ir.pipeline.multicasts import Multicasts
from rhino.pipeline.program import Edge, PipelineProgram, SignatureEdge, all_edges
from rhino.reshard.data import MovedTensor, Network, Tile
from rhino.reshard.plan import ReshardPlan, plan_reshard
from rhino.reshard.sent import senders_of

# The scheduler where there is no time for another. The attribute names it, so that the runtime takes it, too.
_BY_RULE = "load-balance"


def lower_transfers(
    module: ir.Module,
    program: PipelineProgram,
    network: Callable[[Sequence[int]], Network],
    strategy: str | None = None,
    scheduler: str | None = None,
    edges: Collection[str] | None = None,
    deadline: Deadline = NEVER,
) -> tuple[int, int]:
    """Writes `rhino.multicast` on what a program sends; returns how many plans were made, and all units.

    Args: as `plan_edges`.
    """
    places = Multicasts(module, program)
    places.clear(all_edges(program), edges)
    plans: dict[int, ReshardPlan] = {}
    units = 0
    for edge, plan, messages in plan_edges(program, network, strategy, scheduler, edges, deadline):
        plans[id(plan)] = plan
        units += len(plan.units)
        about = {"edge": edge.name, **_about(plan)}
        places.attach(edge, [{**about, **each} for each in multicast_data(messages)])
    places.write()
    return len(plans), units


def plan_edges(
    program: PipelineProgram,
    network: Callable[[Sequence[int]], Network],
    strategy: str | None = None,
    scheduler: str | None = None,
    edges: Collection[str] | None = None,
    deadline: Deadline = NEVER,
) -> Iterator[tuple[Edge, ReshardPlan, EdgeMessages]]:
    """Plans edges of a program. Those between equal tiles on hosts in the same order have one plan, made once.

    Edges of the schedule are all planned, those of the signature where they leave a host.

    Args:
      network: what joins some devices of the cluster.
      strategy, scheduler: None for what the edge has.
      edges: names of those to plan; all by default.
      deadline: after it nothing is searched: senders are chosen by load.
    """
    known: dict[Any, ReshardPlan] = {}
    for edge in all_edges(program):
        if edges is not None and edge.name not in edges:
            continue
        tensors = moved_on(program, edge)
        devices = sorted({tile.device for tensor in tensors for tile in (*tensor.source, *tensor.target)})
        joined = network(devices)
        if isinstance(edge, SignatureEdge) and len(set(joined.host_of.values())) == 1:
            continue
        way = (strategy or edge.way[0], scheduler or edge.way[1])
        (alike, renamed), key = _numbered(tensors, joined, devices)
        if (key, way) not in known:
            by = _BY_RULE if deadline.over() else way[1]
            known[key, way] = plan_reshard(alike, renamed, way[0], by)
        plan = known[key, way]
        yield edge, plan, _messages(plan, edge, devices, renamed)


def _numbered(
    tensors: Sequence[MovedTensor], network: Network, devices: Sequence[int]
) -> tuple[tuple[list[MovedTensor], Network], Any]:
    """The same with devices and hosts numbered from 0 in their order, and what tells it from others: plans depend on
    nothing else."""
    number = {device: k for k, device in enumerate(devices)}
    hosts = {host: k for k, host in enumerate(sorted(set(network.host_of.values())))}
    host_of = {number[device]: hosts[host] for device, host in network.host_of.items()}
    bandwidth = {hosts[host]: given for host, given in network.bandwidth_bytes_s.items()}
    alike = [
        MovedTensor(
            tensor.shape,
            tensor.item_bytes,
            tuple(Tile(number[tile.device], tile.slice) for tile in tensor.source),
            tuple(Tile(number[tile.device], tile.slice) for tile in tensor.target),
        )
        for tensor in tensors
    ]
    renamed = Network(host_of, bandwidth, network.latency_s, network.local_bandwidth_bytes_s)
    return (alike, renamed), (tuple(alike), tuple(sorted(host_of.items())), tuple(sorted(bandwidth.items())))


def _messages(plan: ReshardPlan, edge: Edge, devices: Sequence[int], network: Network) -> EdgeMessages:
    """The messages of a plan on an edge, with the devices' real numbers."""
    hosts: list[list[int]] = [[] for _ in network.bandwidth_bytes_s]
    for device, host in sorted(network.host_of.items()):
        hosts[host].append(device)
    crossing = [bool(sent) for sent in senders_of(plan.program, network.host_of)]
    senders = tuple(
        tuple((device, nbytes) for _, device, nbytes in each) if crosses else ()
        for each, crosses in zip(plan.senders, crossing, strict=True)
    )
    return EdgeMessages(edge.parts, tuple(map(tuple, hosts)), plan.program, senders).numbered(devices)


def _about(plan: ReshardPlan) -> dict[str, Any]:
    """What the attribute says of a plan but for its messages."""
    return {
        "strategy": plan.strategy,
        "scheduler": plan.scheduler,
        "chunks": plan.chunks,
        "makespan_s": float(plan.makespan_s),
        "bound_s": float(plan.bound_s),
    }

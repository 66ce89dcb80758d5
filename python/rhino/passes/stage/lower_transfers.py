"""The pass rhino-lower-transfers: what is sent between stages in unit tasks, and who sends them when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.dialect.attributes import RhinoCluster
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError, PassLog
from rhino.ir.pipeline import read_program
from rhino.machine import Cluster
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, option, register
from rhino.passes.stage.edge_messages import EdgeMessages, moved_on, multicast_data
from rhino.passes.stage.multicasts import Multicasts
from rhino.pipeline.program import Edge, PipelineProgram, SignatureEdge, all_edges
from rhino.reshard.data import MovedTensor, Network, Tile
from rhino.reshard.networks import network_of
from rhino.reshard.plan import ReshardPlan, plan_reshard
from rhino.reshard.sent import senders_of

# The scheduler where there is no time for another. The attribute names it, so that the runtime takes it, too.
_BY_RULE = "load-balance"


@register
class LowerTransfers(Pass):
    """Plan the transfers between stages: cut into unit tasks, each with a sender and a place in the order.

    A unit is a slice whose elements all have the same holders and the same receivers. Transfers that one send of the
    schedule means are planned together, over the NICs of the hosts that `rhino.placement` puts the stages on. The
    runtime sends the messages that stand here. Where its processes are not the hosts of a plan, it runs this pass for
    them before it compiles. Between devices of one host units have no messages, and take no time here.

    Two more things are sent between hosts in a step, which no transfer says: an argument that several stages read, from
    the first of them, and small results that are no state, such as a loss, to all devices. They are planned likewise;
    the schedule does not count them.

    Requires: @main in fragments, with the devices they run on: rhino-form-fragments, and rhino-replicate-fragments if
    there are replicas. A topology, or a `rhino.cluster` that names a preset.

    Ensures: every `mpmd.transfer` has `rhino.multicast`, and so has each argument and result of @main that is sent
    between hosts; nothing else changes.

    Options:
      strategy: how a unit gets to its receivers. broadcast goes along the chain of receiving hosts in chunks.
      scheduler: how senders and order are chosen. optimal reaches the lower bound where that is known to be possible.
      topology: the cluster; by default that of `rhino.cluster`.

    Example:
      ```mlir
      // rhino-opt --rhino-lower-transfers
      %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"stage0", ..>) -> !mpmd.mesh_tensor<"stage1", ..>
      // becomes
      %1 = mpmd.transfer {rhino.multicast = {edge = "forward 0 -> 1", strategy = "broadcast", scheduler = "optimal",
        units = [{slice = [[0, 8], [0, 16]], holders = [0, 1], receivers = [4, 5], sender = 0 : i64, order = 0 : i64}],
        hosts = [[0, 1], [4, 5]], bundles = [[0]], phases = [{steps = [[[0, 1, 0, 0, 512]]]}],
        makespan_s = 1.0e-03 : f64, bound_s = 1.0e-03 : f64}} %0 : ...
      ```
    """

    name: ClassVar[str] = "rhino-lower-transfers"

    strategy: str = option(
        "broadcast", "how a unit travels", ("send-recv", "local-all-gather", "global-all-gather", "broadcast")
    )
    scheduler: str = option(
        "optimal", "who sends, and in which order", ("naive", "load-balance", "greedy", "search", "optimal")
    )
    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Write `rhino.multicast`. Raises PassError where the module is not in fragments, or on no cluster."""
        main = main_function(module, self.name)
        program = read_program(module)
        try:
            cluster = Cluster.load(self.topology) if self.topology else _cluster(module)
            plans, units = lower_for_cluster(
                module, program, cluster, self.strategy, self.scheduler, log.session.deadline
            )
        except RhinoError as error:
            if isinstance(error, PassError):
                raise
            raise PassError(main, error.message, [error.remedy] if error.remedy else []) from error
        log.count("transfers", len(program.transfers))
        log.count("units", units)
        log.count("plans", plans)


def lower_for_cluster(
    module: ir.Module,
    program: PipelineProgram,
    cluster: Cluster,
    strategy: str,
    scheduler: str,
    deadline: Deadline = NEVER,
) -> tuple[int, int]:
    """As `lower_transfers`, between the hosts of a cluster."""
    return lower_transfers(module, program, partial(network_of, cluster), strategy, scheduler, deadline=deadline)


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


def _cluster(module: ir.Module) -> Cluster:
    """The cluster that the module names, if it is what the module says it is."""
    given = RhinoCluster.of(module)
    if given is None:
        raise RhinoError(
            "transfers are planned for a cluster, and the module has no rhino.cluster", "give topology=dgx-h100:1"
        )
    try:
        cluster = Cluster.load(given["name"])
    except RhinoError as error:
        raise RhinoError(f"rhino.cluster: {error.message}", "give its YAML file as topology") from error
    has, wants = (cluster.hosts, cluster.devices_per_host), (given["hosts"], given["devices_per_host"])
    if has != wants:
        raise RhinoError(
            f"rhino.cluster has {wants[0]} hosts of {wants[1]} devices, but '{given['name']}' has {has[0]} of {has[1]}",
            "give the cluster as topology",
        )
    return cluster


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

"""The pass rhino-lower-transfers: what each transfer between stages is in unit tasks, and who sends them when."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoCluster, RhinoMulticast
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.passes.diagnostics import PassError, PassLog
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, option, register
from rhino.passes.stage.read_program import read_program, transfer_ops
from rhino.pipeline.program import PipelineProgram, Transfer, edges_of
from rhino.program.element_types import dtype_bytes
from rhino.reshard import MovedTensor, Network, ReshardPlan, Tile, network_of, plan_reshard

# The scheduler where there is no time for another. The attribute names it, so that the runtime takes it, too.
_BY_RULE = "load-balance"


@register
class LowerTransfers(Pass):
    """Plan the transfers between stages: cut into unit tasks, each with a sender and a place in the order.

    A unit is a slice whose elements all have the same holders and the same receivers. Transfers that one send of the
    schedule means are planned together, over the NICs of the hosts that `rhino.placement` puts the stages on. The
    runtime plans with the same function, strategy and scheduler, so that the text shows what it executes. Between
    devices of one host units have no messages, and take no time here.

    Requires: @main in fragments, with the devices they run on: rhino-form-fragments, and rhino-replicate-fragments if
    there are replicas. A topology, or a `rhino.cluster` that names a preset.

    Ensures: every `mpmd.transfer` has `rhino.multicast`; nothing else changes.

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
            plans, units = lower_transfers(
                module, program, cluster, self.strategy, self.scheduler, log.session.deadline
            )
        except RhinoError as error:
            if isinstance(error, PassError):
                raise
            raise PassError(main, error.message, [error.remedy] if error.remedy else []) from error
        log.count("transfers", len(program.transfers))
        log.count("units", units)
        log.count("plans", plans)


def lower_transfers(
    module: ir.Module,
    program: PipelineProgram,
    cluster: Cluster,
    strategy: str,
    scheduler: str,
    deadline: Deadline = NEVER,
) -> tuple[int, int]:
    """Writes `rhino.multicast` on the transfers of a program; returns how many plans were made, and all units.

    After the deadline nothing is searched: senders are chosen by load.
    Edges between equal tiles on hosts in the same order have the same plan, which is made once.
    """
    ops = transfer_ops(module)
    known: dict[Any, ReshardPlan] = {}
    count = 0
    for edge in edges_of(program):
        tensors = [_tensor(program, transfer) for transfer in edge.transfers]
        devices = sorted({tile.device for tensor in tensors for tile in (*tensor.source, *tensor.target)})
        network = network_of(cluster, devices)
        alike, key = _numbered(tensors, network, devices)
        if key not in known:
            by = _BY_RULE if deadline.over() else scheduler
            known[key] = plan_reshard(alike[0], alike[1], strategy, by)
        plan = known[key]
        count += len(plan.units)
        for transfer, data in zip(edge.transfers, _data(plan, devices, len(tensors)), strict=True):
            RhinoMulticast.attach(ops[transfer.index], {"edge": edge.name, **data})
    return len(known), count


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


def _tensor(program: PipelineProgram, transfer: Transfer) -> MovedTensor:
    """What a transfer moves, in the bytes that the runtime moves it in: a whole one for smaller elements."""
    source, target = program.values[transfer.source], program.values[transfer.target]
    tiles = []
    for value in (source, target):
        mesh = program.meshes[value.group]
        slices = sdy.slices(value.shape, value.sharding, mesh.axes)
        tiles.append(tuple(Tile(device, where) for device, where in zip(mesh.devices, slices, strict=True)))
    return MovedTensor(source.shape, max(1, ceil(dtype_bytes(source.dtype))), tiles[0], tiles[1])


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


def _data(plan: ReshardPlan, devices: Sequence[int], tensors: int) -> list[dict[str, Any]]:
    """The attribute of each tensor's transfer, with the devices' real numbers."""
    units: list[list[dict[str, Any]]] = [[] for _ in range(tensors)]
    position = {unit: order for order, unit in enumerate(plan.order)}
    for unit in plan.units:
        senders = plan.senders[unit.index]
        most = max(senders, key=lambda sender: sender[2])
        data: dict[str, Any] = {
            "slice": [list(bounds) for bounds in unit.slice],
            "holders": [devices[d] for d in unit.holders],
            "receivers": [devices[d] for d in unit.receivers],
            "sender": devices[most[1]],
            "order": position[unit.index],
        }
        if len(senders) > 1:
            data["senders"] = [[devices[device], nbytes] for _, device, nbytes in senders]
        units[unit.tensor].append(data)
    shared = {
        "strategy": plan.strategy,
        "scheduler": plan.scheduler,
        "chunks": plan.chunks,
        "makespan_s": float(plan.makespan_s),
        "bound_s": float(plan.bound_s),
    }
    return [{**shared, "units": found} for found in units]

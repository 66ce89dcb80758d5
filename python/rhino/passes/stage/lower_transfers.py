"""The pass rhino-lower-transfers: what is sent between stages in unit tasks, and who sends them when."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoCluster
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassLog, errors_at
from rhino.ir.pipeline.program import read_program
from rhino.ir.pipeline.transfers import lower_transfers
from rhino.machine import Cluster
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, option, register
from rhino.reshard.networks import network_of


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
      topology: the cluster; by default that of the run, or else of `rhino.cluster`.

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
        with errors_at(main):
            cluster = Cluster.load(self.topology) if self.topology else log.session.cluster or _cluster(module)
            network, deadline = partial(network_of, cluster), log.session.deadline
            plans, units = lower_transfers(module, program, network, self.strategy, self.scheduler, deadline=deadline)
        log.count("transfers", len(program.transfers))
        log.count("units", units)
        log.count("plans", plans)


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

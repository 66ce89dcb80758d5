"""`rhino-estimate`: what an annotated module is predicted to cost, without changing its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect import mpmd
from rhino.dialect.attributes import RhinoCost, RhinoPlan
from rhino.dialect.context import copied
from rhino.ir.diagnostics import PassError, PassLog, errors_at
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.meshes import MESH, given_mesh
from rhino.ir.pipeline.predicted import predict_pipeline
from rhino.ir.propagated import RESHARDS, give_rules, number_operations, numbers_of, read_propagated
from rhino.ir.read_layouts import is_conversion, read_layouts
from rhino.machine import Cluster
from rhino.machine.roofline import device_traffic
from rhino.passes.entry import main_function, topology_cluster
from rhino.passes.registry import Pass, option, register
from rhino.program import Graph
from rhino.sharding.estimate import Estimated, estimate, estimate_plan, estimate_propagated
from rhino.sharding.replay import UnreadableError
from rhino.sharding.uneven import share

_MIB = 2.0**20


@register
class Estimate(Pass):
    """Predict time, communication and memory of the plan a module carries, and say so at the ops that cost most.

    Requires:
      `@main` with `sdy.mesh @mesh`, static shapes and no calls. Layouts come from the `sdy.sharding`s; where there is
      none, the cheapest that suits its neighbours is assumed. Of a module with the `rhino.plan` of a search its
      decisions are read back: what is predicted then is what the plan says, exactly, unless the program has manual
      computations.
      A module in fragments needs `rhino.schedule` instead of the mesh. Its task lists are played with the seconds of
      its fragments (`rhino.cost`, else the roofline), what its transfers are planned to take (`rhino.multicast`, else
      the bound of the resharding) and the bytes of its stages (`rhino.memory`, else values between fragments).

    Ensures:
      Dots, convolutions, gathers and scatters have `rhino.cost`: seconds, flops and bytes of one execution on one
      device. A remark at `@main` gives step time, communication by kind and peak memory; a remark at each of the
      `remarks` most expensive collectives names its kind, bytes and cause. The program is unchanged.
      Of a module in fragments a remark at `@main` gives step time, bubble and peak memory, and one for each group what
      it computes, waits for and holds; nothing is written.

    Options:
      topology: the cluster the mesh lies on.
      remarks: how many collectives to remark on.

    Example:
      ```mlir
      // rhino-opt --rhino-estimate=topology=dgx-h100:1
      // remark: step 12.1 us = compute 8.0 us + communication 4.1 us; peak 1.50 MiB; all-reduce 0.25 MiB in 1
      ```
    """

    name: ClassVar[str] = "rhino-estimate"
    runs: ClassVar[tuple[str, ...]] = ("sdy-insert-explicit-reshards",)

    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    remarks: int = option(5, "how many of the most expensive collectives get a remark")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Predict and annotate. Raises PassError for a module without a mesh or with shardings that contradict."""
        cluster = topology_cluster(self.topology, log, self.name)
        main = main_function(module, self.name)
        if mpmd.topology(main) is not None:
            _pipeline(module, main, cluster, log)
            return
        mesh = given_mesh(module)
        if not mesh:
            raise PassError(module, f"module has no sdy.mesh @{MESH}", ["plan it first: --rhino-plan-sharding"])
        _, ops = number_program(main)
        plan = RhinoPlan.of(module)
        with errors_at(main):
            if plan is not None and plan["level"] == "O0":
                graph, found, numbers = self._propagated(module, cluster, mesh, log)
                ops = [ops[i] if i >= 0 else main for i in numbers]
            else:
                graph, found = _read(module, main, cluster, mesh, log)
        if len(graph.ops) < len(ops):
            ops = [op for op in ops if not is_conversion(op)]
        moved = device_traffic(graph, cluster).nbytes
        for index, seconds in found.op_seconds.items():
            op = graph.ops[index]
            parts = found.op_parts[index]
            cost = {
                "time_s": seconds,
                "flops": share(op.flops, parts),
                "bytes": int(moved[index] / parts),
            }
            if op.trips > 1:
                cost["trips"] = op.trips
            RhinoCost.attach(ops[index], cost)
        log.remark(main, _headline(found))
        for event in found.events[: self.remarks]:
            log.remark(
                ops[event.op],
                f"{event.kind} of {event.nbytes / _MIB:.2f} MiB over {', '.join(event.axes)}"
                f"{f', {event.trips} times' if event.trips > 1 else ''}: {event.seconds * 1e6:.1f} us",
            )
        log.count("collectives", sum(found.predicted.collectives.values()))

    def _propagated(
        self, module: ir.Module, cluster: Cluster, mesh: Sequence[tuple[str, int]], log: PassLog
    ) -> tuple[Graph, Estimated, list[int]]:
        """The same of a program that Shardy propagated, with changes of layouts in it: by operation its number here."""
        scratch = copied(module)
        number_operations(scratch)
        give_rules(scratch)
        self.run_pipeline([RESHARDS], scratch, log)
        graph = read_propagated(scratch)
        return graph, estimate_propagated(graph, cluster, mesh), numbers_of(scratch)


def _pipeline(module: ir.Module, main: ir.Operation, cluster: Cluster, log: PassLog) -> None:
    """The remarks of a module in fragments."""
    with errors_at(main):
        found = predict_pipeline(module, cluster)
    played, costs, name = found.simulation, found.costs, found.schedule.name
    peak = max(found.peak_bytes)
    log.remark(
        main,
        f"step {played.step_time_s * 1e6:.1f} us = {costs.stages} stages, {found.schedule.microbatches} micro-batches, "
        f"{name}; bubble {played.bubble_fraction:.1%}; peak {peak / _MIB:.2f} MiB on group "
        f"{found.peak_bytes.index(peak)}",
    )
    for group, peak in enumerate(found.peak_bytes):
        held = ", ".join(str(played.in_flight_peak[stage]) for stage in costs.stages_of(group))
        log.remark(
            main,
            f"group {group}: computes {played.busy_s[group] * 1e6:.1f} us, "
            f"waits {played.exposed_s[group] * 1e6:.1f} us for what is on its way; "
            f"peak {peak / _MIB:.2f} MiB with {held} micro-batches in flight",
        )


def _read(
    module: ir.Module, main: ir.Operation, cluster: Cluster, mesh: Sequence[tuple[str, int]], log: PassLog
) -> tuple[Graph, Estimated]:
    """The program and its prediction: as it was planned, if it carries a plan that can be read back."""
    if RhinoPlan.of(module) is not None:
        try:
            graph, written = read_layouts(module)
            return graph, estimate_plan(graph, written, cluster, mesh)
        except UnreadableError as error:
            log.remark(
                main, f"the plan cannot be read back: {error.message}", ["its conversions are priced one by one"]
            )
    graph = import_graph(module, read_op_shardings=True)
    return graph, estimate(graph, cluster, mesh)


def _headline(found: Estimated) -> str:
    predicted = found.predicted
    kinds = [
        f"{kind} {predicted.comm_bytes[kind] / _MIB:.2f} MiB in {predicted.collectives[kind]}"
        for kind in predicted.comm_bytes
    ]
    return (
        f"step {predicted.step_time_s * 1e6:.1f} us = compute {predicted.compute_s * 1e6:.1f} us + communication "
        f"{predicted.comm_s * 1e6:.1f} us; peak {predicted.memory.peak_bytes / _MIB:.2f} MiB; "
        f"{', '.join(kinds) or 'no collectives'}"
    )

"""rhino-lower-transfers on random steps: what the text says is what runs, by whole edges, on the real devices."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from jaxlib.mlir import ir
from staged_programs import staged_step, with_shardings

from rhino.dialect import mpmd, sdy
from rhino.dialect.attributes import RhinoMulticast, RhinoPlacement, RhinoSchedule
from rhino.dialect.context import make_context, parse_text
from rhino.dialect.multicast import tiles_of
from rhino.dialect.verify import verify
from rhino.ir.pipeline.priced import Units, planned_seconds, priced_program, spread_of
from rhino.ir.pipeline.program import read_program, transfer_ops
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager, PipelineError
from rhino.pipeline.program import GroupMesh, GroupValue, PipelineProgram, edges_of
from rhino.pipeline.schedule import ScheduledStep
from rhino.pipeline.search.spread import Spread, need_of
from rhino.reshard.data import STRATEGIES, MovedTensor, Network, Tile
from rhino.reshard.plan import plan_reshard
from rhino.runtime.script import MoveValue, make_script

STAGES = 3


def lowered(seed: int, options: str = "topology=p3.8xlarge:3", per_host: bool = True) -> ir.Module:
    """A random step in fragments with its transfers lowered, each stage on a host of its own or side by side on one."""
    context = make_context()
    manager = PassManager.parse("builtin.module(rhino-form-fragments,rhino-schedule)", context)
    module = parse_text(with_shardings(staged_step(seed, STAGES), seed), context)
    manager.run(module)
    placement = RhinoPlacement.of(module)
    assert placement is not None and all(len(devices) <= 4 for devices in placement.values())
    if per_host:
        # The last host comes first, so that devices are not in the order of the stages.
        hosts = {mesh: 4 * (STAGES - 1 - k) for k, mesh in enumerate(placement)}
        RhinoPlacement.attach(module, {m: [hosts[m] + k for k in range(len(d))] for m, d in placement.items()})
    PassManager.parse(f"builtin.module(rhino-lower-transfers{{{options}}})", context).run(module)
    return module


def planned(module: ir.Module) -> list[dict[str, Any]]:
    found = [RhinoMulticast.of(op) for op in transfer_ops(module)]
    assert found and None not in found
    return [data for data in found if data is not None]


class Log:
    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, where: Any, message: str, notes: Any = ()) -> None:
        self.errors.append(message)


@pytest.mark.parametrize("seed", range(6))
def test_an_edge_is_what_one_send_of_the_schedule_means(seed: int) -> None:
    module = lowered(seed)
    program = read_program(module)
    script = make_script(program, ScheduledStep.from_data(RhinoSchedule.of(module) or {}))
    sent: dict[Any, dict[int, None]] = {}
    for action in script.actions:
        if isinstance(action, MoveValue) and action.task.kind == "send" and action.task.microbatch in (None, 0):
            sent.setdefault(action.task, {})[action.transfer] = None
    edges = {tuple(t.index for t in edge.transfers): edge for edge in edges_of(program)}
    assert sent and {tuple(copies) for copies in sent.values()} <= set(edges)
    assert len({edge.name for edge in edges.values()}) == len(edges)
    for task, copies in sent.items():
        edge = edges[tuple(copies)]
        assert (edge.from_stage, edge.to_stage, edge.looped) == (task.stage, task.peer, task.microbatch is not None)
    data = planned(module)
    assert all(data[t.index]["edge"] == edge.name for edge in edges.values() for t in edge.transfers)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(3))
def test_the_text_says_what_a_plan_for_the_real_devices_says(seed: int, strategy: str) -> None:
    module = lowered(seed, f"topology=p3.8xlarge:3 strategy={strategy} scheduler=load-balance")
    data = planned(module)
    program = read_program(module)
    cluster = Cluster.load("p3.8xlarge:3")
    level = cluster.inter_host
    assert level is not None
    bandwidth = dict.fromkeys(range(3), Fraction(level.bandwidth_bytes_s) * level.nics)
    network = Network({d: d // 4 for d in range(12)}, bandwidth, Fraction(level.latency_s))
    for edge in edges_of(program):
        tensors = [_tensor(module, program, transfer.index) for transfer in edge.transfers]
        plan = plan_reshard(tensors, network, strategy, "load-balance")
        position = {unit: order for order, unit in enumerate(plan.order)}
        for k, transfer in enumerate(edge.transfers):
            assert (transfer.strategy, transfer.scheduler) == (strategy, "load-balance")
            found = data[transfer.index]
            assert (found["makespan_s"], found["bound_s"]) == (float(plan.makespan_s), float(plan.bound_s))
            assert [
                (unit["slice"], unit["holders"], unit["receivers"], unit["sender"], unit["order"])
                for unit in found["units"]
            ] == [
                (
                    [list(b) for b in unit.slice],
                    list(unit.holders),
                    list(unit.receivers),
                    plan.senders[unit.index][0][1],
                    position[unit.index],
                )
                for unit in plan.units
                if unit.tensor == k
            ]


def _tensor(module: ir.Module, program: PipelineProgram, index: int) -> MovedTensor:
    op = transfer_ops(module)[index]
    axes = {mesh.name: mesh.axes for mesh in program.meshes}
    placement = {mesh.name: mesh.devices for mesh in program.meshes}
    tiles = []
    for end in (op.operands[0].type, op.results[0].type):
        carried = mpmd.mesh_tensor(end)
        assert carried is not None
        shape = tuple(carried.tensor.shape)
        found = tiles_of(carried, shape, axes, placement)
        tiles.append(tuple(Tile(device, tuple((a, b) for a, b in where)) for device, where in found.items()))
    return MovedTensor(shape, 4, tiles[0], tiles[1])


@pytest.mark.parametrize("scheduler", ["naive", "load-balance", "greedy", "search", "optimal"])
@pytest.mark.parametrize("seed", range(3))
def test_every_plan_is_verified_and_reads_back(seed: int, scheduler: str) -> None:
    module = lowered(seed, f"topology=p3.8xlarge:3 scheduler={scheduler}")
    log = Log()
    again = parse_text(str(module), module.context)
    verify(again, log)
    assert log.errors == []
    assert planned(again) == planned(module)
    assert all(t.scheduler == scheduler for t in read_program(again).transfers)


@pytest.mark.parametrize("strategy", ["broadcast", "send-recv"])
def test_schedules_count_with_what_is_planned(strategy: str) -> None:
    module = lowered(1, f"topology=p3.8xlarge:3 strategy={strategy}")
    program, data = read_program(module), planned(module)
    seconds = [1.0] * len(program.fragments)
    costs = priced_program(program, seconds, planned_seconds(module, program), None, Units()).costs()
    looped = [edge for edge in edges_of(program) if edge.looped]
    sent = {(e.from_stage, e.to_stage): data[e.transfers[0].index]["makespan_s"] for e in looped}
    assert len(sent) == len(looped) and all(seconds > 0 for seconds in sent.values())
    assert {
        ends: seconds
        for edge in costs.edges
        for ends, seconds in (((edge.src, edge.dst), edge.forward_s), ((edge.dst, edge.src), edge.backward_s))
        if seconds is not None
    } == sent


def test_without_plans_schedules_count_with_the_bound() -> None:
    module = lowered(1)
    program, data = read_program(module), planned(module)
    cluster = Cluster.load("p3.8xlarge:3")
    assert cluster.inter_host is not None
    costs = priced_program(program, [1.0] * len(program.fragments), {}, cluster, Units()).costs()
    looped = {(e.from_stage, e.to_stage): e for e in edges_of(program) if e.looped}
    assert costs.edges
    for edge in costs.edges:
        for ends, seconds in (((edge.src, edge.dst), edge.forward_s), ((edge.dst, edge.src), edge.backward_s)):
            if seconds is not None:
                transfers = looped[ends].transfers
                bound = data[transfers[0].index]["bound_s"]
                # From one host to one other all values have the same bound, their bytes, and a message each.
                assert seconds == pytest.approx(bound + len(transfers) * cluster.inter_host.latency_s)


@pytest.mark.parametrize(
    ("sharding", "spread"),
    [
        ((("x",), ()), Spread((4, 2), (True, False))),
        ((("y", "x"), ()), Spread((4, 2), (True, True))),
        ((("x:(1)2",), ("y",)), Spread((2, 2, 2), (True, False, True))),
        ((("x:(2)2",), ()), Spread((2, 2, 2), (False, True, False))),
        ((("x:(2)2",), ("x:(1)2",)), Spread((2, 2, 2), (True, True, False))),
        (((), ()), Spread((4, 2), (False, False))),
    ],
)
def test_parts_of_axes_are_axes(sharding: tuple[tuple[str, ...], ...], spread: Spread) -> None:
    mesh = GroupMesh("stage0", (("x", 4), ("y", 2)), tuple(range(8)))
    value = GroupValue(0, 0, (8, 8), "f32", sharding, "step")
    program = PipelineProgram(1, 1, (mesh,), (value,), (), (), (), (), (), (), (-1,))
    found = spread_of(program, value)
    assert found == spread
    # Parts of two devices need as many different tiles as slices say.
    slices = list(sdy.slices(value.shape, sharding, mesh.axes))
    most = max(len({*slices[first : first + 2]}) for first in range(0, 8, 2))
    assert need_of(found, 2).share == most / len({*slices})


def test_within_a_host_nothing_is_sent() -> None:
    module = lowered(0, "topology=dgx-h100:2", per_host=False)
    assert all(data["makespan_s"] == data["bound_s"] == 0.0 for data in planned(module))


def test_devices_that_the_cluster_has_not_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"device 8 is not one of the 8 of cluster p3\.8xlarge:2"):
        lowered(0, "topology=p3.8xlarge:2")

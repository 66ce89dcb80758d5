"""Seconds of compute: per op, the slower of arithmetic and memory traffic.

Owns the roofline of docs/design/cost-model.md, "Computing". Knows a device, not meshes: callers divide by the shards
that really divide.
"""

from __future__ import annotations

from rhino.machine.model import Cluster
from rhino.program.data import Graph, Op
from rhino.program.fusion import materialised, traffic_bytes
from rhino.program.operations import CONTRACTIONS


def op_seconds(graph: Graph, cluster: Cluster) -> list[float]:
    """For each op, `max(flops / peak(dtype), bytes / memory bandwidth)` of all its executions in a step, undivided."""
    real = materialised(graph)
    return [_one(graph, op, cluster, real) for op in graph.ops]


def matmul_seconds(graph: Graph, cluster: Cluster) -> dict[int, tuple[float, tuple[float, ...]]]:
    """For each dot, convolution, kernel: seconds of its arithmetic, and of moving each operand and result; undivided.

    A sharded dot is as slow as the slower of its share of the arithmetic and of the tensors it reads whole or in part.
    A kernel that moves more or less than its operands and results once does so for all of them alike.
    """
    bytes_s = cluster.device.memory_bandwidth_bytes_s * cluster.efficiency.memory
    found = {}
    for op in graph.ops:
        if op.name in CONTRACTIONS or (op.kernel is not None and op.manual is None):
            sizes = [graph.values[v].nbytes for v in (*op.operands, *op.results)]
            times = op.kernel.nbytes / max(1, sum(sizes)) if op.kernel is not None else 1.0
            moved = tuple(op.trips * times * size / bytes_s for size in sizes)
            found[op.index] = (op.trips * _arithmetic(graph, op, cluster), moved)
    return found


def _arithmetic(graph: Graph, op: Op, cluster: Cluster) -> float:
    """Seconds of the arithmetic of one execution of a dot, convolution or kernel."""
    device, efficiency = cluster.device, cluster.efficiency
    if op.kernel is None:
        return op.flops / (device.matmul_peak(graph.values[op.operands[0]].dtype) * efficiency.of(op.name))
    if op.kernel.rate == "vector":
        return op.flops / device.peak("f32")
    return op.flops / (device.matmul_peak(op.kernel.dtype) * efficiency.of(op.kernel.rate))


def _one(graph: Graph, op: Op, cluster: Cluster, real: list[bool]) -> float:
    if not op.results:
        return 0.0
    if op.manual is not None and op.rule is not None:
        return sum(op_seconds(op.manual.body, cluster)) * op.manual.ways(op.rule) * op.trips
    device, efficiency = cluster.device, cluster.efficiency
    memory_s = traffic_bytes(graph, op, real) / (device.memory_bandwidth_bytes_s * efficiency.memory)
    if op.name in CONTRACTIONS or op.kernel is not None:
        return max(_arithmetic(graph, op, cluster), memory_s) * op.trips
    return memory_s * op.trips

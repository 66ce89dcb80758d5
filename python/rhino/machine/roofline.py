"""Seconds of compute on one device: per op, the slower of arithmetic and memory traffic, and its kernel's start.

Owns the times of docs/design/cost-model.md, "Computing". Knows a device, not meshes: callers say into how many parts a
plan divides what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rhino.machine.model import Cluster
from rhino.machine.rates import ElementRates, ProductRates
from rhino.program.data import Graph, Op
from rhino.program.element_types import dtype_bytes
from rhino.program.long_sums import is_long
from rhino.program.operations import CONTRACTIONS, PLACEMENT
from rhino.program.products import Attention, Factors, MatrixProduct, Parts, attention_of, product_of, slowness
from rhino.program.traffic import Fusing, Traffic, traffic
from rhino.program.turned import copied_kernel
from rhino.program.unwritten import narrow
from rhino.program.work import Work
from rhino.xla import back_end


@dataclass(frozen=True, slots=True)
class HeavyTimes:
    """Seconds of one dot, convolution, kernel or scatter whose additions clash, by how it is divided.

    A share of it is as slow as the slower of its arithmetic and of the tensors it reads whole or in part. Arithmetic of
    a product goes by the shape of the share, where the device tells `rates`; else it is `arithmetic_s`, divided.

    Attributes:
      trips: executions in a step.
      arithmetic_s: of one execution, undivided.
      moved: per operand and result its factors, and the seconds of moving it whole once.
      start_s: the least that a kernel takes, and what moving tensors takes besides.
      share: of what products reach alone, what they reach in a step.
      copied: as `moved`, what is copied before or after, by a kernel of its own.
    """

    trips: int
    arithmetic_s: float
    moved: tuple[tuple[Factors, float], ...]
    start_s: float = 0.0
    product: MatrixProduct | None = None
    rates: ProductRates | None = None
    multiprocessors: int = 1
    share: float = 1.0
    copied: tuple[tuple[Factors, float], ...] = ()

    def seconds(self, ways: float = 1.0, parts: Parts | None = None) -> float:
        """Seconds of all executions of one device's share.

        Args:
          ways: into how many parts all of it is divided.
          parts: into how many parts what has given factors is divided; by default everything is whole.
        """

        def moving(what: tuple[tuple[Factors, float], ...]) -> float:
            return sum(seconds / (parts(factors) if parts else 1.0) for factors, seconds in what)

        memory_s = moving(self.moved)
        copied_s = len(self.copied) * self.start_s + moving(self.copied)
        if self.product is not None and self.rates is not None:
            working_s = self.rates.working_s(*self.product.sizes(parts), self.multiprocessors) / self.share
            working_s *= self.product.slower
            return self.trips * (copied_s + max(self.rates.start_s + working_s, self.start_s + memory_s))
        return self.trips * (copied_s + self.start_s + max(self.arithmetic_s / ways, memory_s))


def launch_s(cluster: Cluster) -> float:
    """Seconds that each kernel costs besides what it does."""
    return cluster.device.kernels.launch_s if cluster.device.kernels is not None else 0.0


def perfect_s(seconds: Sequence[float], launches: Sequence[float], devices: int) -> float:
    """Seconds that no plan on so many devices is faster than: computing divided perfectly, launches not at all."""
    return sum(seconds) / devices + sum(launches)


def op_seconds(graph: Graph, cluster: Cluster) -> list[float]:
    """For each op, seconds of all its executions in a step on one device that holds everything.

    Of those that are no dots, convolutions or kernels, it is what a plan divides: `bytes / memory bandwidth`.
    """
    found, heavy = device_traffic(graph, cluster), heavy_times(graph, cluster)
    # What a kernel computes for longer than it moves is its last op's.
    longer = {
        o: moving_seconds(cluster, work) - work.nbytes / memory_bytes_s(cluster) for o, work in found.kernels.items()
    }
    return [
        heavy[op.index].seconds()
        if op.index in heavy
        else _moving(graph, op, cluster, found.nbytes[op.index]) + longer.get(op.index, 0.0) * op.trips
        for op in graph.ops
    ]


def launch_seconds(graph: Graph, cluster: Cluster) -> list[float]:
    """For each op that is no dot, convolution or kernel, seconds of its launches in a step, which no plan divides.

    Each kernel has one (`rhino.program.traffic`), and a sum that is long on any number of devices one more.
    """
    launch = launch_s(cluster)
    if not launch:
        return [0.0] * len(graph.ops)
    starts, in_two = device_traffic(graph, cluster).starts, back_end(cluster.device.xla_target).sums_in_two

    def kernels(op: Op) -> int:
        if not is_light(op):
            return 0
        return starts[op.index] + (in_two and is_long(graph, op, cluster.num_devices))

    return [launch * op.trips * kernels(op) for op in graph.ops]


def device_traffic(graph: Graph, cluster: Cluster) -> Traffic:
    """What the kernels move that XLA makes for the cluster's devices."""
    made = back_end(cluster.device.xla_target)
    fusing = Fusing(
        rows_fused=made.rows_fused,
        costly_kept=made.costly_kept,
        tanh_kept=made.tanh_kept,
        wide_tanh_kept=made.wide_tanh_kept,
        shared_kept=made.shared_kept,
        fills_read=made.fills_read,
        siblings_merged=made.siblings_merged,
        products_fuse=not made.dots_widened,
        products_wide=made.dots_widened,
        worked=_element_rates(cluster) is not None,
    )
    return graph.fact(traffic, fusing)


def _element_rates(cluster: Cluster) -> ElementRates | None:
    return cluster.device.kernels.elements if cluster.device.kernels is not None else None


def heavy_times(graph: Graph, cluster: Cluster) -> dict[int, HeavyTimes]:
    """Of each dot, convolution and kernel what its shares take.

    A kernel that moves more or less than its operands and results once does so for all of them alike.
    """
    bytes_s = memory_bytes_s(cluster)
    made = back_end(cluster.device.xla_target)
    widened, turns = made.dots_widened, made.kernels_turned and launch_s(cluster) > 0  # XLA: dots-widened
    found = {}
    for op in graph.ops:
        if is_light(op):
            continue
        wide = widened and op.kernel is None
        read = [graph.values[v] for v in (*op.operands, *op.results)]
        sizes = [v.nbytes * (2 if wide and v.dtype == "bf16" else 1) for v in read]
        times = op.kernel.nbytes / max(1, sum(sizes)) if op.kernel is not None else 1.0
        mappings = (*op.rule.operands, *op.rule.results) if op.rule is not None else ((),) * len(sizes)
        factors = (frozenset(f for dim in mapping for f in dim) for mapping in mappings)
        slower = [slowly_moved(cluster, v.shape, dtype_bytes(v.dtype)) if op.kernel is None else 1.0 for v in read]
        moved = tuple((f, times * size * n / bytes_s) for f, size, n in zip(factors, sizes, slower, strict=True))
        arithmetic_s = _arithmetic(graph, op, cluster)
        product = product_of(graph, op, wide)
        if product is not None and _is_of_vectors(cluster, product):
            product = None
        found[op.index] = product_times(cluster, product, op.name, op.trips, arithmetic_s, moved)
        # Two bytes read, four written. XLA: dots-widened
        copied = [(moved[i][0], 1.5 * sizes[i] / bytes_s) for i in (narrow(graph).get(op.index, ()) if wide else ())]
        # XLA: kernels-turned
        if turns and (at := copied_kernel(graph, op)) is not None:
            copied.append((moved[at][0], 2 * sizes[at] / bytes_s))
        if copied:
            found[op.index] = replace(found[op.index], copied=tuple(copied))
    return found | _clashing(graph, cluster)


def _is_of_vectors(cluster: Cluster, product: MatrixProduct) -> bool:
    """Whether a product is made element by element. `XLA: outer-multiplied, vectors-multiplied`"""
    alone = back_end(cluster.device.xla_target).vectors_multiplied and min(product.rows, product.columns) == 1
    return alone or product.depth <= 1


def _clashing(graph: Graph, cluster: Cluster) -> dict[int, HeavyTimes]:
    """Scatters whose additions wait for each other: fewer do only where what is added is divided, not its columns."""
    rates, found = _element_rates(cluster), {}
    if rates is None:
        return {}
    traffic = device_traffic(graph, cluster)
    for o, work in traffic.kernels.items():
        op = graph.ops[o]
        if work.clashes and op.rule is not None and op.rule.reduction:
            moved_s = work.nbytes / memory_bytes_s(cluster)
            # Of the kernel's bytes, each op has its own.
            own_s = traffic.nbytes[o] / memory_bytes_s(cluster)
            alone_s = own_s + rates.seconds(replace(work, clashes=0.0), moved_s) - moved_s
            waits = (frozenset(op.rule.reduction), work.clashes * rates.clash_s)
            found[o] = HeavyTimes(op.trips, alone_s, (waits,))
    return found


def product_times(
    cluster: Cluster,
    product: MatrixProduct | None,
    name: str,
    trips: int,
    arithmetic_s: float,
    moved: tuple[tuple[Factors, float], ...],
) -> HeavyTimes:
    """What shares of a product, or of a kernel that is none, take on the cluster's devices.

    Args:
      name: of the operation, "stablehlo.convolution", by which `Cluster.efficiency` has its share.
      trips, arithmetic_s, moved: as of `HeavyTimes`.
    """
    device = cluster.device
    rates = device.product_rates(product.dtype) if product is not None else None
    multiprocessors = device.kernels.multiprocessors if device.kernels is not None else 1
    share = cluster.efficiency.of(name)
    return HeavyTimes(trips, arithmetic_s, moved, launch_s(cluster), product, rates, multiprocessors, share)


def memory_bytes_s(cluster: Cluster) -> float:
    """Bytes per second that a device moves to and from its memory in a step."""
    return cluster.device.memory_bandwidth_bytes_s * cluster.efficiency.memory


def host_seconds(cluster: Cluster, nbytes: float) -> float:
    """Seconds of moving bytes between a device's memory and its host's, with nothing beside.

    Of a device without a host they stay within its own.
    """
    return nbytes / (cluster.device.host_bandwidth_bytes_s or memory_bytes_s(cluster))


def slowly_moved(cluster: Cluster, shape: Sequence[int], element_bytes: float) -> float:
    """How many times as long a product takes to move a tensor as its bytes say; 1 if the device tells no such rates."""
    return slowness(shape, element_bytes) if _element_rates(cluster) is not None else 1.0


def moving_seconds(cluster: Cluster, work: Work) -> float:
    """Seconds of a kernel that is no product, without its start."""
    moved_s, rates = work.nbytes / memory_bytes_s(cluster), _element_rates(cluster)
    return moved_s if rates is None else rates.seconds(work, moved_s)


def arithmetic_seconds(cluster: Cluster, flops: float, dtype: str, rate: str) -> float:
    """Seconds of arithmetic at a type's peak.

    Args:
      rate: an operation's name, or what limits a kernel (`rhino.kernels.data.RATES`): "vector" is at the ordinary rate.
    """
    if rate == "vector":
        return flops / cluster.device.peak("f32")
    return flops / (cluster.device.matmul_peak(dtype) * cluster.efficiency.of(rate))


def kernel_seconds(cluster: Cluster, rate: str, dtype: str, flops: int, shapes: Sequence[Sequence[int]]) -> float:
    """Seconds of the arithmetic of a kernel on one device: attention's own where the cluster tells rates of it.

    Args:
      rate, dtype, flops, shapes: as of `attention_of`.
    """
    attention = attention_of(rate, dtype, flops, shapes)
    found = _attention_seconds(cluster, attention) if attention is not None else None
    return arithmetic_seconds(cluster, flops, dtype, rate) if found is None else found


def _attention_seconds(cluster: Cluster, attention: Attention) -> float | None:
    device = cluster.device
    rates = device.kernels.attention if device.kernels is not None else {}
    found = rates.get("backward" if attention.backward else "forward")
    if found is None:
        return None
    speed = device.matmul_peak(attention.dtype) / device.matmul_peak("bf16")
    return found.seconds(attention.flops, attention.scores, attention.rows, speed)


def is_light(op: Op) -> bool:
    """Whether it is no dot, convolution or kernel."""
    return not op.results or (op.name not in CONTRACTIONS and op.kernel is None) or op.manual is not None


def _arithmetic(graph: Graph, op: Op, cluster: Cluster) -> float:
    """Seconds of the arithmetic of one execution of a dot, convolution or kernel: attention's own, or a peak's."""
    if op.kernel is None:
        return arithmetic_seconds(cluster, op.flops, graph.values[op.operands[0]].dtype, op.name)
    shapes = [graph.values[v].shape for v in op.operands]
    return kernel_seconds(cluster, op.kernel.rate, op.kernel.dtype, op.flops, shapes)


def _moving(graph: Graph, op: Op, cluster: Cluster, nbytes: float) -> float:
    if not op.results:
        return 0.0
    if op.tag == PLACEMENT and (op.operands[0] in graph.hosted) != (op.results[0] in graph.hosted):
        return host_seconds(cluster, graph.values[op.results[0]].nbytes) * op.trips
    if not graph.hosted.isdisjoint(op.results):
        return 0.0  # what it slices or writes there is what the copy moves
    memory_s = nbytes / memory_bytes_s(cluster)
    if op.manual is not None:
        if op.rule is None:
            return max(_arithmetic(graph, op, cluster), memory_s) * op.trips
        body = op.manual.body
        inside = sum(op_seconds(body, cluster)) + sum(launch_seconds(body, cluster))
        return inside * op.manual.ways(op.rule) * op.trips
    return memory_s * op.trips

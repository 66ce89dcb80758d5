"""How long the host takes to start what a device does in a step: it hands over arrays, then starts thing after thing.

Owns which kernels XLA starts together, as CUDA graphs, and what starting a task of a pipeline takes. The host runs
ahead of the device, into the next step: a step takes the longer of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.machine.model import Cluster
from rhino.machine.rates import HostRates
from rhino.machine.roofline import device_traffic, is_light
from rhino.program.data import Graph

# XLA makes graphs of no fewer kernels (xla_gpu_graph_min_graph_size).
_LEAST_GRAPH = 5
NO_TIME = HostRates(0.0, 0.0, 0.0, 0.0)
# What the runtime takes to start a task of a pipeline, with what it sends and frees. Measured: 110 us, of up to 1,024
# tasks of eight groups of one virtual CPU device each, whose products take no time.
TASK_START_S = 1e-4


@dataclass(slots=True)
class Starting:
    """Seconds of what is started, told in the order of the program.

    Kernels that follow each other, as often executed, are one CUDA graph.

    Attributes:
      graphs: whether XLA makes graphs at all.
      seconds: so far, but for the kernels since the last `end`.
    """

    rates: HostRates
    graphs: bool = True
    seconds: float = 0.0
    _kernels: int = 0
    _times: int = 1

    def arrays(self, count: int) -> None:
        """So many that the step is given."""
        self.seconds += count * self.rates.array_s

    def kernel(self, times: int) -> None:
        """A kernel that a step executes so often."""
        if times != self._times:
            self.end()
            self._times = times
        self._kernels += 1

    def apart(self, times: float) -> None:
        """What no graph holds, so often in a step."""
        self.end()
        self.seconds += times * self.rates.apart_s

    def end(self) -> None:
        """The kernels so far are followed by something else, or by the end of a loop's body."""
        alone_s = self._kernels * self.rates.kernel_s
        together = self.graphs and self._kernels >= _LEAST_GRAPH
        self.seconds += self._times * (self.rates.graph_s if together else alone_s)
        self._kernels = 0


def host_rates(cluster: Cluster) -> HostRates:
    """What the hosts of a cluster take; no time where that is not known."""
    kernels = cluster.device.kernels
    return kernels.host if kernels is not None and kernels.host is not None else NO_TIME


def task_start_seconds(cluster: Cluster, groups: int) -> float:
    """Seconds from a task of a pipeline's group to its next one at least: one process starts those of several groups.

    There is a process for each host, and groups are dealt to these.
    """
    return TASK_START_S * -(-groups // cluster.hosts)


def starting_seconds(graph: Graph, cluster: Cluster) -> tuple[float, float]:
    """Seconds that a host takes to start a step on one of its devices: without collectives, and more for each.

    A collective parts a graph in two.
    """
    rates = host_rates(cluster)
    return graph.fact(_alone, cluster) if rates is not NO_TIME else 0.0, rates.apart_s + rates.graph_s


def _alone(graph: Graph, cluster: Cluster) -> float:
    """Without collectives."""
    starts = device_traffic(graph, cluster).starts
    starting, block = Starting(host_rates(cluster)), -1
    starting.arrays(len(graph.arguments))
    for op in graph.ops:
        if op.name == "stablehlo.while":
            starting.end()
        elif starts[op.index] or not is_light(op):
            if op.parent != block:
                starting.end()
                block = op.parent
            if op.name == "stablehlo.convolution":
                starting.apart(op.trips)
            else:
                starting.kernel(op.trips)
    starting.end()
    return starting.seconds

"""What a choice of states costs on one mesh: compute per decision, collectives per transfer.

Owns the objective of the search, exact for the tied problem it is given. Chooses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from rhino.cluster import Cluster
from rhino.cost.collectives import CommModel
from rhino.search.layout import Layout, Step, convert
from rhino.search.problem import PARTIAL, End, Node, Problem, Transfer
from rhino.search.symmetry import Quotient

# PCIe 4.0 x16 as common copy benchmarks find it; it only says that a smaller part of the batch is better.
_HOST_BYTES_S = 2.5e10
# States of one node, one per mesh axis.
States = tuple[int, ...]


@dataclass(slots=True)
class Costs:
    """Seconds on one mesh. `seconds[o]` is the undivided compute time of op o, `matmuls[o]` its arithmetic and tensors
    apart for dots and convolutions (`rhino.cost.roofline.matmul_seconds`); `host_bytes_s` the rate at which a
    device gets its part of the batch from its host. What XLA makes of collectives differs by target: `sums_merge`,
    whether it adds partial results before it reduces them once; `widens`, whether it sends 2-byte floats as f32.
    """

    problem: Problem
    quotient: Quotient
    comm: CommModel
    seconds: Sequence[float]
    matmuls: Mapping[int, tuple[float, tuple[float, ...]]] = field(default_factory=dict)
    host_bytes_s: float = float("inf")
    sums_merge: bool = True
    widens: bool = False
    masks: dict[int, dict[int, float]] = field(default_factory=dict)
    known: dict[tuple[float, Layout, Layout], tuple[float, tuple[Step, ...]]] = field(default_factory=dict)

    @classmethod
    def on(
        cls,
        problem: Problem,
        quotient: Quotient,
        cluster: Cluster,
        comm: CommModel,
        seconds: Sequence[float],
        matmuls: Mapping[int, tuple[float, tuple[float, ...]]],
    ) -> Costs:
        """The costs with what XLA does for the cluster's target."""
        gpu = cluster.device.xla_target != "cpu"
        return cls(problem, quotient, comm, seconds, matmuls, _HOST_BYTES_S, sums_merge=gpu, widens=not gpu)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.comm.sizes

    def convert(self, nbytes: float, source: Layout, target: Layout) -> tuple[float, tuple[Step, ...]]:
        """Seconds and collectives of one conversion."""
        if source == target:
            return 0.0, ()
        key = (nbytes, source, target)
        found = self.known.get(key)
        if found is None:
            steps = tuple(convert(source, target, self.sizes, nbytes, self.comm.reduce_scatter))
            found = self.known[key] = (sum(self.comm.time(s.kind, s.axes, s.nbytes) for s in steps), steps)
        return found

    def layout(self, end: End, states: States) -> Layout:
        """Where the value is at one end of a transfer when its node is in `states`."""
        return tuple(end.view[s] for s in states)

    def node(self, k: int, states: States) -> float:
        """Compute seconds of one member of class k, plus what its losses cost to gather."""
        node = self.problem.nodes[self.quotient.nodes[k]]
        sizes = self.sizes
        if node.kind == "op":
            return self._op(node, states)
        total = 0.0
        for mask, work in self._masks(k).items():
            total += work / prod(n for n, s in zip(sizes, states, strict=True) if s > 0 and mask >> (s - 1) & 1)
        return total + self._input(k, states) + sum(t * trips for t, _, trips in self.losses(k, states))

    def _op(self, node: Node, states: States) -> float:
        """Roofline of one heavy op: arithmetic divides by all its shards, each tensor only by those that shard it."""
        o = node.ops[0]
        parts = prod(n for n, s in zip(self.sizes, states, strict=True) if s > 0)
        matmul = self.matmuls.get(o)
        rule = self.problem.graph.ops[o].rule
        if matmul is None or rule is None:
            return self.seconds[o] / parts
        compute_s, moved = matmul
        memory_s = 0.0
        for mapping, seconds in zip((*rule.operands, *rule.results), moved, strict=True):
            factors = {f for dim in mapping for f in dim}
            memory_s += seconds / prod(
                n for n, s in zip(self.sizes, states, strict=True) if s > 0 and node.factors[s - 1] in factors
            )
        return max(compute_s / parts, memory_s)

    def _input(self, k: int, states: States) -> float:
        """Seconds to bring the batch arguments of a cone from the host."""
        problem = self.problem
        n = self.quotient.nodes[k]
        total = 0.0
        for argument in problem.graph.arguments:
            v = argument.value
            if argument.role == "batch" and problem.node_of[v] == n:
                parts = prod(
                    m for m, s in zip(self.sizes, states, strict=True) if s > 0 and s - 1 in problem.classes[v]
                )
                total += problem.graph.values[v].nbytes / parts / self.host_bytes_s
        return total

    def losses(self, k: int, states: States) -> list[tuple[float, tuple[Step, ...], int]]:
        """Collectives of ops inside a cone that cannot keep a sharded dimension: (seconds, steps, trips)."""
        n = self.quotient.nodes[k]
        graph = self.problem.graph
        found = []
        for c, v, op in self.problem.losses.get(n, ()):
            if c + 1 in states:
                classes = self.problem.classes[v]
                source = tuple(classes.index(s - 1) if s > 0 and s - 1 in classes else -1 for s in states)
                target = tuple(-1 if s == c + 1 else d for s, d in zip(states, source, strict=True))
                seconds, steps = self.convert(self.sent(v), source, target)
                found.append((seconds, steps, graph.ops[op].trips))
        return found

    def transfer(self, transfer: Transfer, source: Layout, target: Layout) -> tuple[float, tuple[Step, ...]]:
        """Seconds (all trips) and collectives of one conversion of a transfer."""
        seconds, steps = self.convert(self.sent(transfer.value), source, target)
        return seconds * transfer.trips, steps

    def sent(self, v: int) -> int:
        """Bytes of a value on the wire."""
        value = self.problem.graph.values[v]
        return value.nbytes * (2 if self.widens and value.dtype in ("bf16", "f16") else 1)

    def once(self, transfer: Transfer, source: Layout) -> bool:
        """Whether equal conversions from `source` by several ends of a transfer are made once."""
        return transfer.kind == "use" or (self.sums_merge and PARTIAL in source)

    def _masks(self, k: int) -> dict[int, float]:
        """Work of a cone by the set of classes that divide it."""
        found = self.masks.get(k)
        if found is not None:
            return found
        problem = self.problem
        graph = problem.graph
        n = self.quotient.nodes[k]
        work: dict[int, float] = defaultdict(float)
        for o in problem.nodes[n].ops:
            op = graph.ops[o]
            values = [v for v in (*op.results, *op.operands[:1]) if problem.node_of[v] == n]
            mask = 0
            for v in values:
                for c in problem.classes[v]:
                    if c >= 0:
                        mask |= 1 << c
            work[mask] += self.seconds[o]
        self.masks[k] = work
        return work


def paid(
    costs: Costs, transfer: Transfer, states: Sequence[States]
) -> list[tuple[float, tuple[Step, ...], Layout, Layout]]:
    """The conversions a transfer makes under given states, each once: (seconds, steps, from, to)."""
    found: list[tuple[float, tuple[Step, ...], Layout, Layout]] = []
    seen: set[tuple[Layout, Layout]] = set()
    for s in transfer.sources:
        source = costs.layout(s, states[s.node])
        for t in transfer.targets:
            target = costs.layout(t, states[t.node]) if t.node >= 0 else (-1,) * len(costs.sizes)
            if source == target or ((source, target) in seen and costs.once(transfer, source)):
                continue
            seen.add((source, target))
            seconds, steps = costs.transfer(transfer, source, target)
            found.append((seconds, steps, source, target))
    return found

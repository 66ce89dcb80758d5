"""The sharding problem as data: which decisions there are, and which tensors travel between them.

Built by `rhino.sharding.cones` and `rhino.sharding.wiring` (docs/design/search.md, "The problem in symbols"); knows no
mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import prod

from rhino.program.data import Graph, Rule
from rhino.sharding.uneven import pays, ways

# Per axis and state, into how many parts that divides something.
Ways = tuple[tuple[float, ...], ...]
REPLICATED = -1
PARTIAL = -2


@dataclass(slots=True)
class Node:
    """One decision. State 0 is "replicated"; state k > 0 shards class k-1 of a cone, or factor `factors[k-1]` of an op.

    `limits[k-1]` is the size that the shards of state k must divide, unless `uneven[k-1]`: then one axis may split it
    into parts that differ. No `uneven` is none of them.
    """

    index: int
    kind: str
    ops: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    factors: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()
    uneven: tuple[bool, ...] = ()

    @property
    def states(self) -> int:
        return 1 + len(self.limits)

    def takes(self, state: int, axes: Sequence[int]) -> bool:
        """Whether axes of these sizes, larger than 1, can all have a state."""
        return takes(self.limits, self.uneven, state, axes)

    def parts(self, states: Sequence[int], sizes: Sequence[int], among: Container[int] | None = None) -> float:
        """Into how many parts axes in these states divide what has the classes, or factors, at some positions.

        Args:
          among: the positions; all of them by default.
        """
        total: float = 1
        for s, n in zip(states, sizes, strict=True):
            if s > 0 and (among is None or s - 1 in among):
                total *= ways(self.limits[s - 1], n) if self.uneven else n
        return total


@dataclass(slots=True, frozen=True)
class End:
    """One side of a transfer: in state k of `node` the value is in `view[k]`: a sharded dim, REPLICATED or PARTIAL.

    `op` is the op that reads the value, as operand `slot`, or that produces `value`; -1 where the end is a cone.
    """

    node: int
    view: tuple[int, ...]
    op: int = field(default=-1, compare=False)
    slot: int = field(default=-1, compare=False)
    value: int = field(default=-1, compare=False)


@dataclass(slots=True)
class LayoutTransfer:
    """A value that passes from the layout its producer leaves it in to the one its consumers need.

    `kind` is "use" of what a cone keeps, "define" of what an op leaves to a cone, and "return" of a parameter's next
    value to the parameter's cone.
    Either side may have several ends, the other then has one. A conversion between two given layouts is paid once for
    all consumers that agree (`XLA: resharded-once`), and once for partial results that are summed anyway.

    `trips` is how often it happens in a step; `late` how often by `XLA: sums-leave-loops`.
    """

    index: int
    value: int
    kind: str
    trips: int
    sources: list[End]
    targets: list[End]
    op: int = -1
    late: int = 0


@dataclass(slots=True)
class Problem:
    """All decisions and transfers.

    `node_of[v]` is the cone of value v, or -1 when any layout is free; `classes[v]` the classes of its dims, -1 for a
    dim no state shards. `losses[n]` lists (class, value, op) where an op inside cone n cannot keep a sharded dim.
    `free_reads[v]` are ends whose layout a free value takes: the heavy and element-wise ops that read it.
    `returned[v]` is the argument in whose layout v, its next value, is returned, where it is made in one of its own.
    """

    graph: Graph
    nodes: list[Node]
    transfers: list[LayoutTransfer]
    node_of: list[int]
    classes: list[tuple[int, ...]]
    losses: dict[int, list[tuple[int, int, int]]]
    free_reads: dict[int, list[End]] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)

    @property
    def uneven(self) -> bool:
        """Whether any decision may split a dimension into parts that differ."""
        return any(True in node.uneven for node in self.nodes)

    def view(self, value: int) -> tuple[int, ...]:
        """Per state of the value's cone, the dimension of `value` that is sharded."""
        classes = self.classes[value]
        node = self.nodes[self.node_of[value]]
        return (REPLICATED, *[classes.index(c) if c in classes else REPLICATED for c in range(node.states - 1)])


def ways_of(node: Node, sizes: Sequence[int], among: Container[int] | None = None) -> Ways:
    """The factors of `Node.parts`, for many states at the same positions."""
    zero = (0,) * (len(sizes) - 1)
    return tuple(
        [
            tuple([node.parts((*zero[:a], state, *zero[a:]), sizes, among) for state in range(node.states)])
            for a in range(len(sizes))
        ]
    )


def product_of(ways: Ways, states: Sequence[int]) -> float:
    """Into how many parts axes in these states divide: `Node.parts`, by `ways_of`."""
    total: float = 1
    for of_axis, state in zip(ways, states, strict=True):
        total *= of_axis[state]
    return total


def takes(limits: Sequence[int], uneven: Sequence[bool], state: int, axes: Sequence[int]) -> bool:
    """`Node.takes` of a node with these limits."""
    size, n = limits[state - 1], prod(axes)
    return size % n == 0 or (len(axes) == 1 and any(uneven[state - 1 : state]) and pays(size, n))


def leading(rule: Rule, dim: tuple[int, ...]) -> int:
    """The factor a dimension is sharded by first: its major-most one of size over 1; -1 if there is none."""
    for f in dim:
        if rule.factor_sizes[f] > 1:
            return f
    return -1

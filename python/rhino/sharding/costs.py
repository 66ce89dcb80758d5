"""What a choice of states costs on one mesh: compute per decision, collectives per transfer.

Owns the objective of the search, exact for the tied problem it is given. Chooses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from rhino.machine.collectives import CommModel
from rhino.machine.roofline import HeavyTimes, perfect_s
from rhino.program.element_types import NARROW_FLOATS
from rhino.program.memory import Lifetimes, Memory
from rhino.program.operations import CONTRACTIONS
from rhino.program.products import Factors
from rhino.sharding.combining import ALONE, Combined, joined_seconds, shared_seconds
from rhino.sharding.filled import Filled
from rhino.sharding.hiding import Hiding
from rhino.sharding.layout import Form, Layout, Order, Route, RouteStep, form_of, ranked, route, shards, stacked
from rhino.sharding.leaving import late_seconds
from rhino.sharding.manual import Inside, parts
from rhino.sharding.outermost import Turning
from rhino.sharding.problem import PARTIAL, End, LayoutTransfer, Node, Problem, Ways, product_of, ways_of
from rhino.sharding.scratch import Scratch, copied_wide, held, scratch
from rhino.sharding.stored import StoredArguments
from rhino.sharding.symmetry import Quotient
from rhino.sharding.time_model import ProgramTimes
from rhino.sharding.uneven import Odd
from rhino.xla import BackEnd

if TYPE_CHECKING:
    from rhino.sharding.meeting import Prices
    from rhino.sharding.recurring import Recurring

# Classes of what nothing divides.
_WHOLE: frozenset[int] = frozenset()
# States of one node, one per mesh axis.
States = tuple[int, ...]
# How axes on one dimension are nested at the ends of a conversion; None where that is still free.
Orders = tuple[Order | None, Order | None]
FREE: Orders = (None, None)
# The collectives of a conversion.
Steps = tuple[RouteStep, ...]
# What makes conversions alike, their bytes aside: source, target, how sums were left, orders, what does not divide.
Way = tuple[Layout, Layout, Form, Orders, Odd]


@dataclass(slots=True)
class Costs:
    """Seconds on one mesh. `seconds[o]` is the undivided compute time of op o, `launches[o]` what nothing divides,
    `heavy[o]` what shares of a dot, convolution or kernel take; `back_end` is what XLA does on the cluster's target.
    `names` are the mesh's axes, as pins spell them. The tied transfers `hideable`, and of them those of activations,
    `beside`, can run beside computing (`rhino.sharding.overlap`), where `hiding` says. `combines`, `apart`, `carving`,
    `turning` and `filled` are of the modules combining, landing, carved, outermost and filled, `starting` is of
    `rhino.machine.host`; `copying` are the seconds of a byte that is read or written, and of a kernel's start;
    `batch_byte_s` is of `rhino.sharding.time_model`.
    """

    problem: Problem
    quotient: Quotient
    comm: CommModel
    seconds: Sequence[float]
    launches: Sequence[float] = ()
    heavy: Mapping[int, HeavyTimes] = field(default_factory=dict)
    back_end: BackEnd = field(default_factory=BackEnd)
    names: tuple[str, ...] = ()
    hiding: Hiding = field(default_factory=Hiding)
    hideable: frozenset[int] = frozenset()
    beside: frozenset[int] = frozenset()
    combines: Mapping[int, Combined] = field(default_factory=dict)
    insides: Mapping[int, Inside] = field(default_factory=dict)
    apart: Mapping[int, float] = field(default_factory=dict)
    carving: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    turning: Mapping[int, Turning] = field(default_factory=dict)
    starting: tuple[float, float] = (0.0, 0.0)
    copying: tuple[float, float] = (0.0, 0.0)
    batch_byte_s: float = 0.0
    filled: Mapping[int, Sequence[Filled]] = field(default_factory=dict)
    masks: dict[int, dict[frozenset[int], float]] = field(default_factory=dict)
    works: dict[int, list[tuple[Ways, float]]] = field(default_factory=dict)
    tensors: dict[tuple[int, Factors | None], Ways] = field(default_factory=dict)
    known: dict[tuple[float, Way, Combined], tuple[float, Steps]] = field(default_factory=dict)
    routes: dict[Way, Route] = field(default_factory=dict)
    forms: dict[int, Form] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list)
    parts: dict[tuple[int, States], tuple[float, float]] = field(default_factory=dict)
    extra: list[tuple[Scratch, ...]] = field(default_factory=list)
    wider: list[frozenset[int]] = field(default_factory=list)
    prices: dict[tuple[int, int, int], Prices] = field(default_factory=dict)
    whole: dict[tuple[int, ...], bool] = field(default_factory=dict)
    recurring: Recurring | None = field(init=False, default=None)
    used: tuple[Lifetimes, tuple[States, ...], Memory] | None = field(init=False, default=None)
    arguments: StoredArguments = field(init=False)
    uneven: bool = field(init=False)

    def __post_init__(self) -> None:
        self.arguments = StoredArguments(self.problem, self.quotient, self.sizes)
        self.uneven = self.problem.uneven
        self.launches = self.launches or (0.0,) * len(self.problem.graph.ops)

    @classmethod
    def on(cls, times: ProgramTimes, sizes: Sequence[int], names: Sequence[str] = ()) -> Costs:
        """The costs of a program on a mesh of the model's cluster; `names` are the axes', as pins spell them."""
        model = times.model
        return cls(
            times.problem, times.quotient, model.comm(tuple(sizes)), times.seconds, times.launches, times.heavy,
            back_end=model.back_end, hiding=times.hiding, hideable=times.hideable, beside=times.beside,
            combines=times.combines, names=tuple(names), insides=times.insides, apart=times.apart,
            carving=times.carving, turning=times.turning, starting=times.starting, filled=times.filled,
            copying=model.copying, batch_byte_s=times.batch_byte_s,
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.comm.sizes

    def convert(
        self,
        v: int,
        source: Layout,
        target: Layout,
        form: Form = "dot",
        orders: Orders = FREE,
        combined: Combined = ALONE,
    ) -> tuple[float, Steps]:
        """Seconds and collectives of one conversion of a value.

        Args:
          orders: of the axes at both ends, where chosen.
          combined: what its collectives may be combined with.
        """
        if source == target and orders[0] == orders[1]:
            return 0.0, ()
        nbytes, way = self.sent(v), (source, target, form, orders, self._odd(v, source, target))
        found = self.known.get((nbytes, way, combined))
        if found is None:
            # Steps do not name dimensions, and most ways are one of few.
            start, end, odd = ranked(source, target, way[-1])
            steps = tuple([step.scaled(nbytes) for step in self._route((start, end, form, orders, odd)).steps])
            seconds = sum(self.step_seconds(step, combined) for step in steps)
            found = self.known[nbytes, way, combined] = (seconds, steps)
        return found

    def step_seconds(self, step: RouteStep, combined: Combined = ALONE) -> float:
        """Seconds of one collective, which XLA may combine with others."""
        together = combined.bytes_of(step.nbytes, self.back_end.combined_bytes(step.kind))
        joined = step.kind == "all-reduce" and self.back_end.sums_joined
        copied_s = joined_seconds(step.nbytes, together, self.copying) if joined else 0.0
        return shared_seconds(self.comm, step.kind, step.axes, step.nbytes, together) + copied_s

    def route(self, v: int, source: Layout, target: Layout, form: Form = "dot", orders: Orders = FREE) -> Route:
        """The way of a conversion of a value, for one byte."""
        return self._route((source, target, form, orders, self._odd(v, source, target)))

    def _route(self, way: Way) -> Route:
        found = self.routes.get(way)
        if found is None:
            if not self.weights:
                per_byte = [self.comm.affine("collective-permute", (a,))[1] for a in range(len(self.sizes))]
                least = min([b for b in per_byte if b > 0], default=1.0)
                self.weights.extend(max(1.0, b / least) for b in per_byte)
            source, target, form, orders, odd = way
            found = self.routes[way] = route(
                source, target, self.sizes, self.comm.reduce_scatter,
                weights=self.weights, form=form, orders=orders, odd=odd,
            )  # fmt: skip
        return found

    def _odd(self, v: int, source: Layout, target: Layout) -> Odd:
        """The dimensions of a value that one of its layouts splits into parts that differ."""
        if not self.uneven:
            return ()
        shape = self.problem.graph.values[v].shape
        whole = self.whole.get(shape)
        if whole is None:
            whole = self.whole[shape] = not any(size % n for n in self.sizes for size in shape)
        if whole:
            return ()
        found = {d for a, n in enumerate(self.sizes) for d in (source[a], target[a]) if d >= 0 and shape[d] % n}
        return tuple((d, shape[d]) for d in sorted(found))

    def form(self, transfer: LayoutTransfer) -> Form:
        """What kind of op leaves the partial sums of a transfer."""
        found = self.forms.get(transfer.op)
        if found is None:
            found = self.forms[transfer.op] = form_of(self.problem.graph.ops[transfer.op])
        return found

    def orders(
        self,
        transfer: LayoutTransfer | None,
        source_class: int,
        target_class: int,
        source: Layout,
        target: Layout,
        states: Sequence[States],
        nesting: Sequence[Order],
    ) -> Orders:
        """The orders of axes at both ends of a conversion; None where no dimension, and no sum, has several."""
        start = end = None
        if transfer is not None and source.count(PARTIAL) > 1:
            ranks = self._sum_ranks(transfer, source_class, states[source_class])
            nested = nesting[source_class]
            start = tuple(sorted(nested, key=lambda a: (ranks[a], nested.index(a))))
        elif stacked(source):
            start = nesting[source_class]
        if target_class >= 0 and stacked(target):
            end = nesting[target_class]
        return start, end

    def _sum_ranks(self, transfer: LayoutTransfer, k: int, states: States) -> States:
        """Sorts axes that hold partial sums as the dims they split are in the operand; of a dot, as its factors."""
        problem = self.problem
        op = problem.graph.ops[transfer.op]
        klass = self.quotient.klass
        summed = [v for v in op.operands if problem.node_of[v] >= 0 and klass[problem.node_of[v]] == k]
        if problem.nodes[self.quotient.nodes[k]].kind == "op" or not summed:
            return states
        view = problem.view(summed[0])
        return tuple([view[s] for s in states])

    def layout(self, end: End, states: States) -> Layout:
        """Where the value is at one end of a transfer when its node is in `states`."""
        return tuple(map(end.view.__getitem__, states))

    def node(self, k: int, states: States) -> float:
        """Compute seconds of one member of class k, plus what its losses cost to gather."""
        return sum(self.node_parts(k, states))

    def node_parts(self, k: int, states: States) -> tuple[float, float]:
        """Seconds of one member of class k: computing, and the collectives of its losses."""
        found = self.parts.get((k, states))
        if found is None:
            found = self.parts[k, states] = self._node_parts(k, states)
        return found

    def _node_parts(self, k: int, states: States) -> tuple[float, float]:
        n = self.quotient.nodes[k]
        node = self.problem.nodes[n]
        loses = n in self.problem.losses or (node.kind == "op" and node.ops[0] in self.insides)
        sent_s = sum(seconds * trips for seconds, _, trips in self.losses(k, states)) if loses else 0.0
        if node.kind == "op":
            return self._op(node, states) + self._filled(k, states), sent_s
        total = self._filled(k, states)
        works = self.works.get(k)
        if works is None:
            works = self.works[k] = [(ways_of(node, self.sizes, mask), work) for mask, work in self._masks(k).items()]
        for ways, work in works:
            total += work / product_of(ways, states)
        return total + self.arguments.batch_bytes(k, states) * self.batch_byte_s, sent_s

    def _filled(self, k: int, states: States) -> float:
        """Of what one member of class k makes for itself: its own part of each."""
        values = self.problem.graph.values
        return sum(
            work / shards(self.layout(end, states), self.sizes, values[v].shape) + launch
            for end, v, work, launch in self.filled.get(k, ())
        )

    def _op(self, node: Node, states: States) -> float:
        """Of one heavy op: what its share takes, by its shape (`rhino.machine.roofline.HeavyTimes`)."""
        o = node.ops[0]
        if o in self.insides:
            divided = [work / parts(node, states, self.sizes, factors) for factors, work in self.insides[o].work]
            return sum(divided) * self.problem.graph.ops[o].trips
        heavy = self.heavy.get(o)
        if heavy is None:
            return self.seconds[o] / node.parts(states, self.sizes) + self.launches[o]

        def shares(factors: Factors | None) -> float:
            ways = self.tensors.get((o, factors))
            if ways is None:
                among = None if factors is None else [i for i, f in enumerate(node.factors) if f in factors]
                ways = self.tensors[o, factors] = ways_of(node, self.sizes, among)
            return product_of(ways, states)

        return heavy.seconds(shares(None), shares) + self.launches[o]

    def losses(self, k: int, states: States) -> list[tuple[float, Steps, int]]:
        """Collectives that no transfer has: (seconds, steps, trips).

        Those of ops inside a cone that cannot keep a sharded dimension, and those inside of a manual computation.
        """
        n = self.quotient.nodes[k]
        found = [*self._inside(self.problem.nodes[n], states)]
        for v, op, source, target in self.lost(n, states):
            seconds, steps = self.convert(v, source, target)
            found.append((seconds, steps, self.problem.graph.ops[op].trips))
        return found

    def _inside(self, node: Node, states: States) -> Iterator[tuple[float, Steps, int]]:
        o = node.ops[0] if node.kind == "op" else -1
        if o not in self.insides:
            return
        outer = self.problem.graph.ops[o].trips
        for kind, names, nbytes, trips, dtype, factors in self.insides[o].sent:
            axes = tuple(a for a, name in enumerate(self.names) if name in names)
            wide = 2 if self.back_end.wire_widened and dtype in NARROW_FLOATS else 1
            step = RouteStep(kind, axes, wide * nbytes / parts(node, states, self.sizes, factors))
            yield self.comm.time(kind, axes, step.nbytes), (step,), outer * trips

    def lost(self, n: int, states: States) -> list[tuple[int, int, Layout, Layout]]:
        """Operands of ops inside cone n with dimensions that the op cannot keep: (value, op, from, to), once each."""
        classes = self.problem.classes
        gone: dict[tuple[int, int], set[int]] = {}
        for c, v, op in self.problem.losses.get(n, ()):
            if c + 1 in states:
                gone.setdefault((v, op), set()).add(c + 1)
        found = []
        for (v, op), states_gone in gone.items():
            source = tuple([classes[v].index(s - 1) if s > 0 and s - 1 in classes[v] else -1 for s in states])
            target = tuple([-1 if s in states_gone else d for s, d in zip(states, source, strict=True)])
            found.append((v, op, source, target))
        return found

    def transfer(
        self, transfer: LayoutTransfer, source: Layout, target: Layout, orders: Orders = FREE
    ) -> tuple[float, Steps]:
        """Seconds (all trips) and collectives of one conversion of a transfer."""
        combined = self.combined(transfer)
        seconds, steps = self.convert(transfer.value, source, target, self.form(transfer), orders, combined)
        late_s = late_seconds(self, transfer, source, target, steps)
        return (seconds - late_s / max(1, transfer.late)) * transfer.trips + late_s, steps

    def combined(self, transfer: LayoutTransfer) -> Combined:
        """What a transfer's collectives may be combined with."""
        return self.combines.get(transfer.index, ALONE)

    def sent(self, v: int) -> int:
        """Bytes of a value on the wire. `XLA: wire-widened`."""
        value = self.problem.graph.values[v]
        return value.nbytes * (2 if self.back_end.wire_widened and value.dtype in NARROW_FLOATS else 1)

    def once(self, transfer: LayoutTransfer, source: Layout, target: Layout) -> bool:
        """Whether equal conversions by several ends of a transfer are made once. `XLA: sums-merge`."""
        if transfer.kind != "define":
            return True
        route = self.route(transfer.value, source, target, self.form(transfer))
        return self.back_end.sums_merge and not any(s.kind in ("all-to-all", "collective-permute") for s in route.steps)

    def scratch(self, life: Lifetimes) -> tuple[Scratch, ...]:
        """Memory that XLA takes besides the program's values; the same for all plans."""
        if not self.extra:
            self.extra.append(
                (*scratch(self.problem, life, self._dots(), self.back_end), *held(self.problem, self.insides))
            )
        return self.extra[0]

    def wide(self, life: Lifetimes) -> frozenset[int]:
        """Values of which a dot that reads a converted copy makes a float32 one besides."""
        if not self.wider:
            self.wider.append(
                copied_wide(self.problem, life, self._dots()) if self.back_end.dots_widened else frozenset()
            )
        return self.wider[0]

    def _dots(self) -> list[int]:
        return [o for o in self.heavy if self.problem.graph.ops[o].name in CONTRACTIONS]

    def _masks(self, k: int) -> dict[frozenset[int], float]:
        """Work of a cone by the set of classes that divide it."""
        found = self.masks.get(k)
        if found is not None:
            return found
        problem = self.problem
        n = self.quotient.nodes[k]
        work: dict[frozenset[int], float] = defaultdict(float)
        for o in problem.nodes[n].ops:
            work[self.dividing(n, o)] += self.seconds[o]
            if self.launches[o]:
                work[_WHOLE] += self.launches[o]
        self.masks[k] = work
        return work

    def dividing(self, n: int, o: int) -> frozenset[int]:
        """The classes of cone n that divide its op o: those of what it makes, and of what it reads first."""
        problem, op = self.problem, self.problem.graph.ops[o]
        values = [v for v in (*op.results, *op.operands[:1]) if problem.node_of[v] == n]
        return frozenset(c for v in values for c in problem.classes[v])

    @property
    def least_s(self) -> float:
        """Seconds that no plan on the mesh is faster than."""
        return perfect_s(self.seconds, self.launches, prod(self.sizes))

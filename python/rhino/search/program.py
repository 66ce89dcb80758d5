"""Some mesh axes placed optimally while the others stay: the integer program of 2-search section 2 on the tied problem.

Owns the linearisation: one-hot states per class, pair variables where two classes meet, one variable per conversion
that several consumers share, one for what computing cannot hide. Its optimum is exact for those axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import inf, prod

from rhino.cost.roofline import MATMULS
from rhino.errors import RhinoError
from rhino.search.costs import Costs, States
from rhino.search.layout import Layout
from rhino.search.milp import Milp
from rhino.search.overlap import WON
from rhino.search.pinning import Open, allows
from rhino.search.problem import End, Transfer

# What a state's index costs, as a share of the largest decision: above the solver's tolerance, below what matters.
_TIE_BREAK = 1e-8
# What keeping every argument whole on each device costs, as a share of computing divided perfectly: plans closer than
# that are as fast, and of those the one that stores the least is taken.
_STORED_WHOLE = 1e-5
# The same as a share of gathering all arguments once, where computing is next to nothing.
_STORED_GATHERED = 1e-7
# A conversion (from, to), and a place it may happen: class and group of states at its source and at its target.
Key = tuple[Layout, Layout]
Term = tuple[int, int, int, int]
# States of a class that look alike to another class: interchangeable where the two meet.
Group = list[States]


@dataclass(frozen=True, slots=True)
class Placement:
    """States of every class, the objective in seconds and its proved lower bound (other axes as they are).

    No states, and an infinite objective, where the bound alone says that there is nothing to be had.
    """

    states: tuple[States, ...]
    objective: float
    bound: float


def feasible(costs: Costs, k: int, axes: Sequence[int], fixed: States) -> list[States]:
    """States of class k when `axes` may change: sizes divide, together with the other axes on the same dimension.

    A factor that is `entire` is split only where all axes split something.
    """
    node = costs.problem.nodes[costs.quotient.nodes[k]]
    sizes = costs.sizes
    choices = [
        costs.open_states(k, a) if n > 1 and (a in axes or costs.is_taken(k, a)) else (0,) if a in axes else (fixed[a],)
        for a, n in enumerate(sizes)
    ]

    def divides(states: States) -> bool:
        parts: dict[int, tuple[int, ...]] = {}
        for s, n in zip(states, sizes, strict=True):
            if s > 0 and n > 1:
                parts[s] = (*parts.get(s, ()), n)
        return all(node.takes(s, axes) for s, axes in parts.items())

    rule = costs.problem.graph.ops[node.ops[0]].rule if node.kind == "op" else None
    entire = {s for s, f in enumerate(node.factors, 1) if rule is not None and f in rule.entire}

    def complete(states: States) -> bool:
        return entire.isdisjoint(states) or all(s > 0 for n, s in zip(sizes, states, strict=True) if n > 1)

    return [states for states in product(*choices) if divides(states) and complete(states)]


class Program:
    """The program for `axes`, given the states of all classes on all axes."""

    def __init__(
        self,
        costs: Costs,
        axes: Sequence[int],
        states: Sequence[States],
        pinned: Mapping[int, Open],
        parallel: bool,
        banned: Mapping[int, frozenset[States]] | None = None,
    ) -> None:
        self.costs = costs
        self.banned = banned or {}
        self.given = tuple(states)
        self.milp = Milp()
        self.x: list[dict[States, int]] = []
        self.computing: dict[int, float] = {}
        self.hidden: dict[int, float] = {}
        self.groups: dict[tuple[int, int], tuple[list[Group], list[Group]]] = {}
        self.pairs: dict[tuple[int, int], dict[tuple[int, int], list[float]]] = {}
        self.priced: dict[tuple[int, int], set[tuple[int, int]]] = {}
        self.pair_vars: dict[tuple[int, int], dict[tuple[int, int], list[int]]] = {}
        self.copies: dict[int, list[tuple[Key, list[list[Term]]]]] = {}
        self.shared: list[tuple[float, bool, tuple[int, Key], list[list[Term]]]] = []
        self.shared_vars: dict[tuple[int, Key], int] = {}
        graph = costs.problem.graph
        parts = [
            {s: costs.node_parts(k, s) for s in self._allowed(k, axes, states[k], pinned, parallel)}
            for k in range(len(costs.quotient.counts))
        ]
        tie_s = _TIE_BREAK * max((sum(seconds) for found in parts for seconds in found.values()), default=0.0)
        everywhere = tuple(range(len(costs.sizes)))
        gathered_s = costs.comm.time(
            "all-gather", everywhere, sum(graph.values[a.value].nbytes for a in graph.arguments)
        )
        self.stored_s = max(_STORED_WHOLE * sum(costs.seconds) / prod(costs.sizes), _STORED_GATHERED * gathered_s)
        for k, (count, found) in enumerate(zip(costs.quotient.counts, parts, strict=True)):
            xs: dict[States, int] = {}
            for s, (compute_s, lost_s) in found.items():
                # Equal costs are common (which dim of a gathered parameter?): the major one, and the same every time.
                tied_s = tie_s * sum(s) + self.stored_s * costs.stored(k, s)
                x = xs[s] = self.milp.variable(count * (compute_s + lost_s + tied_s), True)
                self.computing[x] = count * compute_s
            self.x.append(xs)
            self.milp.row(1, 1, [(v, 1.0) for v in xs.values()])
        self._group()

    @property
    def size(self) -> int:
        """Pairs of states that meet: about the number of variables."""
        return sum(len(ours) * len(theirs) for ours, theirs in self.groups.values())

    def build(self) -> None:
        """Adds the transfers and what computing hides of them. Once, before `limit` and `solve`."""
        for transfer, count in self.costs.quotient.transfers:
            self._transfer(transfer, count)
        self._emit()
        self._overlap()

    def _allowed(
        self, k: int, axes: Sequence[int], fixed: States, pinned: Mapping[int, Open], parallel: bool
    ) -> list[States]:
        allowed = feasible(self.costs, k, axes, fixed)
        if k in pinned:
            allowed = [s for s in allowed if allows(pinned[k], s, axes)]
            if not allowed:
                raise RhinoError("a given sharding does not divide its dimension", "drop it or choose another mesh")
        # Published conventions forbid dots that are replicated where sizes divide; an option for comparing with them.
        elif parallel and self._is_dot(k):
            limits, sizes = self.costs.problem.nodes[self.costs.quotient.nodes[k]].limits, self.costs.sizes
            split = [sum(s[a] > 0 and limits[s[a] - 1] % sizes[a] == 0 for a in axes) for s in allowed]
            allowed = [s for s, count in zip(allowed, split, strict=True) if count == max(split)]
        banned = self.banned.get(k, frozenset())
        return [s for s in allowed if s not in banned] or allowed

    def _is_dot(self, k: int) -> bool:
        node = self.costs.problem.nodes[self.costs.quotient.nodes[k]]
        return node.kind == "op" and self.costs.problem.graph.ops[node.ops[0]].name in MATMULS

    def _group(self) -> None:
        """For two classes that meet, their states by what they look like to each other."""
        views: dict[tuple[int, int], dict[tuple[End, End], None]] = {}
        for transfer, _ in self.costs.quotient.transfers:
            for source, target in product(transfer.sources, transfer.targets):
                if target.node >= 0 and target.node != source.node:
                    views.setdefault((source.node, target.node), {})[source, target] = None
        # Most of what meets a class sees the same of it.
        known: dict[tuple[int, tuple[Layout, ...]], list[Group]] = {}
        for (u, w), ends in views.items():
            sources, targets = (tuple(dict.fromkeys(end.view for end in side)) for side in zip(*ends, strict=True))
            for k, seen in ((u, sources), (w, targets)):
                if (k, seen) not in known:
                    known[k, seen] = self._alike(k, seen)
            self.groups[u, w] = known[u, sources], known[w, targets]

    def _alike(self, k: int, views: tuple[Layout, ...]) -> list[Group]:
        # Per state of one axis, what all ends see of it.
        seen = list(zip(*views, strict=True))
        found: dict[tuple[Layout, ...], Group] = {}
        for s in self.x[k]:
            found.setdefault(tuple([seen[state] for state in s]), []).append(s)
        return list(found.values())

    def _meeting(self, u: int, w: int) -> tuple[list[Group], list[Group]]:
        if w < 0 or u == w:
            return [[s] for s in self.x[u]], [[s] for s in self.x[u]]
        return self.groups[u, w]

    def _transfer(self, transfer: Transfer, count: int) -> None:
        costs = self.costs
        replicated = (-1,) * len(costs.sizes)
        hideable = transfer.index in costs.hideable
        once: dict[Key, list[list[Term]]] = {}
        # Per conversion what it costs in all members of the class, and whether ends that agree on it share it.
        price: dict[Key, tuple[float, bool]] = {}
        several = len(transfer.sources) * len(transfer.targets) > 1
        for source in transfer.sources:
            for target in transfer.targets:
                u, w = source.node, target.node
                entries: dict[Key, list[Term]] = {}
                ours, theirs = self._meeting(u, w)
                ends = [costs.layout(target, group[0]) if w >= 0 else replicated for group in theirs]
                for i, group in enumerate(ours):
                    start = costs.layout(source, group[0])
                    for j, end in enumerate(ends):
                        if start == end or (i != j and (w < 0 or u == w)):
                            continue
                        key = (start, end)
                        priced = price.get(key)
                        if priced is None:
                            seconds = count * costs.transfer(transfer, start, end)[0]
                            shared = transfer.kind == "use" or (several and costs.once(transfer, start, end))
                            priced = price[key] = (seconds, shared)
                        if priced[0] == 0.0:
                            continue
                        if priced[1]:
                            entries.setdefault(key, []).append((u, i, w, j))
                        else:
                            self._add((u, i, w, j), priced[0], hideable)
                for key, terms in entries.items():
                    members = once.setdefault(key, [])
                    if terms not in members:
                        members.append(terms)
        for key, members in once.items():
            if len(members) == 1:
                for term in members[0]:
                    self._add(term, price[key][0], hideable)
            else:
                self.shared.append((price[key][0], hideable, (transfer.index, key), members))
            if transfer.kind == "use":
                self.copies.setdefault(transfer.index, []).append((key, members))

    def _add(self, term: Term, seconds: float, hideable: bool) -> None:
        u, i, w, j = term
        if w < 0 or u == w:
            self._charge(self._term(*term), seconds, hideable)
            return
        table = self.pairs.setdefault((u, w), {})
        table.setdefault((i, j), [0.0, 0.0])[hideable] += seconds

    def _charge(self, variables: Sequence[int], seconds: float, hideable: bool) -> None:
        for v in variables:
            if hideable:
                self.hidden[v] = self.hidden.get(v, 0.0) + seconds
            else:
                self.milp.costs[v] += seconds

    def _emit(self) -> None:
        for pair, table in self.pairs.items():
            self.priced.setdefault(pair, set()).update(table)
        for _, _, _, members in self.shared:
            for u, i, w, j in chain.from_iterable(members):
                self.priced.setdefault((u, w), set()).add((i, j))
        for u, w in self.pairs:
            self._pair(u, w)
        for seconds, hideable, key, members in self.shared:
            y = self.shared_vars[key] = self.milp.variable(0.0)
            self._charge((y,), seconds, hideable)
            for terms in members:
                self.milp.row(0, inf, [(y, 1.0), *[(v, -1.0) for term in terms for v in self._term(*term)]])

    def _term(self, u: int, i: int, w: int, j: int) -> list[int]:
        """Variables whose sum is 1 where both classes are in the given groups of states."""
        if w < 0 or u == w:
            return [list(self.x[u].values())[i]]
        return self._pair(u, w)[i, j]

    def _pair(self, u: int, w: int) -> dict[tuple[int, int], list[int]]:
        found = self.pair_vars.get((u, w))
        if found is not None:
            return found
        ours, theirs = self.groups[u, w]
        xs = [[self.x[u][s] for s in group] for group in ours]
        ys = [[self.x[w][s] for s in group] for group in theirs]
        if len(xs) == 1:
            table = {(0, j): y for j, y in enumerate(ys)}
        elif len(ys) == 1:
            table = {(i, 0): x for i, x in enumerate(xs)}
        else:
            table = self._transport(xs, ys, self.priced[u, w])
        self.pair_vars[u, w] = table
        for key, seconds in self.pairs.get((u, w), {}).items():
            for hideable in (False, True):
                if seconds[hideable]:
                    self._charge(table[key], seconds[hideable], hideable)
        return table

    def _transport(
        self, xs: list[list[int]], ys: list[list[int]], priced: set[tuple[int, int]]
    ) -> dict[tuple[int, int], list[int]]:
        """Variables of the pairs of groups that are priced, with the rows of a transport from `xs` to `ys`.

        Of the pairs that cost nothing, those of one row that is free throughout, and one of each other row, are what
        the sums leave: half of all variables need not be there.
        """
        milp = self.milp
        across = range(len(ys))
        free = next((i for i in range(len(xs)) if all((i, j) not in priced for j in across)), -1)
        table: dict[tuple[int, int], list[int]] = {}
        # Per group on the right, what arrives there beside what is left over.
        arrived: list[list[tuple[int, float]]] = [[(v, -1.0) for v in y] for y in ys]
        for i, x in enumerate(xs):
            if i == free:
                continue
            rest = next((j for j in across if (i, j) not in priced), -1)
            sent: list[tuple[int, float]] = []
            for j in across:
                if j != rest:
                    variable = milp.variable(0.0)
                    table[i, j] = [variable]
                    sent.append((variable, 1.0))
                    arrived[j].append((variable, 1.0))
            held = [(v, -1.0) for v in x]
            milp.row(0 if rest < 0 else -inf, 0, [*held, *sent])
            if rest >= 0:
                arrived[rest].extend((v, -c) for v, c in (*held, *sent))
        for terms in arrived:
            milp.row(0 if free < 0 else -inf, 0, terms)
        return table

    def _overlap(self) -> None:
        """Hidden collectives cost the share that overlap never wins, and all that exceeds the window of computing."""
        hidden, window = self.hidden, self.costs.window
        if not hidden:
            return
        if window == 0.0:
            for v, seconds in hidden.items():
                self.milp.costs[v] += seconds
            return
        terms = dict(hidden)
        for v, seconds in hidden.items():
            self.milp.costs[v] += (1 - WON) * seconds
        for v, seconds in self.computing.items():
            terms[v] = terms.get(v, 0.0) - window * seconds
        self.milp.penalty = (WON, terms)

    def conversions(self, transfer: int) -> list[tuple[Layout, list[int]]]:
        """The converted copies a transfer can lead to: their layout, and the variables whose sum is 1 if one exists."""
        found = []
        for end, members in self.copies.get(transfer, ()):
            shared = self.shared_vars.get((transfer, end))
            variables = [shared] if shared is not None else [v for term in members[0] for v in self._term(*term)]
            found.append((end[1], variables))
        return found

    def limit(self, terms: Sequence[tuple[int, float]], room: float) -> None:
        """Add the row `terms <= room`."""
        self.milp.row(-inf, room, [(v, c) for v, c in terms if c])

    def solve(
        self, time_limit_s: float, gap: float = 1e-6, prove: bool = True, cutoff: float = inf
    ) -> Placement | None:
        """The best states, if proved at most the share `gap` above the optimum; None if no memory row can be met.

        A program whose bound is above `cutoff` seconds is given up.
        """
        start = {x: float(s == given) for xs, given in zip(self.x, self.given, strict=True) for s, x in xs.items()}
        found = self.milp.solve(time_limit_s, gap, start, prove, cutoff)
        if found.status == "hopeless":
            return Placement((), inf, found.bound)
        if found.status == "infeasible":
            return None
        # The first of the largest: rounding is the same every time.
        chosen = tuple(max(x, key=lambda s, x=x: found.values[x[s]]) for x in self.x)  # type: ignore[misc]
        stored_s = sum(
            self.stored_s * count * self.costs.stored(k, s)
            for k, (count, s) in enumerate(zip(self.costs.quotient.counts, chosen, strict=True))
        )
        return Placement(chosen, found.objective - stored_s, found.bound - self.stored_s)

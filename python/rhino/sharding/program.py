"""Some mesh axes placed optimally while the others stay: the integer program of the tied problem.

Its variables, objective and rows are those of docs/design/search.md, "The problem in symbols". Owns the linearisation:
one-hot states per class, pair variables where two classes meet, one variable per conversion that several consumers
share, one for what computing cannot hide. Its optimum is exact for those axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf, prod

from rhino.errors import RhinoError
from rhino.sharding.costs import Costs, States
from rhino.sharding.layout import Layout
from rhino.sharding.meeting import Groups, Pair, Price, Prices, alike, prices, transport, written
from rhino.sharding.milp import Milp, MilpSolution
from rhino.sharding.overlap import WON
from rhino.sharding.pinning import Open, allows
from rhino.sharding.problem import PARTIAL, End, LayoutTransfer, takes

# What a state's index costs, as a share of the largest decision: above the solver's tolerance, below what matters.
_TIE_BREAK = 1e-8
# What keeping every argument whole on each device costs, as a share of computing divided perfectly: plans closer than
# that are as fast, and of those the one that stores the least is taken.
_STORED_WHOLE = 1e-5
# The same as a share of gathering all arguments once, where computing is next to nothing.
_STORED_GATHERED = 1e-7
# A conversion (from, to), and where it may happen: the classes at its source and its target, and pairs of groups there.
Key = tuple[Layout, Layout]
Place = tuple[int, int, tuple[Pair, ...]]
# By what programs are (`Milp.digest`), their solutions, without values, and the variable that each class has at one.
Solved = dict[bytes, tuple[MilpSolution, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class AxisStates:
    """States of every class, the objective in seconds and its proved lower bound (other axes as they are).

    No states, and an infinite objective, where the bound alone says that there is nothing to be had.
    """

    states: tuple[States, ...]
    objective: float
    bound: float


def feasible(costs: Costs, k: int, axes: Sequence[int], fixed: States) -> tuple[States, ...]:
    """States of class k when `axes` may change: sizes divide, together with the other axes on the same dimension.

    A factor that is `entire` is split only where all axes split something.
    """
    node = costs.problem.nodes[costs.quotient.nodes[k]]
    sizes = costs.sizes
    choices = tuple(
        [
            tuple(costs.open_states(k, a)) if n > 1 and (a in axes or costs.is_taken(k, a))
            else (0,) if a in axes else (fixed[a],)
            for a, n in enumerate(sizes)
        ]
    )  # fmt: skip
    rule = costs.problem.graph.ops[node.ops[0]].rule if node.kind == "op" else None
    entire = frozenset(s for s, f in enumerate(node.factors, 1) if rule is not None and f in rule.entire)
    return _combinations(choices, sizes, node.limits, node.uneven, entire)


@lru_cache(maxsize=65536)
def _combinations(
    choices: tuple[tuple[int, ...], ...],
    sizes: tuple[int, ...],
    limits: tuple[int, ...],
    uneven: tuple[bool, ...],
    entire: frozenset[int],
) -> tuple[States, ...]:
    def divides(states: States) -> bool:
        parts: dict[int, tuple[int, ...]] = {}
        for s, n in zip(states, sizes, strict=True):
            if s > 0 and n > 1:
                parts[s] = (*parts.get(s, ()), n)
        return all(takes(limits, uneven, s, axes) for s, axes in parts.items())

    def complete(states: States) -> bool:
        return entire.isdisjoint(states) or all(s > 0 for n, s in zip(sizes, states, strict=True) if n > 1)

    return tuple(states for states in product(*choices) if divides(states) and complete(states))


class AxisProgram:
    """The program for `axes`, given the states of all classes on all axes."""

    def __init__(
        self,
        costs: Costs,
        axes: Sequence[int],
        states: Sequence[States],
        pinned: Mapping[int, Open],
        banned: Mapping[int, frozenset[States]] | None = None,
    ) -> None:
        self.costs = costs
        self.banned = banned or {}
        self.given = tuple(states)
        self.milp = Milp()
        self.stored_s = 0.0
        self.computing: dict[int, float] = {}
        self.hidden: dict[int, float] = {}
        self.groups: dict[tuple[int, int], tuple[Groups, Groups]] = {}
        # Per two classes that meet, prices, how many members pay them, and whether computing can hide that.
        self.charges: dict[tuple[int, int], list[tuple[Prices, int, bool]]] = {}
        self.pairs: dict[tuple[int, int], tuple[list[int], Mapping[Pair, tuple[int, ...]]]] = {}
        self.shared: list[tuple[float, bool, tuple[int, Key], list[Place]]] = []
        self.shared_vars: dict[tuple[int, Key], int] = {}
        # What a class may be costs nothing to say; `build` prices it, where the program is not too large to be solved.
        self.open = [tuple(self._allowed(k, axes, s, pinned)) for k, s in enumerate(states)]
        numbers = iter(range(sum(map(len, self.open))))
        self.x = [{s: next(numbers) for s in found} for found in self.open]
        for (u, w), (sources, targets) in costs.quotient.meetings.items():
            self.groups[u, w] = alike(self.open[u], sources), alike(self.open[w], targets)
        # Pairs of states that meet: about the number of variables.
        self.size = sum(len(ours.sizes) * len(theirs.sizes) for ours, theirs in self.groups.values())

    def build(self) -> None:
        """Adds decisions, transfers and what computing hides of them. Once, before `limit` and `solve`."""
        self._decide()
        for transfer, count in self.costs.quotient.transfers:
            self._transfer(transfer, count)
        self._emit()
        self._overlap()

    def _decide(self) -> None:
        """One variable per class and state, priced; of each class one is chosen."""
        costs, graph = self.costs, self.costs.problem.graph
        parts = [[costs.node_parts(k, s) for s in found] for k, found in enumerate(self.open)]
        tie_s = _TIE_BREAK * max((sum(seconds) for found in parts for seconds in found), default=0.0)
        everywhere = tuple(range(len(costs.sizes)))
        gathered_s = costs.comm.time(
            "all-gather", everywhere, sum(graph.values[a.value].nbytes for a in graph.arguments)
        )
        self.stored_s = max(_STORED_WHOLE * sum(costs.seconds) / prod(costs.sizes), _STORED_GATHERED * gathered_s)
        for k, (members, found) in enumerate(zip(costs.quotient.counts, parts, strict=True)):
            for (s, x), (compute_s, lost_s) in zip(self.x[k].items(), found, strict=True):
                # Equal costs are common (which dim of a gathered parameter?): the major one, and the same every time.
                tied_s = tie_s * sum(s) + self.stored_s * costs.arguments.share(k, s)
                self.milp.variable(members * (compute_s + lost_s + tied_s), True)
                self.computing[x] = members * compute_s
            self.milp.row(1, 1, [(x, 1.0) for x in self.x[k].values()])

    def _allowed(self, k: int, axes: Sequence[int], fixed: States, pinned: Mapping[int, Open]) -> Sequence[States]:
        allowed: Sequence[States] = feasible(self.costs, k, axes, fixed)
        if k in pinned:
            allowed = [s for s in allowed if allows(pinned[k], s, axes)]
            if not allowed:
                raise RhinoError("a given sharding does not divide its dimension", "drop it or choose another mesh")
        banned = self.banned.get(k)
        return [s for s in allowed if s not in banned] or allowed if banned else allowed

    def _transfer(self, transfer: LayoutTransfer, count: int) -> None:
        hideable = transfer.index in self.costs.hideable
        if self.costs.apart and transfer.kind == "define":
            for source in transfer.sources:
                (target,) = transfer.targets
                paid_there = written(self.costs, transfer, source, target, *self._met(source, target))
                self._charge(source.node, target.node, paid_there, count, False)
        if len(transfer.sources) == len(transfer.targets) == 1:
            (source,), (target,) = transfer.sources, transfer.targets
            self._charge(source.node, target.node, self._prices(transfer, source, target), count, hideable)
            return
        for source, target in product(transfer.sources, transfer.targets):
            alone = [price for price in self._prices(transfer, source, target).entries if not price[4]]
            self._charge(source.node, target.node, Prices.of(alone), count, hideable)
        for key, members in self._shared(transfer).items():
            (u, w, _), entries = next(iter(members.items()))
            if len(members) == 1:
                self._charge(u, w, Prices.of(entries), count, hideable)
            else:
                self.shared.append((count * entries[0][3], hideable, (transfer.index, key), list(members)))

    def _prices(self, transfer: LayoutTransfer, source: End, target: End) -> Prices:
        return prices(self.costs, transfer, source, target, *self._met(source, target))

    def _met(self, source: End, target: End) -> tuple[tuple[States, ...], tuple[States, ...]]:
        """A state of each group at the two ends of a transfer; all of the source's where there is no other class."""
        u, w = source.node, target.node
        if w < 0 or u == w:
            return self.open[u], self.open[u]
        ours, theirs = self.groups[u, w]
        return ours.states, theirs.states

    def _shared(self, transfer: LayoutTransfer) -> dict[Key, dict[Place, list[Price]]]:
        """The conversions that are paid once for all ends of a transfer, and where each may happen."""
        found: dict[Key, dict[Place, list[Price]]] = {}
        for source, target in product(transfer.sources, transfer.targets):
            at: dict[Key, list[Price]] = {}
            for price in self._prices(transfer, source, target).entries:
                if price[4]:
                    at.setdefault(price[2], []).append(price)
            for key, entries in at.items():
                place = source.node, target.node, tuple([entry[:2] for entry in entries])
                found.setdefault(key, {}).setdefault(place, entries)
        return found

    def _charge(self, u: int, w: int, found: Prices, count: int, hideable: bool) -> None:
        if w < 0 or u == w:
            first = self.x[u][self.open[u][0]]
            for i, _, _, seconds, _ in found.entries:
                self._pay(first + i, count * seconds, hideable)
        elif found.entries:
            self.charges.setdefault((u, w), []).append((found, count, hideable))

    def _pay(self, variable: int, seconds: float, hideable: bool) -> None:
        if hideable:
            self.hidden[variable] = self.hidden.get(variable, 0.0) + seconds
        else:
            self.milp.costs[variable] += seconds

    def _emit(self) -> None:
        shared: dict[tuple[int, int], list[frozenset[Pair]]] = {}
        for _, _, _, members in self.shared:
            for u, w, pairs in members:
                if 0 <= w != u:
                    shared.setdefault((u, w), []).append(frozenset(pairs))
        for u, w in dict.fromkeys((*self.charges, *shared)):
            charged = [found.pairs for found, _, _ in self.charges.get((u, w), [])]
            self._meet(u, w, frozenset().union(*charged, *shared.get((u, w), [])))
        for seconds, hideable, key, members in self.shared:
            y = self.shared_vars[key] = self.milp.variable(0.0)
            self._pay(y, seconds, hideable)
            for place in members:
                self.milp.row(0, inf, [(y, 1.0), *[(v, -1.0) for v in self._variables(place)]])

    def _variables(self, place: Place) -> Iterator[int]:
        """Variables whose sum is 1 where the classes are in one of the pairs of groups of states."""
        u, w, pairs = place
        if w < 0 or u == w:
            yield from (self.x[u][self.open[u][i]] for i, _ in pairs)
            return
        columns, at = self.pairs[u, w]
        yield from (columns[c] for pair in pairs for c in at[pair])

    def _meet(self, u: int, w: int, priced: frozenset[Pair]) -> None:
        """Adds what joins the choices of two classes, of which some pairs of groups are priced."""
        ours, theirs = self.groups[u, w]
        shape = transport(ours.sizes, theirs.sizes, priced)
        # The variables of a class follow one another.
        first, second = self.x[u][self.open[u][0]], self.x[w][self.open[w][0]]
        columns = [first + p for p in ours.positions]
        columns.extend([second + p for p in theirs.positions])
        columns.extend(self.milp.variables(shape.new))
        self.milp.rows.extend(shape.rows, columns)
        self.pairs[u, w] = columns, shape.at
        for found, count, hideable in self.charges.get((u, w), ()):
            for i, j, _, seconds, _ in found.entries:
                for c in shape.at[i, j]:
                    self._pay(columns[c], count * seconds, hideable)

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
        for key, members in self._shared(self.costs.quotient.standing[transfer]).items():
            shared = self.shared_vars.get((transfer, key))
            found.append((key[1], [shared] if shared is not None else list(self._variables(next(iter(members))))))
        return found

    def apart(self, transfer: int, k: int, view: Layout) -> Iterator[tuple[Layout, int]]:
        """The layouts in which class k could leave a result that is kept in another, and variables that are 1 there."""
        target = self.costs.quotient.standing[transfer].targets[0]
        left: dict[Layout, list[int]] = {}
        for s, x in self.x[k].items():
            left.setdefault(tuple([view[state] for state in s]), []).append(x)
        for layout, variables in left.items():
            if PARTIAL not in layout:
                y = self.milp.variable(0.0)
                kept = [x for s, x in self.x[target.node].items() if self.costs.layout(target, s) == layout]
                self.milp.row(0, inf, [(y, 1.0), *[(x, -1.0) for x in variables], *[(x, 1.0) for x in kept]])
                yield layout, y

    def limit(self, terms: Sequence[tuple[int, float]], room: float) -> None:
        """Add the row `terms <= room`."""
        self.milp.row(-inf, room, [(v, c) for v, c in terms if c])

    def solve(
        self,
        time_limit_s: float,
        gap: float = 1e-6,
        prove: bool = True,
        cutoff: float = inf,
        solved: Solved | None = None,
    ) -> AxisStates | None:
        """The best states, if proved at most the share `gap` above the optimum; None if no memory row can be met.

        A program whose bound is above `cutoff` seconds is given up.

        Args:
          solved: answers to programs that were solved before; this one's is added. Where two axes of a mesh have the
            same links, the first programs of the mesh with them swapped are equal to its own, number by number.
        """
        start = {x: float(s == given) for xs, given in zip(self.x, self.given, strict=True) for s, x in xs.items()}
        solved = {} if solved is None else solved
        key = self.milp.digest(gap, start, prove, cutoff + self.stored_s)
        if key not in solved:
            found = self.milp.solve(time_limit_s, gap, start, prove, cutoff + self.stored_s)
            # The first of the largest: rounding is the same every time.
            best = [max(x.values(), key=found.values.__getitem__) for x in self.x] if found.values else []
            solved[key] = replace(found, values=()), tuple(best)
        found, variables = solved[key]
        if found.status == "hopeless":
            return AxisStates((), inf, found.bound - self.stored_s)
        if found.status == "infeasible":
            return None
        # The variables of a class follow one another, in the order of its states.
        chosen = tuple(states[v - x[states[0]]] for states, x, v in zip(self.open, self.x, variables, strict=True))
        stored_s = sum(
            self.stored_s * count * self.costs.arguments.share(k, s)
            for k, (count, s) in enumerate(zip(self.costs.quotient.counts, chosen, strict=True))
        )
        return AxisStates(chosen, found.objective - stored_s, found.bound - self.stored_s)

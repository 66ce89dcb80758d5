"""Some mesh axes placed optimally while the others stay: the integer program of the tied problem.

Its variables, objective and rows are those of docs/design/search.md, "The problem in symbols". Owns the linearisation:
one-hot states per class, pair variables where two classes meet, one variable per conversion that several consumers
share, one for what computing cannot hide. Its optimum is exact for those axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, prod

import numpy as np

from rhino.sharding.costs import Costs, States
from rhino.sharding.layout import Layout
from rhino.sharding.meeting import Groups, Pair, Price, Prices, transport, written
from rhino.sharding.milp import FAR, Bases, Milp, MilpSolution
from rhino.sharding.pinning import Open
from rhino.sharding.problem import PARTIAL, REPLICATED, End, LayoutTransfer
from rhino.sharding.recurring import Recurring, RecurringMeeting

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
        self.costs, self.pinned = costs, pinned
        self.given = tuple(states)
        self.milp = Milp()
        self.stored_s = 0.0
        # Per window (`rhino.sharding.hiding`) and variable, seconds of computing, and of what it can hide.
        self.computing: list[dict[int, float]] = [{} for _ in costs.hiding.windows]
        self.hidden: list[dict[int, float]] = [{} for _ in costs.hiding.windows]
        self.groups: dict[tuple[int, int], tuple[Groups, Groups]] = {}
        # Per two classes that meet, prices, how many members pay them, and the window in which computing can hide that.
        self.charges: dict[tuple[int, int], list[tuple[Prices, int, int | None]]] = {}
        self.pairs: dict[tuple[int, int], tuple[list[int], Mapping[Pair, tuple[int, ...]]]] = {}
        self.shared: list[tuple[int, Price, int | None, tuple[int, Key], list[tuple[Place, Prices]]]] = []
        self.shared_vars: dict[tuple[int, Key], int] = {}
        self._x: list[dict[States, int]] = []
        recurring = self.recurring = Recurring.of(costs)
        # What a class may be costs nothing to say; `build` prices it, where the program is not too large to be solved.
        placed, banned = tuple(axes), banned or {}
        self.open = [recurring.open(costs, k, placed, s, pinned, banned) for k, s in enumerate(states)]
        # The variables of a class follow one another, in the order of its states.
        ends = list(accumulate(map(len, self.open), initial=0))
        self.first, self.decided = ends[:-1], ends[-1]
        for u, w, sources, targets in recurring.meetings:
            self.groups[u, w] = recurring.groups(self.open[u], sources), recurring.groups(self.open[w], targets)
        # Pairs of states that meet: about the number of variables.
        self.size = sum(len(ours.sizes) * len(theirs.sizes) for ours, theirs in self.groups.values())

    @property
    def x(self) -> list[dict[States, int]]:
        """Per class the variable of each state."""
        if not self._x:
            self._x = [
                dict(zip(states, range(first, first + len(states)), strict=True))
                for states, first in zip(self.open, self.first, strict=True)
            ]
        return self._x

    def build(self) -> None:
        """Adds decisions, transfers and what computing hides of them. Once, before `limit` and `solve`."""
        self._decide()
        for transfer, count in self.costs.quotient.transfers:
            self._transfer(transfer, count)
        self._emit()
        self._follow()
        self._overlap()

    def _decide(self) -> None:
        """One variable per class and state, priced; of each class one is chosen."""
        costs, graph = self.costs, self.costs.problem.graph
        parts = [self.recurring.parts(costs, k, found) for k, found in enumerate(self.open)]
        compute_s, lost_s, numbers, stored = (
            np.array([value for part in parts for value in getattr(part, name)])
            for name in ("compute_s", "lost_s", "numbers", "stored")
        )
        lengths = [len(found) for found in self.open]
        members = np.repeat(costs.quotient.counts, lengths)
        tie_s = _TIE_BREAK * float((compute_s + lost_s).max(initial=0.0))
        everywhere = tuple(range(len(costs.sizes)))
        gathered_s = costs.comm.time(
            "all-gather", everywhere, sum(graph.values[a.value].nbytes for a in graph.arguments)
        )
        self.stored_s = max(_STORED_WHOLE * sum(costs.seconds) / prod(costs.sizes), _STORED_GATHERED * gathered_s)
        # Equal costs are common (which dim of a gathered parameter?): the major one, and the same every time.
        tied_s = tie_s * numbers + self.stored_s * stored
        self.milp.costs.extend((members * (compute_s + lost_s + tied_s)).tolist())
        self.milp.integers.extend([True] * self.decided)
        shares = np.array([costs.hiding.shares_of(k) for k in range(len(lengths))])
        for window, found in enumerate(self.computing if lengths else ()):
            spent_s = members * compute_s * np.repeat(shares[:, window], lengths)
            found.update((int(v), float(spent_s[v])) for v in np.flatnonzero(spent_s))
        for variables in self._ranges():
            self.milp.rows.add_sum(1, 1, variables)

    def _transfer(self, transfer: LayoutTransfer, count: int) -> None:
        window = self.costs.hiding.window_of(transfer.index) if transfer.index in self.costs.hideable else None
        if self.costs.apart and transfer.kind == "define":
            for source in transfer.sources:
                (target,) = transfer.targets
                paid_there = written(self.costs, transfer, source, target, *self._met(source, target))
                self._charge(source.node, target.node, paid_there, count, None)
        if len(transfer.sources) == len(transfer.targets) == 1:
            (source,), (target,) = transfer.sources, transfer.targets
            ((_, found),) = self._prices(transfer)
            self._charge(source.node, target.node, found, count, window)
            return
        for crossing, found in self._prices(transfer):
            self._charge(crossing.source.node, crossing.target.node, found.alone or found, count, window)
        for key, members in self._shared(transfer).items():
            (u, w, _), found = next(iter(members.items()))
            if len(members) == 1:
                self._charge(u, w, found, count, window)
            else:
                self.shared.append((count, found.entries[0], window, (transfer.index, key), [*members.items()]))

    def _prices(self, transfer: LayoutTransfer) -> Iterator[tuple[RecurringMeeting, Prices]]:
        """What is paid between each source and each target of a transfer."""
        costs, recurring, groups = self.costs, self.recurring, self.groups
        for crossing in recurring.crossings[transfer.index]:
            u = crossing.source.node
            if crossing.alone:
                yield crossing, recurring.prices(costs, transfer, crossing, self.open[u], self.open[u])
            else:
                ours, theirs = groups[u, crossing.target.node]
                yield crossing, recurring.prices(costs, transfer, crossing, ours.states, theirs.states)

    def _met(self, source: End, target: End) -> tuple[tuple[States, ...], tuple[States, ...]]:
        """A state of each group at the two ends of a transfer; all of the source's where there is no other class."""
        u, w = source.node, target.node
        if w < 0 or u == w:
            return self.open[u], self.open[u]
        ours, theirs = self.groups[u, w]
        return ours.states, theirs.states

    def _shared(self, transfer: LayoutTransfer) -> dict[Key, dict[Place, Prices]]:
        """The conversions that are paid once for all ends of a transfer, and where each may happen."""
        found: dict[Key, dict[Place, Prices]] = {}
        for crossing, priced in self._prices(transfer):
            for key, pairs, entries in priced.shared:
                place = crossing.source.node, crossing.target.node, pairs
                found.setdefault(key, {}).setdefault(place, entries)
        return found

    def _charge(self, u: int, w: int, found: Prices, count: int, window: int | None) -> None:
        if w < 0 or u == w:
            first = self.first[u]
            for price in found.entries:
                self._pay(first + price.left, count, price, window)
        elif found.entries:
            self.charges.setdefault((u, w), []).append((found, count, window))

    def _pay(self, variable: int, count: int, price: Price, window: int | None) -> None:
        """Adds a price to a variable; what is sent may be hidden in a window."""
        waited_s = price.sent_s + price.waited_s
        if window is not None and price.sent_s:
            self.hidden[window][variable] = self.hidden[window].get(variable, 0.0) + count * price.sent_s
            waited_s = price.waited_s
        self.milp.costs[variable] += count * waited_s

    def _emit(self) -> None:
        shared: dict[tuple[int, int], list[frozenset[Pair]]] = {}
        for *_, members in self.shared:
            for (u, w, _), found in members:
                if 0 <= w != u:
                    shared.setdefault((u, w), []).append(found.pairs)
        for u, w in dict.fromkeys((*self.charges, *shared)):
            priced = [found.pairs for found, _, _ in self.charges.get((u, w), [])]
            priced.extend(shared.get((u, w), ()))
            # One set knows its hash already.
            self._meet(u, w, priced[0] if len(priced) == 1 else frozenset().union(*priced))
        for count, price, window, key, members in self.shared:
            y = self.shared_vars[key] = self.milp.variable(0.0)
            self._pay(y, count, price, window)
            for place, _ in members:
                self.milp.rows.add_sum(0, inf, (y,), self._variables(place))

    def _variables(self, place: Place) -> list[int]:
        """Variables whose sum is 1 where the classes are in one of the pairs of groups of states."""
        u, w, pairs = place
        if w < 0 or u == w:
            first = self.first[u]
            return [first + i for i, _ in pairs]
        columns, at = self.pairs[u, w]
        return [columns[c] for pair in pairs for c in at[pair]]

    def _meet(self, u: int, w: int, priced: frozenset[Pair]) -> None:
        """Adds what joins the choices of two classes, of which some pairs of groups are priced."""
        ours, theirs = self.groups[u, w]
        shape = transport(ours.sizes, theirs.sizes, priced)
        first, second = self.first[u], self.first[w]
        columns = [first + p for p in ours.positions]
        columns.extend([second + p for p in theirs.positions])
        columns.extend(self.milp.variables(shape.new))
        self.milp.rows.extend(shape.rows, columns)
        self.pairs[u, w] = columns, shape.at
        for found, count, window in self.charges.get((u, w), ()):
            for price in found.entries:
                for c in shape.at[price.left, price.right]:
                    self._pay(columns[c], count, price, window)

    def _follow(self) -> None:
        """An update is split at least as its parameter, unless either was given: less would only send more."""
        for transfer, _ in self.costs.quotient.transfers:
            if transfer.kind != "return":
                continue
            (source,), (target,) = transfer.sources, transfer.targets
            if source.node == target.node or not self.pinned.keys().isdisjoint((source.node, target.node)):
                continue
            made = [(self.costs.layout(source, s), x) for s, x in self.x[source.node].items()]
            kept: dict[Layout, list[int]] = {}
            for s, x in self.x[target.node].items():
                kept.setdefault(self.costs.layout(target, s), []).append(x)
            for layout, variables in kept.items():
                finer = [(x, 1.0) for m, x in made if all(d in (REPLICATED, e) for d, e in zip(layout, m, strict=True))]
                if len(finer) < len(made):
                    self.milp.row(0, inf, [*finer, *[(x, -1.0) for x in variables]])

    def _overlap(self) -> None:
        """Hidden collectives cost the share that overlap never wins, and all that exceeds the window of computing."""
        for hidden, computing, window in zip(self.hidden, self.computing, self.costs.hiding.windows, strict=True):
            won = window.won if window.share else 0.0
            for v, seconds in hidden.items():
                self.milp.costs[v] += (1 - won) * seconds
            if hidden and won:
                terms = {v: won * seconds for v, seconds in hidden.items()}
                for v, seconds in computing.items():
                    terms[v] = terms.get(v, 0.0) - won * window.share * seconds
                self.milp.penalties.append(terms)

    def _start(self) -> dict[int, float]:
        """The given states as values: of all decisions; in large programs of whatever else is not zero, too.

        Not where a given state is not open.
        """
        start = dict.fromkeys(range(self.decided), 0.0)
        at = [s.index(given) if given in s else -1 for s, given in zip(self.open, self.given, strict=True)]
        start.update((first + i, 1.0) for first, i in zip(self.first, at, strict=True) if i >= 0)
        if -1 in at or len(self.milp.costs) <= FAR:
            return start
        for (u, w), (columns, pairs) in self.pairs.items():
            ours, theirs = self.groups[u, w]
            met = pairs.get((ours.of[at[u]], theirs.of[at[w]]), ())
            start.update((columns[c], 1.0) for c in met if columns[c] >= self.decided)
        for *_, key, members in self.shared:
            if any(start.get(v) for place, _ in members for v in self._variables(place)):
                start[self.shared_vars[key]] = 1.0
        return start

    def _ranges(self) -> Iterator[range]:
        """The variables of each class."""
        return (range(first, first + len(states)) for states, first in zip(self.open, self.first, strict=True))

    def conversions(self, transfer: int) -> list[tuple[Layout, Layout, list[int]]]:
        """The converted copies a transfer can lead to: (from, to), and the variables whose sum is 1 if one exists."""
        found = []
        for key, members in self._shared(self.costs.quotient.standing[transfer]).items():
            shared = self.shared_vars.get((transfer, key))
            found.append((*key, [shared] if shared is not None else self._variables(next(iter(members)))))
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
        bases: dict[bytes, Bases] | None = None,
    ) -> AxisStates | None:
        """The best states found, most often at most the share `gap` above the optimum; None if no memory row is met.

        A program whose bound is above `cutoff` seconds is given up.

        Args:
          solved: answers to programs that were solved before; this one's is added. Where two axes of a mesh have the
            same links, the first programs of the mesh with them swapped are equal to its own, number by number.
          bases: by shape, where the relaxations of such programs ended, for those whose costs alone differ.
        """
        start = self._start()
        solved = {} if solved is None else solved
        shape = self.milp.shape()
        key = self.milp.digest(gap, start, prove, cutoff + self.stored_s, shape)
        if key not in solved:
            near = {} if bases is None else bases.setdefault(shape, {})
            found = self.milp.solve(time_limit_s, gap, start, prove, cutoff + self.stored_s, near)
            # The first of the largest: rounding is the same every time.
            best = [max(x, key=found.values.__getitem__) for x in self._ranges()] if found.values else []
            solved[key] = replace(found, values=()), tuple(best)
        found, variables = solved[key]
        if found.status == "hopeless":
            return AxisStates((), inf, found.bound - self.stored_s)
        if found.objective == inf:
            return None
        chosen = tuple(states[v - first] for states, first, v in zip(self.open, self.first, variables, strict=True))
        stored_s = sum(
            self.stored_s * count * self.costs.arguments.share(k, s)
            for k, (count, s) in enumerate(zip(self.costs.quotient.counts, chosen, strict=True))
        )
        return AxisStates(chosen, found.objective - stored_s, found.bound - self.stored_s)

"""One mesh axis placed optimally while the others stay: the integer program of 2-search section 2 on the tied problem.

Owns the linearisation: one-hot states per class, pair variables where two classes meet, one variable per conversion
that several consumers share. Its optimum is exact for that axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rhino.errors import RhinoError
from rhino.search.costs import Costs, States
from rhino.search.layout import Layout
from rhino.search.milp import Milp
from rhino.search.problem import Transfer

_TIE_BREAK_S = 1e-9
# A conversion (from, to), and a place it may happen: (class, state) of its source and of its target.
Key = tuple[Layout, Layout]
Term = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class AxisSolution:
    """States of every class on the axis, the objective in seconds and its proved lower bound."""

    states: tuple[int, ...]
    objective: float
    bound: float


def feasible(costs: Costs, k: int, axis: int, fixed: States) -> list[int]:
    """States of class k that the axis may take: sizes divide, together with the other axes on the same dimension."""
    node = costs.problem.nodes[costs.quotient.nodes[k]]
    sizes = costs.sizes
    allowed = [0]
    if sizes[axis] == 1:
        return allowed
    for s, limit in enumerate(node.limits, start=1):
        parts = sizes[axis] * prod(n for a, n in enumerate(sizes) if a != axis and fixed[a] == s)
        if limit % parts == 0:
            allowed.append(s)
    return allowed


class AxisProgram:
    """The program for `axis`, given the states of all classes on all axes."""

    def __init__(
        self,
        costs: Costs,
        axis: int,
        states: Sequence[States],
        pinned: dict[int, States],
        parallel: bool,
    ) -> None:
        self.costs = costs
        self.axis = axis
        self.states = states
        self.milp = Milp()
        self.x: list[dict[int, int]] = []
        self.pairs: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
        self.pair_vars: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        self.copies: dict[int, list[tuple[Key, list[list[Term]]]]] = {}
        self.shared: list[tuple[float, tuple[int, Key], list[list[Term]]]] = []
        self.shared_vars: dict[tuple[int, Key], int] = {}
        quotient = costs.quotient
        for k, count in enumerate(quotient.counts):
            allowed = feasible(costs, k, axis, states[k])
            if k in pinned:
                allowed = [s for s in allowed if s == pinned[k][axis]]
                if not allowed:
                    raise RhinoError("a given sharding does not divide its dimension", "drop it or choose another mesh")
            # Published conventions forbid replicated dots; it is an option for comparing with them.
            elif parallel and self._is_dot(k) and len(allowed) > 1:
                allowed = allowed[1:]
            self.x.append({s: self.milp.variable(count * self._node(k, s), True) for s in allowed})
            self.milp.row(1, 1, [(v, 1.0) for v in self.x[k].values()])
        for transfer, count in quotient.transfers:
            self._transfer(transfer, count)
        self._emit()

    def _is_dot(self, k: int) -> bool:
        node = self.costs.problem.nodes[self.costs.quotient.nodes[k]]
        names = ("stablehlo.dot_general", "stablehlo.convolution")
        return node.kind == "op" and self.costs.problem.graph.ops[node.ops[0]].name in names

    def states_with(self, k: int, s: int) -> States:
        """The states of class k with s on the program's axis."""
        states = self.states[k]
        return (*states[: self.axis], s, *states[self.axis + 1 :])

    def _node(self, k: int, s: int) -> float:
        # Equal costs are common (which dim of a gathered parameter?): prefer the major one, and the same every time.
        return self.costs.node(k, self.states_with(k, s)) + _TIE_BREAK_S * s

    def _transfer(self, transfer: Transfer, count: int) -> None:
        costs = self.costs
        replicated = (-1,) * len(costs.sizes)
        once: dict[Key, list[list[Term]]] = {}
        price: dict[Key, float] = {}
        several = len(transfer.sources) * len(transfer.targets) > 1
        for source in transfer.sources:
            for target in transfer.targets:
                u, w = source.node, target.node
                entries: dict[Key, list[Term]] = {}
                for s in self.x[u]:
                    start = costs.layout(source, self.states_with(u, s))
                    for t in self.x[w] if w >= 0 else (0,):
                        if u == w and s != t:
                            continue
                        end = costs.layout(target, self.states_with(w, t)) if w >= 0 else replicated
                        seconds, _ = costs.transfer(transfer, start, end)
                        if seconds == 0.0:
                            continue
                        if transfer.kind == "use" or (several and costs.once(transfer, start)):
                            entries.setdefault((start, end), []).append((u, s, w, t))
                            price[start, end] = count * seconds
                        else:
                            self._add(u, s, w, t, count * seconds)
                for key, terms in entries.items():
                    members = once.setdefault(key, [])
                    if terms not in members:
                        members.append(terms)
        for key, members in once.items():
            if len(members) == 1:
                for u, s, w, t in members[0]:
                    self._add(u, s, w, t, price[key])
            else:
                self.shared.append((price[key], (transfer.index, key), members))
            if transfer.kind == "use":
                self.copies.setdefault(transfer.index, []).append((key, members))

    def _add(self, u: int, s: int, w: int, t: int, seconds: float) -> None:
        if w < 0 or u == w:
            self.milp.costs[self.x[u][s]] += seconds
            return
        table = self.pairs.setdefault((u, w), {})
        table[s, t] = table.get((s, t), 0.0) + seconds

    def _emit(self) -> None:
        for u, w in self.pairs:
            self._pair(u, w)
        for seconds, key, members in self.shared:
            y = self.shared_vars[key] = self.milp.variable(seconds)
            for terms in members:
                self.milp.row(0, float("inf"), [(y, 1.0), *[(self._term(*term), -1.0) for term in terms]])

    def _term(self, u: int, s: int, w: int, t: int) -> int:
        if w < 0 or u == w:
            return self.x[u][s]
        return self._pair(u, w)[s, t]

    def _pair(self, u: int, w: int) -> dict[tuple[int, int], int]:
        """Variables that are 1 exactly where both classes are in the given states."""
        found = self.pair_vars.get((u, w))
        if found is not None:
            return found
        xu, xw = self.x[u], self.x[w]
        if len(xu) == 1:
            (only,) = xu
            table = {(only, t): v for t, v in xw.items()}
        elif len(xw) == 1:
            (only,) = xw
            table = {(s, only): v for s, v in xu.items()}
        else:
            table = {(s, t): self.milp.variable(0.0) for s in xu for t in xw}
            for s, v in xu.items():
                self.milp.row(0, 0, [(v, -1.0), *[(table[s, t], 1.0) for t in xw]])
            for t, v in xw.items():
                self.milp.row(0, 0, [(v, -1.0), *[(table[s, t], 1.0) for s in xu]])
        self.pair_vars[u, w] = table
        for key, seconds in self.pairs.get((u, w), {}).items():
            self.milp.costs[table[key]] += seconds
        return table

    def conversions(self, transfer: int) -> list[tuple[Layout, list[int]]]:
        """The converted copies a transfer can lead to: their layout, and the variables whose sum is 1 if one exists."""
        found = []
        for end, members in self.copies.get(transfer, ()):
            shared = self.shared_vars.get((transfer, end))
            found.append((end[1], [shared] if shared is not None else [self._term(*term) for term in members[0]]))
        return found

    def limit(self, terms: Sequence[tuple[int, float]], room: float) -> None:
        """Add the row `terms <= room`."""
        self.milp.row(float("-inf"), room, [(v, c) for v, c in terms if c])

    def solve(self, time_limit_s: float) -> AxisSolution | None:
        """The best states for the axis; None if the memory rows cannot be met."""
        found = self.milp.solve(time_limit_s)
        if found.status == "infeasible":
            return None
        chosen = tuple(max(x, key=lambda s, x=x: (found.values[x[s]], -s)) for x in self.x)  # type: ignore[misc]
        return AxisSolution(chosen, found.objective, found.bound)

"""The values of one region while it is analysed: their forms, which are zero, and the steps found so far.

Owns look-up through enclosing regions and the order of steps. Decides nothing.
"""

from __future__ import annotations

from rhino.graph.data import Graph
from rhino.microbatch.forms import WHOLE, Form, Split
from rhino.microbatch.plan import Copy, Cut, Step


class Scope:
    """One region; `parent` encloses it, None for @main.

    `demands` are whole values of which a part is needed, each with the op that needs it first.
    """

    def __init__(self, graph: Graph, parent: Scope | None = None) -> None:
        self.graph, self.parent = graph, parent
        self.forms: dict[int, Form] = {}
        self.zero: set[int] = set()
        self.demands: dict[tuple[int, Split], int] = {}
        self._steps: list[tuple[int, int, Step]] = []

    def owner(self, v: int) -> Scope:
        """The scope that defines a value."""
        scope: Scope = self
        while v not in scope.forms and scope.parent is not None:
            scope = scope.parent
        return scope

    def form(self, v: int) -> Form:
        """The form a value has; whole if nothing was said of it."""
        return self.owner(v).forms.get(v, WHOLE)

    def is_zero(self, v: int) -> bool:
        """Whether a value is known to be zero everywhere."""
        return v in self.owner(v).zero

    def demand(self, v: int, split: Split, op: int) -> None:
        """Ask for the micro-batch's part of a whole value."""
        self.demands.setdefault((v, split), op)

    def add(self, at: int, step: Step) -> None:
        """Put a step where op `at` is in program order; one that makes a value comes before one that cuts it."""
        self._steps.append((at, 1 if isinstance(step, Cut) else 0, step))

    def steps(self) -> list[Step]:
        """All steps in order."""
        return [step for _, _, step in sorted(self._steps, key=lambda entry: entry[:2])]

    def drop(self, ops: set[int]) -> None:
        """Take out the steps of some ops."""
        self._steps = [e for e in self._steps if isinstance(e[2], Cut) or e[2].op not in ops]

    def whole(self, k: int) -> Copy:
        """A copy of an op without regions with all its operands whole."""
        op = self.graph.ops[k]
        return Copy(k, tuple((v, WHOLE) for v in op.operands), tuple((v, WHOLE) for v in op.results))

"""The values of one region while it is analysed: their forms, which are zero, and the steps found so far.

Owns look-up through enclosing regions and the order of steps. Decides nothing.
"""

from __future__ import annotations

from rhino.microbatch.forms import WHOLE, Form, OwnEstimate, Partial, Split
from rhino.microbatch.plan import OpCopy, Step
from rhino.program.data import Graph


class Scope:
    """One region; `parent` encloses it, None for @main.

    `demands` are values of which a part is needed, or an estimate, each with the op that needs it first. Of what is in
    `given` there is an estimate anyway.
    """

    def __init__(self, graph: Graph, parent: Scope | None = None) -> None:
        self.graph, self.parent = graph, parent
        self.forms: dict[int, Form] = {}
        self.zero: set[int] = set()
        self.given: set[int] = set()
        self.demands: dict[tuple[int, Split | OwnEstimate], int] = {}
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

    def demand(self, v: int, form: Split | OwnEstimate, op: int) -> None:
        """Ask for the micro-batch's part of a value, or its estimate."""
        self.demands.setdefault((v, form), op)

    def add(self, at: int, step: Step) -> None:
        """Put a step where op `at` is in program order; one that makes a value comes before one that cuts it."""
        self._steps.append((at, 0 if isinstance(step, OpCopy) else 1, step))

    def steps(self) -> list[Step]:
        """All steps in order."""
        return [step for _, _, step in sorted(self._steps, key=lambda entry: entry[:2])]

    def drop(self, ops: set[int]) -> None:
        """Take out the steps that make sums by some ops."""

        def dropped(step: Step) -> bool:
            return isinstance(step, OpCopy) and step.op in ops and isinstance(step.results[0][1], Partial)

        self._steps = [entry for entry in self._steps if not dropped(entry[2])]

    def whole(self, k: int) -> OpCopy:
        """A copy of an op without regions with all its operands whole."""
        op = self.graph.ops[k]
        return OpCopy(k, tuple((v, WHOLE) for v in op.operands), tuple((v, WHOLE) for v in op.results))

"""Which dimension of each parameter Megatron's tensor parallelism splits, found by dataflow (arXiv 1909.08053).

The forward pass is walked in program order. Activations are whole or split along one dimension: what a block adds to
(the residual stream) is whole; a weight that reads whole activations is split by columns, and so is its result; a
weight that contracts the split dimension is split by rows, and its result is whole again after one all-reduce.
Embeddings are split by vocabulary. Owns that walk; knows neither mesh nor costs.
"""

from __future__ import annotations

from rhino.experts.facts import ProgramFacts, ProgramLeaf, Use
from rhino.program.data import Op
from rhino.sharding.problem import leading

# A table with fewer rows than this part of the largest one's is no vocabulary: positions, token types.
_VOCABULARY_SHARE = 0.25
WHOLE = -1  # the class of an activation that is not split


def tensor_dims(facts: ProgramFacts, parts: int) -> dict[int, int]:
    """For each parameter that tensor parallelism splits `parts` ways, the dimension it splits, by argument index."""
    return _TensorWalk(facts, parts).run()


def residual_values(facts: ProgramFacts) -> list[int]:
    """The residual streams of batch x sequence x features: one value of each, the first in program order."""
    streams = (_first(facts, n, 3, 3) for n in _TensorWalk(facts, 1).residual())
    return [v for v in streams if v >= 0]


def split_values(facts: ProgramFacts, parts: int) -> dict[int, int]:
    """What tensor parallelism keeps split `parts` ways between two weights: heads, hidden features.

    Returns:
      one value of each, batch first, with the dimension that is split.
    """
    walk = _TensorWalk(facts, parts)
    walk.run()
    found = {}
    for n, c in walk.split.items():
        v = _first(facts, n, 3, 4) if c != WHOLE and n in walk.columns else -1
        if v >= 0 and c in facts.problem.classes[v]:
            found[v] = facts.problem.classes[v].index(c)
    return found


def _first(facts: ProgramFacts, cone: int, least: int, most: int) -> int:
    """The first value of a cone, -1 for none, with so many dimensions of which the first is that of the examples."""
    graph = facts.graph
    inside = max(1, graph.microbatches) if graph.microbatch_loop >= 0 else 1
    sizes = {leaf.shape[0] // inside for leaf in facts.batch} | {leaf.shape[0] for leaf in facts.batch}
    members = (graph.values[v] for v in facts.problem.nodes[cone].members)
    return next((m.index for m in members if least <= len(m.shape) <= most and m.shape[0] in sizes), -1)


def vocabularies(facts: ProgramFacts, share: float = _VOCABULARY_SHARE) -> list[tuple[ProgramLeaf, int]]:
    """The embedding tables, with their dimension of rows: those looked up, short ones left out.

    Args:
      share: how many rows, as a part of the largest table's, make a table worth splitting.
    """
    found = []
    for leaf in facts.params:
        if leaf.use is not None and leaf.use.kind == "gather" and leaf.use.indexed:
            rows = max(leaf.use.indexed, key=lambda d: leaf.shape[d])
            found.append((leaf, rows))
    most = max((leaf.shape[d] for leaf, d in found), default=0)
    return [(leaf, d) for leaf, d in found if leaf.shape[d] >= share * most]


def _is_heavy(op: Op) -> bool:
    name = op.name.removeprefix("stablehlo.")
    return op.rule is not None and (name in ("dot_general", "dot", "convolution", "gather") or op.kernel is not None)


class _TensorWalk:
    """One walk over the forward pass. `split` holds the split class of each activation's cone, or WHOLE."""

    def __init__(self, facts: ProgramFacts, parts: int) -> None:
        self.facts, self.parts = facts, parts
        self.graph, self.problem = facts.graph, facts.problem
        self.split: dict[int, int] = {}
        self.sources: dict[int, list[int]] = {}  # split cone -> split cones it was computed from
        self.columns: dict[int, list[int]] = {}  # split cone -> the weights split by columns that write it
        self.closed: set[int] = set()  # split cones that a weight split by rows contracts, sooner or later
        self.dims: dict[int, int] = {}
        self.uses: dict[int, list[tuple[ProgramLeaf, Use]]] = {}
        for leaf in facts.params:
            if leaf.use is not None:
                self.uses.setdefault(leaf.use.op, []).append((leaf, leaf.use))
        self.last = max(self.uses, default=-1)
        self.heavy = [op for op in self.graph.ops[: self.last + 1] if _is_heavy(op)]

    def run(self) -> dict[int, int]:
        """Weights by heavy ops, then what is only added or multiplied: biases and scales."""
        for n in self.residual():
            self.split[n] = WHOLE
        tables = {leaf.index: d for leaf, d in vocabularies(self.facts)}
        for op in self.heavy:
            weights = self.uses.get(op.index, [])
            if len(weights) == 1 and weights[0][1].kind == "gather":
                leaf = weights[0][0]
                if leaf.index in tables and self._divides(leaf, tables[leaf.index]):
                    self.dims[leaf.index] = tables[leaf.index]
                self.split.setdefault(self.problem.node_of[op.results[0]], WHOLE)
            elif len(weights) == 1:
                self._weight(op, *weights[0])
            elif not weights:
                self._activations(op)
        self._drop_open()
        self._broadcasts()
        return self.dims

    def residual(self) -> list[int]:
        """Cones that a later operation writes again after something computed from them: what blocks add to."""
        node_of = self.problem.node_of
        reached: dict[int, int] = {}  # cone -> set of cones it was computed from, as bits
        found: dict[int, None] = {}
        for op in self.heavy:
            out = node_of[op.results[0]]
            weights = {use.slot for _, use in self.uses.get(op.index, ())}
            before = 0
            for slot, v in enumerate(op.operands):
                n = node_of[v]
                if slot not in weights and n >= 0:
                    before |= reached.get(n, 0) | 1 << n
            if out >= 0:
                reached[out] = reached.get(out, 0) | before
                if before >> out & 1:
                    found[out] = None
        return list(found)

    def _divides(self, leaf: ProgramLeaf, dim: int) -> bool:
        return dim not in leaf.stacked and self.facts.parts(leaf.value, dim, self.parts)

    def _weight(self, op: Op, leaf: ProgramLeaf, use: Use) -> None:
        """One weight meets one activation."""
        assert op.rule is not None
        slot = 1 - use.slot
        incoming = self._factor(op, slot)
        out = self.problem.node_of[op.results[0]]
        if incoming >= 0:
            own = self._own_dim(op, leaf, use, incoming)
            if own >= 0 and self._divides(leaf, own):
                self.dims[leaf.index] = own
            origin = self.problem.node_of[op.operands[slot]]
            if own in use.contracted:
                self._close(origin)
            else:
                self.sources.setdefault(out, []).append(origin)
            self.split.setdefault(out, self._class_of(op, incoming))
            return
        if out not in self.split:
            # A dimension that is cut up afterwards (a fused projection) would have to be gathered.
            lost = {c for c, _, _ in self.problem.losses.get(out, ())}
            choices = [d for d in use.outputs if self._divides(leaf, d)]
            kept = [d for d in choices if self._class_of(op, self._own_factor(op, leaf, use, d)) not in lost]
            # The major dimension: heads rather than what is in one. Stored factors of a fused one come before it.
            chosen = kept[0] if kept else -1
            if chosen < 0:
                self.split[out] = WHOLE
                return
            self.split[out] = self._class_of(op, self._own_factor(op, leaf, use, chosen))
        if self.split[out] == WHOLE:
            return
        for d in use.outputs:
            if self._class_of(op, self._own_factor(op, leaf, use, d)) == self.split[out] and self._divides(leaf, d):
                self.dims[leaf.index] = d
                self.columns.setdefault(out, []).append(leaf.index)

    def _close(self, cone: int) -> None:
        """A weight split by rows contracts a cone: those it comes from are of use."""
        waiting = [cone]
        while waiting:
            n = waiting.pop()
            if n not in self.closed:
                self.closed.add(n)
                waiting.extend(self.sources.get(n, ()))

    def _drop_open(self) -> None:
        """Columns that no rows follow are not worth it, except those of the last layer, whose loss is taken split."""
        final = {leaf.index for leaf, _ in self.uses.get(self.last, ())}
        for cone, leaves in self.columns.items():
            if cone not in self.closed and not final & set(leaves):
                self.split[cone] = WHOLE
                for index in leaves:
                    del self.dims[index]

    def _activations(self, op: Op) -> None:
        """Two activations meet, or one is looked up: attention, routing."""
        out = self.problem.node_of[op.results[0]]
        if out < 0 or out in self.split:
            return
        factors = [self._factor(op, slot) for slot in range(len(op.operands))]
        classes = [self._class_of(op, f) for f in factors if f >= 0]
        self.split[out] = next((c for c in classes if c != WHOLE), WHOLE)
        self.sources.setdefault(out, []).extend(self.problem.node_of[v] for v in op.operands)

    def _factor(self, op: Op, slot: int) -> int:
        """The factor of an op along which an operand is split, or -1."""
        assert op.rule is not None
        v = op.operands[slot]
        c = self.split.get(self.problem.node_of[v], WHOLE)
        if c == WHOLE or c not in self.problem.classes[v]:
            return -1
        return leading(op.rule, op.rule.operands[slot][self.problem.classes[v].index(c)])

    def _class_of(self, op: Op, factor: int) -> int:
        """The class of the result's dimension that has a factor, WHOLE without one."""
        assert op.rule is not None
        result = op.results[0]
        for d, mapping in enumerate(op.rule.results[0]):
            if factor >= 0 and leading(op.rule, mapping) == factor:
                return self.problem.classes[result][d]
        return WHOLE

    def _own_factor(self, op: Op, leaf: ProgramLeaf, use: Use, dim: int) -> int:
        """The factor of an op that is dimension `dim` of a parameter."""
        assert op.rule is not None
        v = op.operands[use.slot]
        at = self.facts.dim_of(v, leaf.value, dim)
        return leading(op.rule, op.rule.operands[use.slot][at]) if at >= 0 else -1

    def _own_dim(self, op: Op, leaf: ProgramLeaf, use: Use, factor: int) -> int:
        """The dimension of a parameter that a factor is, or -1."""
        for d in range(len(leaf.shape)):
            if self._own_factor(op, leaf, use, d) == factor:
                return d
        return -1

    def _broadcasts(self) -> None:
        """Biases and scales are split like the activation they are spread over."""
        bare = {leaf.value: leaf for leaf in self.facts.params if leaf.use is None and leaf.shape}
        cones = {self.problem.node_of[v]: leaf for v, leaf in bare.items()}
        for op in self.graph.ops[: self.last + 1]:
            if op.name != "stablehlo.broadcast_in_dim" or op.rule is None:
                continue
            leaf = cones.get(self.problem.node_of[op.operands[0]])
            if leaf is None or leaf.index in self.dims:
                continue
            c = self.split.get(self.problem.node_of[op.results[0]], WHOLE)
            if c == WHOLE or c not in self.problem.classes[op.results[0]]:
                continue
            f = leading(op.rule, op.rule.results[0][self.problem.classes[op.results[0]].index(c)])
            for d, mapping in enumerate(op.rule.operands[0]):
                if f >= 0 and leading(op.rule, mapping) == f:
                    own = self.facts.dim_of(leaf.value, op.operands[0], d)
                    if own >= 0 and self._divides(leaf, own):
                        self.dims[leaf.index] = own

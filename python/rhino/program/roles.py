"""From how an argument flows to its role. Pure functions over facts; knows no MLIR.

Owns the rules, in one place and in words:
- *State* is what the step returns updated: an aliased argument that its output depends on, or, without aliasing, one
  whose elements make up an output of its type; where pytrees are known, a tree of which that holds for most leaves.
  State that enters the computation and on which some output beside the state depends (the loss) is a parameter; all
  other state is optimizer state, running statistics and step counts too.
- What is not state but is used as a weight (a kernel, a table, a bias) is a parameter: frozen ones, those of an
  evaluation step, and its running statistics. What enters as data, with the data's leading dimension, is the batch; so
  is what has that dimension and is multiplied with state from the right: `einsum` writes either operand there.
- PRNG keys, scalars that are not state, and what fits nowhere are other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

KEY_WORDS = (2, 4)  # 32-bit words of a threefry or rbg key


@dataclass(frozen=True, slots=True)
class ArgumentFlow:
    """The facts about one argument. `alias` is the output that takes its buffer, or -1.

    `computes`: its elements, at most rescaled or moved, enter a contraction, convolution, gather, or a larger tensor.
    `first_use`: the first such use in program order: "weight" (right-hand side, kernel, table, broadcast along new
    leading dimensions), "data" (left-hand side with its leading dimension kept, image, index), "spread" (broadcast that
    keeps the leading dimension), or "" if there is none.
    `becomes`: the outputs of its type that are made of its elements.
    `beside`: where the first use is as the right-hand side of a product that keeps the leading dimension, the arguments
    whose elements are the left-hand side: `einsum` may write the weight there.
    `block`: the tree that it is a leaf of, -1 if nobody says; `returned`: the outputs in its place of trees like that.
    """

    shape: tuple[int, ...]
    dtype: str
    alias: int = -1
    donated: bool = False
    computes: bool = False
    first_use: str = ""
    becomes: frozenset[int] = frozenset()
    beside: frozenset[int] = frozenset()
    block: int = -1
    returned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramFlow:
    """The facts about all arguments, in order, and for each output of @main the set of arguments it depends on."""

    arguments: tuple[ArgumentFlow, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """A role and the reason for it, for people."""

    role: str
    why: str


def decide(program: ProgramFlow) -> list[Decision]:
    """The role of every argument, in order."""
    flows = program.arguments
    state = _find_state(program)
    returned = frozenset[int]().union(*state)
    loss_depends = 0
    for o, depends in enumerate(program.outputs):
        if o not in returned:
            loss_depends |= depends
    # Without a loss among the outputs, a parameter is told by how much of the new state depends on it.
    spread = [] if loss_depends else _count_members([program.outputs[o] for o in sorted(returned)], len(flows))
    widest = max((spread[i] for i, outputs in enumerate(state) if outputs), default=0) if spread else 0
    used = _used(program)
    leading = _batch_size(program, state)
    decisions = []
    for i, flow in enumerate(flows):
        if not state[i]:
            decisions.append(_other_role(flow, leading, bool(used >> i & 1), _is_swapped(flow, state)))
        elif loss_depends:
            decisions.append(_state_role(flow, bool(loss_depends >> i & 1), "the loss"))
        else:
            decisions.append(_state_role(flow, 2 * spread[i] > widest, "most of the updated state"))
    return decisions


def _count_members(sets: Sequence[int], count: int) -> list[int]:
    """For each of `count` members, the number of sets it is in."""
    width = (count + 7) // 8
    rows = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in sets), np.uint8).reshape(len(sets), width)
    counts: list[int] = np.unpackbits(rows, axis=1, count=count, bitorder="little").sum(axis=0, dtype=np.int64).tolist()
    return counts


def _used(program: ProgramFlow) -> int:
    """The set of arguments that some output depends on."""
    used = 0
    for depends in program.outputs:
        used |= depends
    return used


def _find_state(program: ProgramFlow) -> list[frozenset[int]]:
    """For each argument the outputs that return it updated; none if it is not state."""
    flows = program.arguments
    if all(flow.block >= 0 for flow in flows):
        return _find_state_by_trees(program)
    state = [flow.becomes for flow in flows]
    for i, flow in enumerate(flows):
        if flow.alias >= 0 and program.outputs[flow.alias] >> i & 1:
            state[i] |= {flow.alias}
    if any(flow.donated for flow in flows):
        # Data may look like state, so what is not donated must be just like something that is.
        donated = {(flow.shape, flow.dtype) for i, flow in enumerate(flows) if flow.donated and state[i]}
        for i, flow in enumerate(flows):
            if not flow.donated and (flow.computes or (flow.shape, flow.dtype) not in donated):
                state[i] = frozenset()
        return state
    # x + f(x) of an inference step looks like an update; a training step has data that it does not return.
    data = [i for i, flow in enumerate(flows) if flow.first_use == "data"]
    if all(state[i] for i in data):
        for i in data:
            state[i] = frozenset()
    if any(state[i] and _enters(flow) for i, flow in enumerate(flows)):
        return state
    return [frozenset() for _ in flows]


def _find_state_by_trees(program: ProgramFlow) -> list[frozenset[int]]:
    """The same where the trees of the arguments are known: a tree is state as a whole, or is not."""
    flows = program.arguments
    state: list[frozenset[int]] = [frozenset()] * len(flows)
    trees: dict[int, list[int]] = {}
    for i, flow in enumerate(flows):
        trees.setdefault(flow.block, []).append(i)
    for members in trees.values():
        for outputs in zip(*(flows[i].returned for i in members), strict=False):
            if _returns(program, members, outputs):
                for i, o in zip(members, outputs, strict=True):
                    state[i] |= {o}
        if not flows[members[0]].returned and all(_may_be_state(flows[i]) for i in members):
            for i in members:
                state[i] = flows[i].becomes

    def drop(tree: Sequence[int]) -> None:
        for i in tree:
            state[i] = frozenset()

    # x + f(x) of an inference step looks like an update; a training step has data that it does not return.
    if all(state[i] for i, flow in enumerate(flows) if flow.first_use == "data"):
        for members in trees.values():
            if {flows[i].first_use for i in members} - {""} == {"data"}:
                drop(members)
    # Sums of gradients that are returned are like the parameters; data that is only scaled is like none.
    if not any(state[i] and _enters(flow) for i, flow in enumerate(flows)):
        weights = {(flow.shape, flow.dtype) for flow in flows if flow.first_use == "weight"}
        for members in trees.values():
            if not weights.issuperset((flows[i].shape, flows[i].dtype) for i in members if flows[i].shape):
                drop(members)
    return state


def _returns(program: ProgramFlow, members: Sequence[int], outputs: Sequence[int]) -> bool:
    """Whether results are most of a tree, updated: made of its elements, or dependent on what was given away."""
    flows = program.arguments
    made = sum(o in flows[i].becomes for i, o in zip(members, outputs, strict=True))
    kept = sum(flows[i].donated and bool(program.outputs[o] >> i & 1) for i, o in zip(members, outputs, strict=True))
    return 2 * max(made, kept) >= len(members)


def _may_be_state(flow: ArgumentFlow) -> bool:
    """Whether an argument that no results of a like tree stand for may be state by itself."""
    return bool(flow.becomes) and flow.first_use != "data"


def _is_float(flow: ArgumentFlow) -> bool:
    return flow.dtype.startswith(("f", "bf", "complex", "tf"))


def _is_key(flow: ArgumentFlow) -> bool:
    return flow.dtype == "ui32" and bool(flow.shape) and flow.shape[-1] in KEY_WORDS


def _enters(flow: ArgumentFlow) -> bool:
    return _is_float(flow) and flow.computes


def _state_role(flow: ArgumentFlow, matters: bool, what: str) -> Decision:
    """The role of state; `matters` if `what` depends on it."""
    if _is_key(flow):
        return Decision("other", "random key")
    if not _enters(flow):
        return Decision("opt_state", "returned updated, and only combined element by element")
    if matters:
        return Decision("param", f"returned updated, and {what} depends on it")
    return Decision("opt_state", f"returned updated, and {what} does not depend on it")


def _is_swapped(flow: ArgumentFlow, state: Sequence[frozenset[int]]) -> bool:
    """Whether it is first used as a right-hand side where the left-hand side is state, so that it may well be data."""
    return bool(flow.beside) and all(state[k] for k in flow.beside)


def _other_role(flow: ArgumentFlow, leading: int, used: bool, swapped: bool) -> Decision:
    """The role of what is no state."""
    if _is_key(flow):
        return Decision("other", "random key")
    if not flow.shape:
        return Decision("other", "scalar")
    if _is_float(flow) and flow.first_use == "weight" and not (swapped and flow.shape[0] == leading):
        return Decision("param", "not returned, and used as a weight")
    if flow.shape[0] == leading and prod(flow.shape) > 0 and used:
        return Decision("batch", f"not returned, with the data's leading dimension {leading}")
    if flow.first_use == "data" and len(flow.shape) > 1:
        return Decision("batch", "not returned, and used as data")
    return Decision("other", "neither state, weight nor data")


def _batch_size(program: ProgramFlow, state: Sequence[frozenset[int]]) -> int:
    """The leading dimension of the data: that of most of its elements, or -1 without data."""
    votes: Counter[int] = Counter()
    doubtful: Counter[int] = Counter()
    used = _used(program)
    for i, flow in enumerate(program.arguments):
        weight = _is_float(flow) and flow.first_use == "weight"
        if not state[i] and flow.shape and not _is_key(flow) and used >> i & 1:
            if not weight:
                # Data that is looked up or contracted says more about the batch than a mask or a table of constants.
                votes[flow.shape[0]] += prod(flow.shape) * (1000 if flow.first_use == "data" else 1)
            elif _is_swapped(flow, state):
                doubtful[flow.shape[0]] += prod(flow.shape)
    votes = votes or doubtful
    return max(votes, key=lambda size: (votes[size], size)) if votes else -1

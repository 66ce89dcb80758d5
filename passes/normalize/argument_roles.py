"""From how an argument flows to its role. Pure functions over facts; knows no MLIR.

Owns the rules, in one place and in words:
- *State* is what the step returns updated: an aliased argument that its output depends on, or, without aliasing, one
  whose elements make up an output of its type. State that enters the computation and on which some output beside the
  state depends (the loss) is a parameter; all other state is optimizer state, running statistics and step counts too.
- What is not state but is used as a weight (a kernel, a table, a bias) is a parameter: frozen ones, those of an
  evaluation step, and its running statistics. What enters as data, with the data's leading dimension, is the batch.
- PRNG keys, scalars that are not state, and what fits nowhere are other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rhino.passes.normalize.argument_flow import ArgumentFlow

KEY_WORDS = (2, 4)  # 32-bit words of a threefry or rbg key


@dataclass(frozen=True, slots=True)
class Decision:
    """A role and the reason for it, for people."""

    role: str
    why: str


def decide(flows: Sequence[ArgumentFlow]) -> list[Decision]:
    """The role of every argument, in order."""
    state_outputs = _find_state(flows)
    returned = frozenset[int]().union(*state_outputs.values())
    losses = frozenset[int]().union(*(flow.reaches for flow in flows)) - returned
    widest = max((len(flows[i].reaches & returned) for i in state_outputs if state_outputs[i]), default=0)
    leading = _batch_size(flows, state_outputs)
    return [
        _state_role(flow, losses, returned, widest) if state_outputs[i] else _other_role(flow, leading)
        for i, flow in enumerate(flows)
    ]


def _find_state(flows: Sequence[ArgumentFlow]) -> dict[int, frozenset[int]]:
    """For each argument the outputs that return it updated; none if it is not state."""
    state = {i: _state_outputs(flow) for i, flow in enumerate(flows)}
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
        state.update(dict.fromkeys(data, frozenset()))
    if any(state[i] and _enters(flow) for i, flow in enumerate(flows)):
        return state
    return dict.fromkeys(state, frozenset())


def _state_outputs(flow: ArgumentFlow) -> frozenset[int]:
    """The outputs that return the argument updated; empty if it is not state."""
    if flow.alias >= 0 and flow.alias in flow.reaches:
        return frozenset({flow.alias}) | flow.becomes
    return flow.becomes


def _is_float(flow: ArgumentFlow) -> bool:
    return flow.dtype.startswith(("f", "bf", "complex", "tf"))


def _is_key(flow: ArgumentFlow) -> bool:
    return flow.dtype == "ui32" and bool(flow.shape) and flow.shape[-1] in KEY_WORDS


def _enters(flow: ArgumentFlow) -> bool:
    return _is_float(flow) and flow.computes


def _state_role(flow: ArgumentFlow, losses: frozenset[int], returned: frozenset[int], widest: int) -> Decision:
    if _is_key(flow):
        return Decision("other", "random key")
    if not _enters(flow):
        return Decision("opt_state", "returned updated, and only combined element by element")
    if losses:
        if flow.reaches & losses:
            return Decision("param", "returned updated, and the loss depends on it")
        return Decision("opt_state", "returned updated, and no output beside the state depends on it")
    if 2 * len(flow.reaches & returned) > widest:
        return Decision("param", "returned updated, and most of the updated state depends on it")
    return Decision("opt_state", "returned updated, and little of the updated state depends on it")


def _other_role(flow: ArgumentFlow, leading: int) -> Decision:
    if _is_key(flow):
        return Decision("other", "random key")
    if not flow.shape:
        return Decision("other", "scalar")
    if _is_float(flow) and flow.first_use == "weight":
        return Decision("param", "not returned, and used as a weight")
    if flow.shape[0] == leading and prod(flow.shape) > 0 and flow.reaches:
        return Decision("batch", f"not returned, with the data's leading dimension {leading}")
    if flow.first_use == "data" and len(flow.shape) > 1:
        return Decision("batch", "not returned, and used as data")
    return Decision("other", "neither state, weight nor data")


def _batch_size(flows: Sequence[ArgumentFlow], state_outputs: dict[int, frozenset[int]]) -> int:
    """The leading dimension of the data: that of most of its elements, or -1 without data."""
    votes: Counter[int] = Counter()
    for i, flow in enumerate(flows):
        weight = _is_float(flow) and flow.first_use == "weight"
        if not state_outputs[i] and flow.shape and not weight and not _is_key(flow) and flow.reaches:
            # Data that is looked up or contracted says more about the batch than a mask or a table of constants.
            votes[flow.shape[0]] += prod(flow.shape) * (1000 if flow.first_use == "data" else 1)
    return max(votes, key=lambda size: (votes[size], size)) if votes else -1

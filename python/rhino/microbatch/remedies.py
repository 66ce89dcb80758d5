"""What a refused step is told to do.

Owns the texts of refusals that are about the step as a whole, and which advice may be no help. Decides nothing of how
a step is split.
"""

from __future__ import annotations

from rhino.microbatch.facts import BatchFacts
from rhino.microbatch.forms import ONE, NotSyncFree, Refusal
from rhino.program.data import Graph

AFTER_ALL = f"{ONE}; statistics of single examples or fixed groups would not need the rest"
ASK = (
    f"{ONE}; or give statistics=micro-batch, with which each takes its own sums for "
    "those of the batch, and results are not those of one device"
)
SUMS = f"{ONE}; statistics=micro-batch takes only sums from a micro-batch for all examples"
_CALLED = "call the function before the step and pass what it returns, or run the step as one micro-batch"


def not_sync_free(graph: Graph, facts: BatchFacts, k: int, made: int, remedy: str) -> NotSyncFree:
    """The error for examples that op k needs a result of all examples for, which op `made` gives."""
    name = graph.ops[k].name
    if made in facts.host:
        message = f"not sync-free: '{name}' needs, for every example, what a callback returns that sees all of them"
        return NotSyncFree(k, made, message, ((made, "it is called here"), (None, _CALLED)))
    notes = ((made, f"'{graph.ops[made].name}' combines all examples here"),) if made >= 0 else ()
    message = f"not sync-free: '{name}' needs, for every example, a value that is known after all examples"
    return NotSyncFree(k, made, message, (*notes, (None, remedy)))


def asks(refusal: Refusal) -> bool:
    """Whether the remedy is to ask for statistics of micro-batches: true of the operation at fault, so far."""
    return refusal.notes[-1:] == ((None, ASK),)


def without_asking(refusal: Refusal) -> Refusal:
    """A refusal that `asks`, of a step that such statistics do not help either."""
    return Refusal(refusal.op, refusal.message, (*refusal.notes[:-1], (None, AFTER_ALL)))


def indivisible(graph: Graph, v: int, size: int, count: int, group: int, grouper: int) -> Refusal:
    """The error for `size` examples, in groups made by op `grouper`, that `count` micro-batches do not divide."""
    if group == 1:
        message = f"the batch of {size} examples is not divisible by {count} micro-batches"
        return Refusal(-1, message, ((None, f"choose a number that divides {size}"),), value=v)
    groups = size // group
    return Refusal(
        grouper,
        f"groups of {group} examples are computed together here, and {groups} of them are not divisible by {count} "
        "micro-batches",
        ((None, f"choose a number that divides {groups}"),),
    )

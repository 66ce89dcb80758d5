"""Which operations of a stage's backward part other stages wait for, and which a weight fragment may delay.

Owns this rule, for the search and for the module alike. Knows neither graphs nor IR: operations are numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def awaited_ops(reads: Mapping[int, Collection[int]], sent: Collection[int]) -> frozenset[int]:
    """The operations of one phase that another stage waits for: those it is sent a result of, and all they read.

    Args:
      reads: by operation of the phase, in program order, the operations it reads results of, also inside its regions.
        Those of other phases are ignored.
      sent: the operations with a result that another stage reads in this phase.
    """
    found = set(sent)
    for op in reversed(list(reads)):
        if op in found:
            found.update(reads[op])
    return frozenset(found.intersection(reads))


def delayed_ops(
    stage_of: Mapping[int, int], reads: Mapping[int, Collection[int]], sent: Collection[int]
) -> frozenset[int]:
    """The backward operations that form weight fragments: those that no other stage waits for.

    A stage that no other waits for has none: it has nothing to do first.

    Args:
      stage_of: the stage of each operation in `reads`.
      reads, sent: of the backward phase, as for `awaited_ops`.
    """
    awaited = awaited_ops(reads, sent)
    sending = {stage_of[op] for op in awaited}
    return frozenset(op for op in reads if op not in awaited and stage_of[op] in sending)

"""What the body of a loop does between its products, in one trip and from one to the next.

Owns that walk over the instructions of a body. Knows no times.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from rhino.compile.hlo import Computation
from rhino.compile.hlo_loops import tuple_index


def between(body: Computation, products: AbstractSet[str]) -> set[str]:
    """What follows from one of these instructions of a loop's body, and another follows from, also in the next trip."""
    after: set[str] = set()
    for one in body.instructions.values():
        if any(v in products or v in after for v in one.operands):
            after.add(one.name)
    before: set[str] = set()
    carried, root = body.instructions[body.root].operands, body.instructions[body.root]
    found = -1
    while len(before) > found:
        found = len(before)
        for one in reversed(body.instructions.values()):
            if one is not root and (one.name in products or one.name in before):
                before.update(one.operands)
                at = tuple_index(one)
                if at is not None and root.opcode == "tuple" and _is_parameter(body, one.operands[0]):
                    before.add(carried[at])
    return after & before


def _is_parameter(body: Computation, name: str) -> bool:
    return body.instructions[name].opcode == "parameter"

"""Values by what is computed: names that are equal where the same operations are applied to the same.

Owns the naming. Whether an operation may stand for an equal one is the caller's business.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from rhino.dialect.constants import told_attributes


class Names:
    """Names of values. One that was not named is its own name; a view, such as a reshape, has its operand's by type."""

    def __init__(self, known: Names | None = None) -> None:
        self.names: dict[Any, Hashable] = dict(known.names) if known else {}
        self.whole: dict[Hashable, tuple[Hashable, Any]] = dict(known.whole) if known else {}

    def of(self, value: Any) -> Hashable:
        """The name of a value."""
        return self.names.get(value, value)

    def source(self, value: Any) -> Hashable:
        """The name of what a value is a view of, at last."""
        return self.whole.get(self.of(value), (self.of(value),))[0]

    def name(self, values: Sequence[Any], names: Sequence[Hashable]) -> None:
        """Give values names."""
        self.names.update(zip(values, names, strict=True))

    def view(self, op: Any) -> bool:
        """Name the result of an operation that only sees its operand otherwise; whether it is one."""
        if not _is_view(op):
            return False
        value, kind = op.operands[0], op.results[0].type
        name, own = self.whole.get(self.of(value), (self.of(value), value.type))
        found: Hashable = name if kind == own else ("view", name, kind)
        self.whole[found] = name, own
        self.names[op.results[0]] = found
        return True

    def computed(self, op: Any) -> Hashable:
        """The same for operations that compute the same: kind, attributes, types, regions, and what is read by name."""
        return self._computed(op, {})

    def _computed(self, op: Any, inner: dict[Any, Hashable]) -> Hashable:
        def name(value: Any) -> Hashable:
            return inner[value] if value in inner else self.of(value)

        regions = tuple(tuple(self._block(block, inner)) for region in op.regions for block in region)
        return (
            op.name,
            told_attributes(op),
            tuple(r.type for r in op.results),
            tuple(name(v) for v in op.operands),
            regions,
        )

    def _block(self, block: Any, inner: dict[Any, Hashable]) -> Iterator[Hashable]:
        """Of a region's block, operation by operation; what is made in it is named by where."""
        for argument in block.arguments:
            inner[argument] = "inside", len(inner)
            yield argument.type
        for view in block.operations:
            op = view.operation
            yield self._computed(op, inner)
            for result in op.results:
                inner[result] = "inside", len(inner)


def _is_view(op: Any) -> bool:
    """Whether the elements stay, and their order."""
    if op.name == "stablehlo.reshape":
        return True
    if op.name != "stablehlo.broadcast_in_dim":
        return False
    read, made = op.operands[0].type, op.results[0].type
    dims = list(op.attributes["broadcast_dimensions"])
    kept = sorted(n for n in read.shape if n != 1) == sorted(n for n in made.shape if n != 1)
    return kept and dims == sorted(dims)

"""In which form a value is needed: whole, a micro-batch's part, a sum still to be finished, estimated, or known later.

Owns these forms (docs/design/microbatches.md, "Forms of values"), which are plain data, and the two ways an analysis
ends early. Knows neither programs nor MLIR.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.errors import RhinoError


@dataclass(frozen=True, slots=True)
class Whole:
    """The same in every micro-batch: it does not depend on the batch."""


@dataclass(frozen=True, slots=True)
class After:
    """Known only after the last micro-batch."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the batch: dimension `dim` is `before` x `count` x `after`, and micro-batches share out the `count`.

    Micro-batch i of N has those whose middle index is i modulo N. `count` stays that of the whole batch.
    """

    dim: int
    before: int
    count: int
    after: int

    def local(self, shape: tuple[int, ...], microbatches: int) -> tuple[int, ...]:
        """The shape of one micro-batch's part."""
        size = self.before * (self.count // microbatches) * self.after
        return (*shape[: self.dim], size, *shape[self.dim + 1 :])


@dataclass(frozen=True, slots=True)
class Partial:
    """Of the whole's shape; the whole is the `kind` (one of `COMBINERS`) over all micro-batches."""

    kind: str


@dataclass(frozen=True, slots=True)
class OwnEstimate:
    """Of the whole's shape: what the micro-batch takes the whole to be, from its own examples alone.

    Of @main's own operations the value itself is known after the loop.
    """


Form = Whole | After | Split | Partial | OwnEstimate
WHOLE = Whole()
AFTER = After()
ESTIMATE = OwnEstimate()
# How each remedy begins: with one micro-batch nothing is refused for what examples need of each other.
ONE = "run the step as one micro-batch"
REGROUP = f"{ONE}, or compute this within single examples"


class Refusal(RhinoError):
    """The step cannot be split into micro-batches.

    `op` is the index of the operation at fault, -1 for an argument, then `value` is its number. `notes` are texts with
    the index of the operation each is about, None for this one.
    """

    def __init__(self, op: int, message: str, notes: tuple[tuple[int | None, str], ...] = (), value: int = -1) -> None:
        super().__init__(message)
        self.op, self.notes, self.value = op, notes, value


class NotSyncFree(Refusal):
    """Examples need a result of all examples, which op `made` gives."""

    def __init__(self, op: int, made: int, message: str, notes: tuple[tuple[int | None, str], ...]) -> None:
        super().__init__(op, message, notes)
        self.made = made


class NeededWhole(Refusal):
    """Loops over layers make `values` of sums over the batch, and these are needed of all examples."""

    def __init__(self, op: int, values: tuple[int, ...]) -> None:
        message = "this loop makes of sums over the batch a value that is needed of all examples"
        super().__init__(op, message, ((None, "return the sums from the loop, and compute the value after it"),))
        self.values = values


class Onto(Refusal):
    """A sum over the batch does not start from what changes nothing; it could start so, and be added afterwards."""

    def __init__(self, op: int, name: str) -> None:
        message = f"'{name}' adds up all examples onto something that is not zero"
        super().__init__(op, message, ((None, "add to zero here, and add the rest to the sum"),))


class NeedsSync(RhinoError):
    """An operation needs a value that is still partial; `op` is where, `value` what it reads."""

    def __init__(self, op: int, value: int) -> None:
        super().__init__("a partial value is needed")
        self.op, self.value = op, value


class Coarser(RhinoError):
    """Examples belong together in groups `times` as large as was thought; `op` is where."""

    def __init__(self, times: int) -> None:
        super().__init__("examples are computed together")
        self.times = times
        self.op = -1

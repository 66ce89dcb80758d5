"""Sums over the batch that every example needs: taken from the micro-batch alone, where the user asked for that.

Owns what is known of each value for that: the sums it is made of, and the sums whose estimates went into it. They tell
a gradient that goes with the micro-batch's own statistics from a product of two sums that are known after the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rhino.microbatch.forms import ESTIMATE, WHOLE, Form, OwnEstimate, Partial, Split, Whole
from rhino.microbatch.linear import PRODUCTS
from rhino.program.data import Op

if TYPE_CHECKING:
    from rhino.microbatch.plan import Ref

# Linear in some operand if the others are the same for all parts of the sum.
_LINEAR = PRODUCTS | {"stablehlo.divide", "stablehlo.select"}


class Estimates:
    """The sums behind every value, as bits by the op that made the sum. Does nothing unless `allowed`.

    `used`: sums of which an estimate was taken. `inside`: whether loops of the program may work on estimates.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.inside = True
        self.used = 0
        self._made_of: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    def can(self, form: Form) -> bool:
        """Whether a value of this form can be estimated."""
        return self.allowed and (isinstance(form, OwnEstimate) or (isinstance(form, Partial) and form.kind == "add"))

    def note(self, k: int, read: Iterable[Ref], results: Iterable[Ref], waits: bool = False) -> None:
        """Remembers what op k's results are made of; if it `waits`, no estimate is taken for it yet."""
        if not self.allowed:
            return
        made_of = seen = taken = 0
        for v, form in read:
            mine = self._made_of.get(v, 0)
            seen |= self._seen.get(v, 0)
            if isinstance(form, Split):
                # A part of the batch has no sums; this is an estimate that is spread over examples.
                taken |= mine
                made_of |= 1 << k
            elif isinstance(form, OwnEstimate):
                taken |= mine
            else:
                made_of |= mine
        if not waits:
            self.used |= taken
        for v, form in results:
            if isinstance(form, Partial):
                self._made_of[v], self._seen[v] = made_of, seen | taken
            elif isinstance(form, OwnEstimate):
                self._made_of[v], self._seen[v] = (made_of & ~(1 << k)) | taken, seen
            else:
                self._seen[v] = seen | taken

    def merge(self, target: int, source: int) -> bool:
        """A carry is also made of what another value is made of; whether that is new."""
        before = self._made_of.get(target, 0), self._seen.get(target, 0)
        self._made_of[target] = before[0] | self._made_of.get(source, 0)
        self._seen[target] = before[1] | self._seen.get(source, 0)
        return before != (self._made_of[target], self._seen[target])

    def for_sum(self, op: Op, forms: Sequence[Form], anyway: bool) -> list[Form] | None:
        """The forms of an op's operands, some as estimates, with which its result may be a sum; None if there are none.

        A sum that was made with a micro-batch's estimate of a value goes with the same estimate when multiplied by the
        value: that is how gradients look. Two sums of the data do not, nor the gradient with its own norm. `anyway`:
        what is an estimate already stays one.
        """
        found, estimated = list(forms), any(isinstance(form, OwnEstimate) for form in forms)
        if not self.allowed or op.name not in _LINEAR:
            return None if estimated else found
        sums = [i for i, form in enumerate(forms) if self.can(form) and isinstance(form, Partial)]
        if len(sums) == 2 and op.name != "stablehlo.select":
            for a, b in ((1, 0), (0, 1)):
                if self._goes_with(op.operands[a], op.operands[b]):
                    found[a] = ESTIMATE
                    break
        elif not anyway:
            for i, form in enumerate(forms):
                if isinstance(form, OwnEstimate) and not any(
                    self._goes_with(op.operands[i], op.operands[j]) for j in sums
                ):
                    return None
        return found

    def _goes_with(self, v: int, total: int) -> bool:
        """Whether a sum was made with the estimate of what v is made of, and is none of it."""
        made_of = self._made_of.get(v, 0)
        return bool(made_of & self._seen.get(total, 0)) and bool(self._made_of.get(total, 0) & ~made_of)


def as_whole(forms: Sequence[Form]) -> list[Form]:
    """Forms with what a micro-batch takes for the whole as the whole."""
    return [WHOLE if isinstance(form, OwnEstimate) else form for form in forms]


def as_estimates(forms: Sequence[Form]) -> list[Form]:
    """Forms with sums estimated."""
    return [form if isinstance(form, Whole) else ESTIMATE for form in forms]


def bits(mask: int) -> Iterator[int]:
    """The ops of a bit mask, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

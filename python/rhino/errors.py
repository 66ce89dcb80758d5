"""The one exception users see: a message that names the place, the cause and the remedy.

Every command prints it as one line and exits 1; a Python pass raises it and `rhino-opt` shows it at its location.
"""

from __future__ import annotations

from collections.abc import Iterable


class RhinoError(Exception):
    """Bad input or an unsatisfiable request.

    Args:
      message: lower-case sentence naming both values that disagree.
      remedy: what the user can do about it, printed as a note; empty when the message says it already.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message if not remedy else f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy


# How a step gets into a file, for remedies: the text to write there.
LOWERED = "jax.jit(step).lower(*args).as_text(debug_info=True)"
JAX_WRITES = f"jax writes one: {LOWERED}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of some names that was probably meant: the shortest with `word` inside, else a close one, else ""."""
    from difflib import get_close_matches

    names = list(known)
    inside = [name for name in names if len(word) > 2 and word.lower() in name.lower()]
    return min(inside, key=len, default="") or next(iter(get_close_matches(word, names, n=1)), "")


_LONGEST = 500


def first_line(error: BaseException | str) -> str:
    """What MLIR, XLA or jax say, as far as it helps: the first line, of 500 characters at most.

    Theirs go on with whole modules. Everything of theirs that a user sees goes through here.
    """
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class RhinoWarning(UserWarning):
    """Something of the user's program that a plan does not follow; the line is that of the program."""


class NoPlan(RhinoError):
    """There is no plan of the kind that was looked for, and there may be one of another kind.

    Searches take only this for an answer: every other error is of the input, or a bug.
    """


class NothingFits(NoPlan):
    """No plan that was looked for is within the memory limit; others may be, such as pipelines."""


class NotFaster(NoPlan):
    """A plan was found, and the one that there is takes no longer; `step_time_s` and `peak_bytes` are of what lost."""

    def __init__(self, name: str, step_time_s: float, peak_bytes: int, rival_s: float) -> None:
        super().__init__(f"{name} takes {step_time_s:.3g} s, not less than the {rival_s:.3g} s there are")
        self.name, self.step_time_s, self.peak_bytes = name, step_time_s, peak_bytes


class Costly(NoPlan):
    """No plan of the kind that was looked for takes less than `least_s` seconds; a pipeline may."""

    def __init__(self, message: str, least_s: float) -> None:
        super().__init__(message)
        self.least_s = least_s


class NotPipelined(NoPlan):
    """The step cannot be a pipeline, or not this one; the message says why. One program may do."""

"""How the forms of a step are told to people. Owns their names, and what is said of those that lost."""

from __future__ import annotations

from collections.abc import Mapping

from rhino.machine.units import nbytes
from rhino.program.alternative import Alternative
from rhino.sharding.form_bounds import Form, FormBounds, StepInParts
from rhino.sharding.outcome import Progress, as_alternative
from rhino.sharding.solution import Solution


def form_name(form: Form, programs: StepInParts) -> str:
    """Such as "4 micro-batches, 8 local sums, computing again all but dots of 1 loop"."""
    parts = f"{form.parts} micro-batches" if form.parts > 1 else "1 micro-batch"
    parts += f", {form.sums} local sums" if form.sums > 1 else ""
    return f"{parts}, computing again {programs.way(form.way).told.name}" if form.way else parts


def tell_by_name(tell: Progress | None, form: Form, programs: StepInParts) -> Progress | None:
    """What tells the progress of a form's search, by its name."""
    if tell is None:
        return None
    return lambda done, total, label: tell(done, total, f"{form_name(form, programs)}, {label}")


def other_forms(
    best: Form, found: Mapping[Form, Solution], lost: Mapping[Form, str], bounds: FormBounds
) -> tuple[Alternative, ...]:
    """What lost: meshes of the best form, and the best of every other that was begun."""
    chosen, programs = found[best], bounds.programs
    told = list(chosen.alternatives)
    for form, other in found.items():
        if form != best:
            told.append(as_alternative(form_name(form, programs), other.predicted, chosen.predicted))
    for form, free in bounds.free.items():
        if form not in found:
            why = f"its fastest plan needs {nbytes(free.peak_bytes)} of {nbytes(free.limit_bytes)}"
            why += f"; {lost[form]}" if form in lost else ""
            told.append(Alternative(form_name(form, programs), why, free.step_time_s, free.peak_bytes))
    return tuple(sorted(told, key=lambda a: a.rank))

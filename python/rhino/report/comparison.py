"""Plans of one step side by side: what each takes, what is laid out differently, and what that costs, for people.

Owns the comparison's rows and sentences. Knows nothing of how plans are made.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from rhino.machine.units import nbytes, seconds
from rhino.plan import PlanData, Sharding, Tensor
from rhino.program.operations import COLLECTIVES
from rhino.report.groups import group, mirrors, shared_prefix
from rhino.report.measured import Measured
from rhino.report.rows import ROLES, collective_rows, memory_rows, time_rows
from rhino.report.text import WIDTH, empty_table
from rhino.report.units import device_bytes, mesh_text, pipeline_text, sharding_text, tensor_type

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MOST_ROWS = 12
_AS_PARAM = "as parameter"
_MOST_SENTENCES = 3
# Differences of less than this share of the slower step are not worth a sentence.
_NOTABLE = 0.01


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """One of the plans.

    Attributes:
      notes: what its author should know of it.
      sent: by the number of a parameter, (bytes, seconds) of what a device sends for it in a step, before any of it is
        hidden behind computing; `rest` of what is for no parameter, and `kinds` all of it by kind of collective. Empty
        of pipelines.
      measured: what XLA measured, where it was compiled.
      source: what XLA compiles, where that is not the plan's module.
    """

    name: str
    plan: PlanData
    notes: tuple[str, ...] = ()
    sent: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    rest: tuple[float, float] = (0.0, 0.0)
    kinds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    measured: Measured | None = None
    source: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Difference:
    """Arguments alike that lie differently in two plans; of all `count` together, per device and step.

    `theirs` and `ours` are their layouts; `bytes_*` what they take, `sent_*` and `seconds_*` what is sent for them.
    """

    role: str
    name: str
    type: str
    count: int
    theirs: str
    ours: str
    bytes_theirs: int
    bytes_ours: int
    sent_theirs: float
    sent_ours: float
    seconds_theirs: float
    seconds_ours: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Others' plans of a step against Rhino's. `limit_bytes` is what a plan may use of a device's memory."""

    cluster: str
    limit_bytes: int
    ours: ComparedPlan
    others: tuple[ComparedPlan, ...]

    def fits(self, one: ComparedPlan) -> bool:
        """Whether a plan is predicted to fit."""
        return one.plan.predicted.peak_bytes <= self.limit_bytes

    def differences(self, other: ComparedPlan) -> list[Difference]:
        """What the other plan lays out otherwise, the dearest first, repeated layers as one."""
        return differences(other, self.ours)

    def explanation(self, other: ComparedPlan) -> list[str]:
        """Why one of the plans is faster than the other, a sentence each."""
        return list(sentences(self, other))

    def __str__(self) -> str:
        from rich.console import Console

        buffer = io.StringIO()
        self.print(Console(file=buffer, width=WIDTH, color_system=None))
        return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"

    def print(self, console: Console) -> None:
        """Print it on a console of rich."""
        for part in _parts(self):
            console.print(part)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "cluster": self.cluster,
            "limit_bytes": self.limit_bytes,
            "plans": [_plain(one, self.fits(one)) for one in (self.ours, *self.others)],
            "comparisons": [
                {
                    "with": other.name,
                    "explanation": self.explanation(other),
                    "differences": [
                        {name: getattr(row, name) for name in Difference.__slots__} for row in self.differences(other)
                    ],
                }
                for other in self.others
            ],
        }


def _plain(one: ComparedPlan, fits: bool) -> dict[str, Any]:
    predicted, measured = one.plan.predicted, one.measured
    return {
        "name": one.name,
        "mesh": [list(axis) for axis in one.plan.mesh],
        "stages": one.plan.stages,
        "microbatches": one.plan.microbatches,
        "fits": fits,
        "step_time_s": predicted.step_time_s,
        "compute_s": predicted.compute_s,
        "comm_s": predicted.comm_s,
        "peak_bytes": predicted.peak_bytes,
        "comm_bytes": dict(predicted.comm_bytes),
        "comm_s_by_kind": {kind: spent for kind, (_, spent) in one.kinds.items()},
        "notes": list(one.notes),
        **(
            {"measured": {"peak_bytes": measured.peak_bytes, "comm_bytes": dict(measured.comm_bytes)}}
            if measured
            else {}
        ),
    }


def differences(theirs: ComparedPlan, ours: ComparedPlan) -> list[Difference]:
    """See `Comparison.differences`. Empty where the plans have other arguments."""
    pairs = list(zip(theirs.plan.arguments, ours.plan.arguments, strict=False))
    if len(theirs.plan.arguments) != len(ours.plan.arguments) or any(a.shape != b.shape for a, b in pairs):
        return []
    number = {id(mine): i for i, (_, mine) in enumerate(pairs)}
    unlike = [mine for a, mine in pairs if not _alike(a, theirs.plan, mine, ours.plan)]
    as_param = _as_params(theirs.plan) & _as_params(ours.plan)
    found = []

    def row(role: str, name: str, kind: str, layouts: tuple[str, str], at: Sequence[int]) -> Difference:
        held = [sum(device_bytes(pairs[i][n], one.plan) for i in at) for n, one in enumerate((theirs, ours))]
        sent = [[one.sent.get(i, (0.0, 0.0)) for i in at] for one in (theirs, ours)]
        size, spent = ([sum(entry[n] for entry in side) for side in sent] for n in (0, 1))
        return Difference(role, name, kind, len(at), *layouts, held[0], held[1], size[0], size[1], spent[0], spent[1])

    if held := [i for mine in unlike if (i := number[id(mine)]) in as_param]:
        found.append(row(ROLES["opt_state"], ROLES["opt_state"], "", (_AS_PARAM, _AS_PARAM), held))
    rest = [mine for mine in unlike if number[id(mine)] not in as_param]
    for alike in group(rest, lambda mine: pairs[number[id(mine)]][0].sharding):
        at = [number[id(mine)] for mine in alike.tensors]
        one, other = pairs[at[0]]
        layouts = sharding_text(one.sharding), _stored(other)
        found.append(row(ROLES.get(other.role, other.role), alike.name, tensor_type(one), layouts, at))
    return sorted(found, key=_rank)


def _as_params(plan: PlanData) -> frozenset[int]:
    """The numbers of the arguments that are optimizer state and lie as the parameters of the same keys."""
    held = {id(tensor) for mirror in mirrors(plan.arguments)[0] if not mirror.over for tensor in mirror.tensors}
    return frozenset(i for i, tensor in enumerate(plan.arguments) if id(tensor) in held)


def _stored(tensor: Tensor) -> str:
    """A layout, of the shape that the tensor is stored in where that is another."""
    text = sharding_text(tensor.sharding)
    return f"{text} of [{','.join(map(str, tensor.stored_shape))}]" if tensor.is_strided else text


def _rank(row: Difference) -> tuple[float, float, str]:
    return -abs(row.seconds_theirs - row.seconds_ours), -abs(row.bytes_theirs - row.bytes_ours), row.name


def _alike(one: Tensor, plan: PlanData, other: Tensor, others: PlanData) -> bool:
    """Whether each device has the same part, whatever the axes are called."""
    if one.stages or other.stages or one.stored_shape != other.stored_shape:
        return not any(one.sharding) and not any(other.sharding) and one.stages == other.stages
    return _places(one.sharding, plan.mesh) == _places(other.sharding, others.mesh)


@functools.lru_cache(maxsize=4096)
def _places(sharding: Sharding, mesh: tuple[tuple[str, int], ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """By device, (which part, of how many) along each dimension; sub-axes as texts of their own are whole axes."""
    names = [name for name, _ in mesh]
    found = []
    for place in product(*(range(size) for _, size in mesh)):
        at = dict(zip(names, zip(place, (size for _, size in mesh), strict=True), strict=True))
        parts = []
        for axes in sharding:
            part, of = 0, 1
            for axis in axes:
                index, size = at[axis.partition(":")[0]]
                part, of = part * size + index, of * size
            parts.append((part, of))
        found.append(tuple(parts))
    return tuple(found)


# --- sentences --------------------------------------------------------------------------------------------------------


def sentences(whole: Comparison, other: ComparedPlan) -> Sequence[str]:
    """See `Comparison.explanation`."""
    theirs, ours = other.plan.predicted, whole.ours.plan.predicted
    lost_s = theirs.step_time_s - ours.step_time_s
    found = [f"{other.name} takes {seconds(theirs.step_time_s)} a step, {_than(theirs.step_time_s, ours.step_time_s)}."]
    for one in (other, whole.ours):
        if not whole.fits(one):
            need, have = nbytes(one.plan.predicted.peak_bytes), nbytes(whole.limit_bytes)
            found.append(f"{one.name} does not fit: it needs {need} of a device, and may use {have}.")
    slower = max(theirs.step_time_s, ours.step_time_s)
    compute_s, comm_s = theirs.compute_s - ours.compute_s, theirs.comm_s - ours.comm_s
    parts = [
        f"{_more(value)} {what}"
        for what, value in (
            ("computing", compute_s),
            ("communication that computing does not hide", comm_s),
            ("idling between stages", theirs.bubble_s - ours.bubble_s),
        )
        if abs(value) >= _NOTABLE * slower
    ]
    if parts:
        found.append(f"Against Rhino's plan that is {' and '.join(parts)}.")
    kinds = [
        (theirs.comm_bytes.get(kind, 0) - ours.comm_bytes.get(kind, 0), kind)
        for kind in COLLECTIVES
        if theirs.comm_bytes.get(kind, 0) != ours.comm_bytes.get(kind, 0)
    ]
    if kinds and abs(comm_s) >= _NOTABLE * slower:
        ordered = sorted(kinds, key=lambda pair: (-abs(pair[0]), pair[1]))[:2]
        texts = [f"{nbytes(abs(size))} {'more' if size > 0 else 'less'} by {kind}" for size, kind in ordered]
        found.append(f"A device sends {' and '.join(texts)}.")
    told = [row for row in whole.differences(other) if abs(row.seconds_theirs - row.seconds_ours) >= _NOTABLE * slower]
    for row in sorted(told, key=lambda row: (row.seconds_theirs < row.seconds_ours) != (lost_s < 0))[:_MOST_SENTENCES]:
        each = f"{row.count} x " if row.count > 1 else ""
        found.append(
            f"{each}{row.name}: {row.theirs} instead of {row.ours} sends {nbytes(round(row.sent_theirs))} instead of "
            f"{nbytes(round(row.sent_ours))}, which takes {seconds(row.seconds_theirs)} instead of "
            f"{seconds(row.seconds_ours)}."
        )
    here, there = whole.ours.rest[1], other.rest[1]
    if other.kinds and whole.ours.kinds and abs(there - here) >= _NOTABLE * slower:
        found.append(
            f"For activations alone it sends {nbytes(round(other.rest[0]))} instead of "
            f"{nbytes(round(whole.ours.rest[0]))}, which takes {seconds(there)} instead of {seconds(here)}."
        )
    return found


def _than(theirs_s: float, ours_s: float) -> str:
    share = theirs_s / ours_s - 1
    if abs(share) < 5e-4:
        return "as long as Rhino's plan"
    if share >= 1:
        return f"{1 + share:.1f} times as long as Rhino's plan ({seconds(ours_s)})"
    return f"{abs(share):.1%} {'longer' if share > 0 else 'less'} than Rhino's plan ({seconds(ours_s)})"


def _more(value: float) -> str:
    return f"{seconds(abs(value))} {'more' if value > 0 else 'less'}"


# --- tables -----------------------------------------------------------------------------------------------------------


def _parts(whole: Comparison) -> list[RenderableType]:
    from rich.text import Text

    plans = (whole.ours, *whole.others)
    shown = empty_table(["per device and step", *(one.name for one in plans)], right=range(1, len(plans) + 1))
    shown.add_row("mesh", *(mesh_text(one.plan) for one in plans))
    for name, cells in _rows(whole, plans):
        shown.add_row(name, *cells)
    parts: list[RenderableType] = [Text(f"Plans for {whole.cluster}, predicted\n", "bold"), shown]
    for other in whole.others:
        parts += [Text(""), *(Text(line) for line in whole.explanation(other))]
        parts += _table_of(whole.differences(other), other)
        parts += _notes(other)
    return [*parts, *_notes(whole.ours)]


def _notes(one: ComparedPlan) -> list[RenderableType]:
    from rich.text import Text

    return [Text(""), *(Text(f"{one.name}: {note}", "yellow") for note in one.notes)] if one.notes else []


def _rows(whole: Comparison, plans: Sequence[ComparedPlan]) -> list[tuple[str, list[str]]]:
    """What is compared, and the figure of each plan."""
    rows: dict[str, dict[int, str]] = {}

    def put(name: str, i: int, text: str) -> None:
        rows.setdefault(name, {})[i] = text

    for i, one in enumerate(plans):
        if one.plan.schedule != "none":
            put("pipeline", i, pipeline_text(one.plan))
        elif one.plan.microbatches > 1:
            local = f", {one.plan.local_sums} local sums" if one.plan.local_sums > 1 else ""
            put("micro-batches", i, f"{one.plan.microbatches}{local}")
        if one.plan.recomputation is not None:
            put("computed again", i, one.plan.recomputation.name)
    for i, one in enumerate(plans):
        put("step", i, seconds(one.plan.predicted.step_time_s))
        for name, spent in time_rows(one.plan):
            put(f"  {name}", i, seconds(spent))
    for kind in COLLECTIVES:
        for i, one in enumerate(plans):
            if kind in one.kinds:
                put(f"  {kind}, before hiding", i, seconds(one.kinds[kind][1]))
    sent = [{row.name: row for row in collective_rows(one.plan, None)} for one in plans]
    for kind in COLLECTIVES:
        for i, found in enumerate(sent):
            if kind in found:
                put(f"sent by {kind}", i, found[kind].predicted)
    for i, one in enumerate(plans):
        for row in memory_rows(one.plan, None)[:2]:
            put(row.name, i, row.predicted)
        put(f"fits in {nbytes(whole.limit_bytes)}", i, "yes" if whole.fits(one) else "no")
    for kind in COLLECTIVES:
        for i, one in enumerate(plans):
            if one.measured is not None and (kind in one.measured.comm_bytes):
                put(f"XLA: sent by {kind}", i, nbytes(one.measured.comm_bytes[kind]))
    for i, one in enumerate(plans):
        if one.measured is not None:
            put("XLA: peak memory", i, nbytes(one.measured.peak_bytes))
    return [(name, [cells.get(i, "-") for i in range(len(plans))]) for name, cells in rows.items()]


def _table_of(found: Sequence[Difference], other: ComparedPlan) -> list[RenderableType]:
    from rich.text import Text

    if not found:
        return []
    prefix = shared_prefix([row.name for row in found if row.role == ROLES["param"]])
    shown = empty_table(["laid out differently", "", other.name, "Rhino", "memory", "sending takes"], right=(4, 5))
    # Where there is no room names are folded, not figures.
    for column in shown.columns[1:]:
        column.no_wrap = True
    for row in found[:_MOST_ROWS]:
        name = f"...{row.name.removeprefix(prefix)}" if prefix and row.name.startswith(prefix) else row.name
        count = f"x {row.count}" if row.count > 1 else ""
        memory = _change(row.bytes_theirs, row.bytes_ours, nbytes)
        takes = _change(row.seconds_theirs, row.seconds_ours, seconds)
        shown.add_row(Text(name), count, Text(row.theirs), Text(row.ours), memory, takes)
    left = found[_MOST_ROWS:]
    more = [Text(f"and {sum(row.count for row in left)} arguments of {len(left)} more kinds", "dim")] if left else []
    head = [Text(f"... is {prefix}", "dim")] if prefix else []
    return [Text(""), *head, shown, *more]


def _change(theirs: float, ours: float, text: Any) -> str:
    """Both figures, theirs first; one where they are the same, nothing for none."""
    if theirs == ours:
        return str(text(ours)) if ours else ""
    return f"{text(theirs)} / {text(ours)}"

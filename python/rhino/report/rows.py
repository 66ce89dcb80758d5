"""What a report says, as rows of text without a layout: the terminal and the page show the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhino.machine.padding import describe, gains
from rhino.machine.units import nbytes, seconds
from rhino.plan import PlanData, Tensor
from rhino.program.operations import COLLECTIVES
from rhino.report.groups import group, mirrors
from rhino.report.measured import Measured
from rhino.report.units import device_bytes, flops, percent, sharding_text, tensor_type

ROLES = {"param": "parameter", "opt_state": "optimizer state", "batch": "batch", "other": "other"}
_PARTS = (
    ("argument_bytes", "arguments"), ("output_bytes", "results"), ("temp_bytes", "temporaries"),
    ("host_bytes", "on the host"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """A predicted quantity beside what XLA measured; `error` is the prediction's distance from it."""

    name: str
    predicted: str
    measured: str = ""
    error: str = ""


def time_rows(plan: PlanData) -> list[tuple[str, float]]:
    """(what, seconds) of the parts of a step that take time, computing first."""
    predicted = plan.predicted
    rows = [
        ("computing", predicted.compute_s),
        ("communication", predicted.comm_s),
        ("pipeline idle", predicted.bubble_s),
    ]
    return [row for row in rows if row[1] > 0 or row[0] == "computing"]


def host_line(period_s: float, step_s: float) -> str:
    """That a step waits for its host, from the seconds between two steps and those of its devices; "" if none does."""
    if period_s <= step_s:
        return ""
    return (
        f"but its host takes {seconds(period_s)} to start all that, so a step takes as long; fewer arrays (layers in a "
        "scan) and fewer kernels take less"
    )


def memory_rows(plan: PlanData, measured: Measured | None) -> list[Compared]:
    """Peak memory of a device and its parts."""
    predicted = plan.predicted
    pairs = [("peak memory", predicted.peak_bytes, measured.peak_bytes if measured else None)]
    for key, name in _PARTS:
        if key in predicted.memory:
            pairs.append((name, predicted.memory[key], measured.memory.get(key) if measured else None))
    return [
        Compared(name, nbytes(ours), "" if xla is None else nbytes(xla), "" if xla is None else percent(ours, xla))
        for name, ours, xla in pairs
    ]


def collective_rows(plan: PlanData, measured: Measured | None) -> list[Compared]:
    """Bytes that a device sends per step by kind of collective, with the number of executions."""
    predicted = plan.predicted
    rows = []
    for kind in COLLECTIVES:
        ours, xla = predicted.comm_bytes.get(kind, 0), measured.comm_bytes.get(kind, 0) if measured else 0
        if ours or xla or predicted.collectives.get(kind):
            count = measured.collectives.get(kind, 0) if measured else 0
            rows.append(
                Compared(
                    kind,
                    _sent(ours, predicted.collectives.get(kind)),
                    _sent(xla, count) if measured else "",
                    percent(ours, xla) if measured else "",
                )
            )
    return rows


def _sent(sent_bytes: int, count: int | None) -> str:
    return nbytes(sent_bytes) + (f" in {count}" if count else "")


@dataclass(frozen=True, slots=True)
class TensorRow:
    """Tensors of one kind: `count` of them, which take `device_bytes` together on every device."""

    role: str
    name: str
    type: str
    sharding: str
    count: int
    device_bytes: int
    split: bool


def tensor_rows(plan: PlanData) -> list[TensorRow]:
    """The arguments, parameters first, repeated layers as one row."""
    return _rows(plan, plan.arguments)


def short_tensor_rows(plan: PlanData) -> list[TensorRow]:
    """As `tensor_rows`, but optimizer state that is split as its parameters are, or further, is a row for each kind."""
    held, rest = mirrors(plan.arguments)
    rows = [
        TensorRow(
            ROLES["opt_state"],
            f"{mirror.name}...",
            ", ".join(dict.fromkeys(tensor.dtype for tensor in mirror.tensors)),
            "as parameter"
            + (f", and over {', '.join(mirror.over)}" if mirror.over else "")
            + ", on the host" * mirror.hosted,
            len(mirror.tensors),
            sum(device_bytes(tensor, plan) for tensor in mirror.tensors),
            True,
        )
        for mirror in held
    ]
    others = _rows(plan, rest)
    first = next((i for i, row in enumerate(others) if row.role != ROLES["param"]), len(others))
    return [*others[:first], *rows, *others[first:]]


def _rows(plan: PlanData, tensors: Sequence[Tensor]) -> list[TensorRow]:
    order = list(ROLES)
    groups = sorted(group(tensors), key=lambda g: order.index(g.tensor.role) if g.tensor.role in order else len(order))
    return [
        TensorRow(
            ROLES.get(g.tensor.role, g.tensor.role),
            g.name,
            tensor_type(g.tensor),
            sharding_text(g.tensor.sharding) + ", on the host" * bool(g.tensor.memory),
            g.count,
            device_bytes(g.tensor, plan) * g.count,
            any(g.tensor.sharding),
        )
        for g in groups
    ]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Calls of a kernel: how often, split how, and what they and the changes of layout around them take.

    `note` says why they are computed whole, and where they are.
    """

    name: str
    count: int
    sharding: str
    arithmetic: str
    time: str
    sent: str
    note: str


def kernel_rows(plan: PlanData) -> list[KernelRow]:
    """The kernels of a plan, in the order of the program."""
    return [
        KernelRow(
            use.name,
            use.count,
            sharding_text(use.dims) if use.dims else "",
            flops(use.flops) if use.flops else "",
            seconds(use.time_s),
            nbytes(use.sent_bytes) if use.sent_bytes else "",
            f"{use.name} at {use.where} is computed whole by every device: {use.replicated}" if use.replicated else "",
        )
        for use in plan.kernels
    ]


def unsplit_lines(plan: PlanData) -> list[str]:
    """What was not split because of its size, and what padding would give: a line each."""
    now = plan.predicted.step_time_s, plan.predicted.peak_bytes
    return [describe(one, plan.devices, *now) for one in plan.unsplit if gains(one, *now)]


@dataclass(frozen=True, slots=True)
class AlternativeRow:
    """A candidate and its fate; the first row is the one chosen."""

    name: str
    step_time: str
    peak: str
    why: str


def alternative_rows(plan: PlanData) -> list[AlternativeRow]:
    """The chosen mesh, then those that lost."""
    rows = [
        AlternativeRow(
            plan.shape_name, seconds(plan.predicted.step_time_s), nbytes(plan.predicted.peak_bytes), "chosen"
        )
    ]
    for entry in plan.alternatives:
        time = "" if entry.step_time_s is None else seconds(entry.step_time_s)
        rows.append(AlternativeRow(entry.name, time, nbytes(entry.peak_bytes) if entry.peak_bytes else "", entry.why))
    return rows

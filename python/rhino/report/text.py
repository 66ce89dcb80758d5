"""The summary of a plan for terminals, with rich's tables: as a string, or printed in colour by the command line."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rhino.machine.units import counted, nbytes, seconds
from rhino.plan import PlanData
from rhino.report import rows
from rhino.report.measured import Measured
from rhino.report.units import mesh_text, microbatches_text, pipeline_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDTH = 120


def summary(plan: PlanData, measured: Measured | None = None) -> str:
    """The summary as plain text of 120 columns at most."""
    from rich.console import Console

    buffer = io.StringIO()
    print_summary(plan, Console(file=buffer, width=WIDTH, color_system=None), measured)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def short(plan: PlanData) -> str:
    """The plan in one line."""
    predicted = plan.predicted
    time, peak = seconds(predicted.step_time_s), nbytes(predicted.peak_bytes)
    return f"<Plan for {plan.cluster}: {plan.shape_name}, {len(plan.arguments)} arguments, {time} a step, peak {peak}>"


def print_summary(plan: PlanData, console: Console, measured: Measured | None = None) -> None:
    """Print the summary on a console."""
    for part in _parts(plan, measured):
        console.print(part)


def _parts(plan: PlanData, measured: Measured | None) -> list[RenderableType]:
    from rich.text import Text

    head = Text.assemble(
        ("Plan", "bold"), f" for {plan.cluster}, {counted(plan.devices, 'device')}, level {plan.level}\n"
    )
    head.append(f"mesh  {mesh_text(plan)}" + ("  (outermost first)" if len(plan.mesh) > 1 else ""))
    if plan.schedule != "none":
        head.append(f"\npipeline  {pipeline_text(plan)}")
    elif plan.microbatches > 1:
        head.append(f"\nmicro-batches  {microbatches_text(plan)}")
    if plan.recomputation is not None:
        head.append(f"\ncomputed again  {plan.recomputation.name}")
    if plan.statistics != "batch":
        head.append(f"\nstatistics  by {plan.statistics}, as asked for: not the numbers of one device")
    parts: list[RenderableType] = [head, Text(""), Text(_time_line(plan), "bold")]
    if waiting := rows.host_line(plan.predicted.period_s, plan.predicted.step_time_s):
        parts.append(Text(waiting, "yellow"))
    compared = [*rows.memory_rows(plan, measured), *rows.collective_rows(plan, measured)]
    columns = ["per device and step", "predicted", *(["measured by XLA", "predicted is off by"] if measured else [])]
    table = empty_table(columns, right=range(1, len(columns)))
    for row in compared:
        table.add_row(*([row.name, row.predicted, row.measured, row.error][: len(columns)]))
    parts += [table, Text("")]
    table = empty_table(["", "argument", "type", "sharding", "", "per device"], right=(4, 5))
    role = ""
    for tensor in rows.short_tensor_rows(plan):
        count = f"x {tensor.count}" if tensor.count > 1 else ""
        table.add_row(
            tensor.role if tensor.role != role else "",
            Text(tensor.name),
            Text(tensor.type),
            Text(tensor.sharding, "" if tensor.split else "dim"),
            count,
            nbytes(tensor.device_bytes),
        )
        role = tensor.role
    parts += [table, Text("")]
    parts += _kernels(plan)
    if found := rows.unsplit_lines(plan):
        parts += [*(Text(line, "yellow") for line in found), Text("")]
    table = empty_table(["candidate", "step", "peak", ""], right=(1, 2))
    for i, entry in enumerate(rows.alternative_rows(plan)):
        table.add_row(entry.name, entry.step_time, entry.peak, Text(entry.why, "green" if i == 0 else ""))
    parts.append(table)
    return parts


def _kernels(plan: PlanData) -> list[RenderableType]:
    from rich.text import Text

    found = rows.kernel_rows(plan)
    if not found:
        return []
    columns = ["kernel", "", "first operand", "arithmetic", "time", "sent around it"]
    table = empty_table(columns, right=(3, 4, 5))
    for row in found:
        style = "yellow" if row.note else ""
        cells = (f"x {row.count}", row.sharding, row.arithmetic, row.time, row.sent)
        table.add_row(Text(row.name, style), *cells)
    notes = list(dict.fromkeys(row.note for row in found if row.note))
    return [table, *(Text(note, "yellow") for note in notes), Text("")]


def _time_line(plan: PlanData) -> str:
    times = ", ".join(f"{name} {seconds(value)}" for name, value in rows.time_rows(plan))
    return f"predicted step time {seconds(plan.predicted.step_time_s)}  ({times})"


def empty_table(columns: Sequence[str], right: Sequence[int]) -> Table:
    """A table as summaries have it, with some columns flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in right else "left", overflow="fold")
    return table

"""The plan as one HTML page that needs nothing else: no network, no fonts, no libraries; readable in light and dark.

Owns the page's structure; its style and script are in `page.css` and `page.js` beside it, put inline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from rhino.errors import RhinoError
from rhino.machine.units import counted, nbytes, seconds
from rhino.plan import PlanData
from rhino.program.operations import COLLECTIVES
from rhino.report import rows
from rhino.report.measured import Measured
from rhino.report.units import mesh_text, microbatches_text, pipeline_text


def page(plan: PlanData, measured: Measured | None = None) -> str:
    """The page. Deterministic: equal plans give equal pages."""
    title = f"Plan for {plan.cluster}"
    sections = [
        _head(plan),
        _time(plan),
        _compared("Memory on one device", rows.memory_rows(plan, measured), _memory_bars(plan, measured)),
        _compared(
            "Communication per step, sent by one device",
            rows.collective_rows(plan, measured),
            _comm_bars(plan, measured),
        ),
        _tensors(plan),
        _kernels(plan),
        _unsplit(plan),
        _alternatives(plan),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + f"\n</main>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def frame(plan: PlanData) -> str:
    """The page inside another one, a notebook's: framed, so that neither's style is the other's."""
    return f'<iframe srcdoc="{escape(page(plan))}" style="width:100%;height:600px;border:0"></iframe>'


def write(text: str, path: Path) -> None:
    """Write a page. RhinoError if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RhinoError(f"{path}: cannot write: {error.strerror}", "give a path that can be written") from None


def _asset(name: str) -> str:
    return files("rhino.report").joinpath(name).read_text(encoding="utf-8")


def _head(plan: PlanData) -> str:
    facts = [
        ("step time", seconds(plan.predicted.step_time_s)),
        ("peak memory", nbytes(plan.predicted.peak_bytes)),
        ("sent per step", nbytes(sum(plan.predicted.comm_bytes.values()))),
        ("mesh", " | ".join(_mesh(mesh) for mesh in plan.meshes or (plan.mesh,))),
    ]
    if plan.schedule != "none":
        facts.append(("pipeline", escape(pipeline_text(plan))))
    elif plan.microbatches > 1:
        facts.append(("micro-batches", microbatches_text(plan)))
    if plan.recomputation is not None:
        facts.append(("computed again", escape(plan.recomputation.name)))
    if plan.statistics != "batch":
        facts.append(("statistics", f"by {escape(plan.statistics)}, not the numbers of one device"))
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    about = f"{counted(plan.devices, 'device')} &middot; level {escape(plan.level)}"
    return (
        f"<header><h1>Plan for {escape(plan.cluster)}</h1><p>{about}, predicted per step</p><dl>{cells}</dl></header>"
    )


def _mesh(mesh: Sequence[tuple[str, int]]) -> str:
    return " &times; ".join(f"{size}<small>{escape(axis)}</small>" for axis, size in mesh) or "1"


def _time(plan: PlanData) -> str:
    parts = rows.time_rows(plan)
    total = sum(value for _, value in parts) or 1.0
    pieces = "".join(
        f'<span class="s{i}" style="width:{100 * value / total:.2f}%" title="{name}: {seconds(value)}"></span>'
        for i, (name, value) in enumerate(parts)
    )
    legend = "".join(
        f'<li><i class="s{i}"></i>{name} <b>{seconds(value)}</b></li>' for i, (name, value) in enumerate(parts)
    )
    hidden = total - plan.predicted.step_time_s
    note = f"<p>{seconds(hidden)} of communication runs while the device computes.</p>" if hidden > 0.01 * total else ""
    if waiting := rows.host_line(plan.predicted.period_s, plan.predicted.step_time_s):
        note += f"<p>{seconds(plan.predicted.step_time_s)}, {waiting}.</p>"
    bar = f'<div class="stack">{pieces}</div><ul class="legend">{legend}</ul>'
    return f"<section><h2>Where the time goes</h2>{bar}{note}</section>"


def _memory_bars(plan: PlanData, measured: Measured | None) -> list[tuple[str, float, float | None]]:
    found: list[tuple[str, float, float | None]] = [
        ("peak memory", plan.predicted.peak_bytes, measured.peak_bytes if measured else None)
    ]
    for key, value in plan.predicted.memory.items():
        found.append((key, value, measured.memory.get(key) if measured else None))
    return found


def _comm_bars(plan: PlanData, measured: Measured | None) -> list[tuple[str, float, float | None]]:
    ours, xla = plan.predicted.comm_bytes, measured.comm_bytes if measured else {}
    return [(kind, ours.get(kind, 0), xla.get(kind, 0) if measured else None) for kind in COLLECTIVES]


def _compared(title: str, table: Sequence[rows.Compared], amounts: Iterable[tuple[str, float, float | None]]) -> str:
    if not table:
        return f"<section><h2>{title}</h2><p>None.</p></section>"
    pairs = [(ours, xla) for _, ours, xla in amounts if ours or xla]
    top = max((max(ours, xla or 0) for ours, xla in pairs), default=1) or 1
    with_xla = any(row.measured for row in table)
    ours_head, xla_head = ('<i class="s0"></i>predicted', '<i class="s1"></i>measured by XLA')
    head = ["", "", *([ours_head, xla_head, "predicted is off by"] if with_xla else ["predicted"])]
    body = []
    for row, (ours, xla) in zip(table, pairs, strict=False):
        bar = f'<span class="bar s0" style="width:{100 * ours / top:.2f}%"></span>'
        if xla is not None:
            bar += f'<span class="bar s1" style="width:{100 * xla / top:.2f}%"></span>'
        cells = [escape(row.name), bar, row.predicted, *([row.measured, row.error] if with_xla else [])]
        body.append(_row(cells, number=range(2, len(cells)), classes={1: "bars"}))
    return f"<section><h2>{title}</h2>{_table(head, body, number=range(2, len(head)))}</section>"


def _tensors(plan: PlanData) -> str:
    body = []
    for row in rows.tensor_rows(plan):
        count = f"&times; {row.count}" if row.count > 1 else ""
        split = (
            f"<code>{escape(row.sharding)}</code>"
            if row.split
            else f'<code class="whole">{escape(row.sharding)}</code>'
        )
        cells = [
            f"<code>{escape(row.name)}</code> {count}",
            row.role,
            f"<code>{escape(row.type)}</code>",
            split,
            nbytes(row.device_bytes / row.count),
            nbytes(row.device_bytes),
        ]
        body.append(_row(cells, number=(4, 5)))
    head = ["argument", "role", "type", "sharding", "each", "together"]
    return (
        "<section><h2>Arguments</h2>"
        f"<p>A sharding names, for each dimension, the mesh axes that split it; mesh {escape(mesh_text(plan))}. "
        "Bytes are those of one device.</p>"
        '<input type="search" id="filter" aria-label="Filter arguments" '
        'placeholder="Filter: a name, a role, a type, a sharding">'
        f"{_table(head, body, number=(4, 5), name='arguments')}</section>"
    )


def _kernels(plan: PlanData) -> str:
    found = rows.kernel_rows(plan)
    if not found:
        return ""
    body = []
    for row in found:
        cells = [
            f"<code>{escape(row.name)}</code> &times; {row.count}", f"<code>{escape(row.sharding)}</code>",
            row.arithmetic, row.time, row.sent, escape(row.note),
        ]  # fmt: skip
        body.append(_row(cells, number=(2, 3, 4)))
    head = ["kernel", "first operand", "arithmetic", "time", "sent around it", ""]
    return f"<section><h2>Kernels</h2>{_table(head, body, number=(2, 3, 4))}</section>"


def _unsplit(plan: PlanData) -> str:
    found = rows.unsplit_lines(plan)
    if not found:
        return ""
    body = "".join(f"<li>{escape(line)}</li>" for line in found)
    return f"<section><h2>Sizes that do not divide</h2><ul>{body}</ul></section>"


def _alternatives(plan: PlanData) -> str:
    body = []
    for i, entry in enumerate(rows.alternative_rows(plan)):
        cells = [escape(entry.name), entry.step_time, entry.peak, escape(entry.why)]
        body.append(_row(cells, number=(1, 2), chosen=i == 0))
    table = _table(["candidate", "step time", "peak memory", ""], body, number=(1, 2))
    gap = f" The answer is within {100 * plan.search.gap:.1f} % of the proved bound." if plan.search.gap > 0 else ""
    return f"<section><h2>What was compared</h2><p>{plan.search.candidates} candidates.{gap}</p>{table}</section>"


def _table(head: Sequence[str], body: Sequence[str], number: Sequence[int], name: str = "") -> str:
    cells = "".join(f'<th{_number(i in number)} scope="col">{text}</th>' for i, text in enumerate(head))
    identity = f' id="{name}"' if name else ""
    head_and_body = f"<thead><tr>{cells}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll"><table{identity}>{head_and_body}</table></div>'


def _row(
    cells: Sequence[str], number: Sequence[int], classes: dict[int, str] | None = None, chosen: bool = False
) -> str:
    marks = classes or {}
    texts = "".join(
        f'<td class="{marks[i]}">{text}</td>' if i in marks else f"<td{_number(i in number)}>{text}</td>"
        for i, text in enumerate(cells)
    )
    return f"<tr{' class=chosen' if chosen else ''}>{texts}</tr>\n"


def _number(yes: bool) -> str:
    return ' class="number"' if yes else ""

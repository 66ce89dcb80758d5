"""The files of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism: read into problems and written.

JSON, gzipped where the name ends in `.gz`. It must not know how problems are solved.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from rhino.errors import RhinoError
from rhino.solver.problem import Alternatives, ChoiceProblem, Numbers, PairCosts


def read_contest(path: Path) -> ChoiceProblem:
    """The problem in a file of the contest. A node without usages uses no memory.

    Raises:
      RhinoError: the file is not there, is no JSON (or gzip), or is not such a problem; it names the file.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(text)
    except (OSError, EOFError, ValueError) as error:
        raise RhinoError(f"cannot read {path}: {error}", "give a problem of the contest, as JSON or gzipped") from None
    try:
        return _problem(document)
    except RhinoError as error:
        raise RhinoError(f"{path}: {error.message}", error.remedy) from None


def write_contest(problem: ChoiceProblem, path: Path) -> None:
    """Writes a problem as the contest's files are, the same bytes each time; gzipped where the name ends in `.gz`.

    Raises:
      RhinoError: the file cannot be written.
    """
    document = {
        "problem": {
            "name": problem.name,
            "nodes": {
                "intervals": [[node.start, node.end] for node in problem.nodes],
                "costs": [_plain(node.costs) for node in problem.nodes],
                "usages": [_plain(node.usages) for node in problem.nodes],
            },
            "edges": {
                "nodes": [[pair.left, pair.right] for pair in problem.pairs],
                "costs": [_plain(pair.costs.ravel()) for pair in problem.pairs],
            },
            "usage_limit": None if problem.limit is None else _plain(np.array([problem.limit]))[0],
        }
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    try:
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise RhinoError(f"cannot write {path}: {error.strerror}") from None


def _problem(document: object) -> ChoiceProblem:
    problem = _record(document, "problem", "the file")
    nodes = _record(problem, "nodes", "problem")
    edges = _record(problem, "edges", "problem") if problem.get("edges") else {}
    costs = _rows(nodes, "costs", None)
    intervals = _rows(nodes, "intervals", len(costs))
    usages = _rows(nodes, "usages", len(costs)) if nodes.get("usages") else [[] for _ in costs]
    ends = [_pair(row, f"interval of node {number}") for number, row in enumerate(intervals)]
    own = [_numbers(row, f"costs of node {number}") for number, row in enumerate(costs)]
    for number, cost in enumerate(own):
        if not len(cost):
            raise RhinoError(f"node {number} has no choice", "give it at least one cost")
    memory = [_numbers(row, f"usages of node {number}") for number, row in enumerate(usages)]
    alternatives = tuple(
        Alternatives(cost, used if len(used) else np.zeros(len(cost)), start, end)
        for cost, used, (start, end) in zip(own, memory, ends, strict=True)
    )
    tables = _rows(edges, "costs", None) if edges else []
    sides = _rows(edges, "nodes", len(tables)) if edges else []
    pairs = []
    for number, (row, table) in enumerate(zip(sides, tables, strict=True)):
        left, right = _pair(row, f"nodes of edge {number}")
        values = _numbers(table, f"costs of edge {number}")
        if not (0 <= left < len(own) and 0 <= right < len(own)):
            raise RhinoError(f"edge {number} joins nodes {left} and {right} of {len(own)}", "count nodes from 0")
        shape = (len(own[left]), len(own[right]))
        if len(values) != shape[0] * shape[1]:
            raise RhinoError(
                f"edge {number} has {len(values)} costs", f"{shape[0]} x {shape[1]} choices need a cost each"
            )
        pairs.append(PairCosts(left, right, values.reshape(shape)))
    limit = problem.get("usage_limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise RhinoError(f"usage_limit is {limit!r}, no number", "leave it out for no limit")
    return ChoiceProblem(
        alternatives, tuple(pairs), None if limit is None else float(limit), str(problem.get("name", ""))
    )


def _record(holder: object, key: str, where: str) -> dict[str, object]:
    found = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(found, dict):
        raise RhinoError(f'{where} has no record "{key}"', "give a problem of the contest")
    return found


def _rows(record: dict[str, object], key: str, count: int | None) -> list[object]:
    found = record.get(key)
    if not isinstance(found, list):
        raise RhinoError(f'there is no list "{key}"', "give a problem of the contest")
    if count is not None and len(found) != count:
        raise RhinoError(f'"{key}" has {len(found)} rows, not {count}', "give one row per row of costs")
    return found


def _pair(row: object, what: str) -> tuple[int, int]:
    if not (isinstance(row, list) and len(row) == 2 and all(type(x) is int for x in row)):
        raise RhinoError(f"{what} is {str(row)[:60]}, not two whole numbers", "give two numbers in brackets")
    return row[0], row[1]


def _numbers(row: object, what: str) -> Numbers:
    if not isinstance(row, list):
        raise RhinoError(f"{what} are {str(row)[:60]}, no list", "give a list of numbers")
    try:
        values = np.array(row, dtype=object if not row else None)
    except (ValueError, OverflowError):
        values = np.array([None])
    if values.ndim != 1 or (row and values.dtype.kind not in "iuf"):
        raise RhinoError(f"{what} are not all numbers", "give a list of numbers")
    return values.astype(np.float64)


def _plain(values: Numbers) -> list[float]:
    """Whole numbers without a point, as the contest's own files have them."""
    return [int(value) if value == int(value) else value for value in values.tolist()]

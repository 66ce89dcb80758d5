"""Several layouts of one program written into its stages: each stage has the layout, and the mesh, of its width.

Owns which operation is on which mesh, and `rhino.layouts`, which says how its results are split on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoLayouts, RhinoStage
from rhino.ir.meshes import MESH, put_away
from rhino.ir.write_layouts import Writer, annotate
from rhino.program.data import Graph
from rhino.sharding import Solution


def annotate_stages(
    module: ir.Module, graph: Graph, solutions: Sequence[Solution], solution_of: Sequence[int]
) -> tuple[str, ...]:
    """Writes the layouts of stages into the module its graph was imported from.

    Args:
      solution_of: by stage, its number in `solutions`.

    Returns: the mesh of each stage, as the option `meshes` of rhino-form-fragments wants them.
    """
    if len(solutions) == 1:
        annotate(module, graph, solutions[0])
        return ()
    main = functions.find(module, "main")
    assert main is not None
    names = [MESH, *(f"{MESH}_{k}" for k in range(1, len(solutions)))]
    for name, solution in reversed(list(zip(names, solutions, strict=True))):
        sdy.add_mesh(module, name, solution.mesh)
    stages: list[int] = []  # of each operation, -1 for those that go into all fragments that read them
    writers = [
        Writer(module, main, graph, solution, name, lambda op, k=k: stages[op] < 0 or solution_of[stages[op]] == k)  # type: ignore[misc]
        for k, (name, solution) in enumerate(zip(names, solutions, strict=True))
    ]
    for op, record in zip(writers[0].ops, graph.ops, strict=True):
        given = RhinoStage.of(op)
        outer = stages[record.parent] if record.parent >= 0 else -1
        stages.append(outer if given is None else given["stage"])
    for op, record in zip(writers[0].ops, graph.ops, strict=True):
        own = solution_of[stages[record.index]] if stages[record.index] >= 0 else 0
        _list_others(op, record.results, [w for k, w in enumerate(writers) if k != own])
    writers[0].boundary()
    _list_boundary(main, graph, writers[1:])
    for writer in reversed(writers):  # what all of them write is over the first mesh in the end
        writer.operations()
    put_away(module, MESH)
    return tuple(names[k] for k in solution_of)


def _list_others(op: Any, results: Sequence[int], writers: Sequence[Writer]) -> None:
    """Writes `rhino.layouts` of an operation for these meshes."""
    found = {}
    for writer in writers:
        left = writer.left
        dims = [left[v][0] if v in left else writer.solution.dims(v) for v in results]
        if any(dims):
            ranks = [len(writer.graph.values[v].shape) for v in results]
            found[writer.mesh] = [d or ((),) * rank for d, rank in zip(dims, ranks, strict=True)]
    if found:
        RhinoLayouts.attach(op, found)


def _list_boundary(main: Any, graph: Graph, writers: Sequence[Writer]) -> None:
    """The same of the arguments and results of @main."""
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    for values, attributes in ([a.value for a in graph.arguments], arguments), (graph.outputs, results):
        for v, given in zip(values, attributes, strict=True):
            whole = ((),) * len(graph.values[v].shape)
            layouts = {writer.mesh: [writer.solution.returned(v) or whole] for writer in writers}
            given[RhinoLayouts.name] = RhinoLayouts.to_attr(layouts, main.context)
    functions.set_argument_attributes(main, arguments)
    functions.set_result_attributes(main, results)

"""A step in fragments, run in program order: fragments by StableHLO's interpreter, micro-batches one after the other.

Owns the reference semantics of the form that rhino-form-fragments makes. Checks on the way that every value is where it
is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.ir.pipeline.outline import outline
from rhino.ir.pipeline.program import read_program
from rhino.pipeline.program import Fragment, PipelineProgram, Transfer

Arrays = list[np.ndarray]
Evaluate = Callable[[str, Sequence[np.ndarray]], Arrays]


def interpreted(module: ir.Module, arguments: Sequence[np.ndarray]) -> Arrays:
    """The results of @main, whatever its shardings: the interpreter does not know them."""
    with module.context:
        plain = ir.Module.parse(str(module))
        for op in list(plain.body.operations):
            if op.operation.name == "sdy.mesh":
                op.operation.erase()
        for function in functions.all_functions(plain):
            for op in list(functions.walk(function)):
                if op.name == "sdy.sharding_constraint":
                    op.results[0].replace_all_uses_with(op.operands[0])
                    op.erase()
        # Unsigned integers keep their sign in MLIR's types, signed ones do not.
        given = [ir.DenseElementsAttr.get(a, signless=a.dtype.kind != "u") for a in map(np.asarray, arguments)]
        return [np.array(out) for out in stablehlo.eval_module(plain, given)]


def run_fragments(module: ir.Module, arguments: Sequence[np.ndarray], evaluate: Evaluate | None = None) -> Arrays:
    """The original results of a module in fragment form, for the original arguments."""
    program = read_program(module)
    texts = [fragment.text for fragment in outline(module)]

    def by_interpreter(text: str, given: Sequence[np.ndarray]) -> Arrays:
        return interpreted(ir.Module.parse(text, module.context), given)

    run = evaluate or by_interpreter
    values: dict[int, np.ndarray] = {}
    for argument in program.arguments:
        values[argument.value] = rows_of(arguments[argument.index], argument.slice)
    _execute(program, program.before, values, texts, run)
    held = {carry.argument: values[carry.initial] for carry in program.carries}
    for microbatch in range(program.microbatches):
        inside = {**values, **held}
        inside.update((counter, np.uint32(microbatch)) for counter in program.counters if counter >= 0)
        _execute(program, program.body, inside, texts, run)
        held = {carry.argument: inside[carry.next] for carry in program.carries}
    values.update((carry.result, held[carry.argument]) for carry in program.carries)
    _execute(program, program.after, values, texts, run)
    pieces: dict[int, list[tuple[tuple[tuple[int, int], ...], np.ndarray]]] = {}
    for result in program.results:
        pieces.setdefault(result.index, []).append((result.slice, values[result.value]))
    return [_joined(pieces[index]) for index in sorted(pieces)]


def rows_of(array: np.ndarray, bounds: tuple[tuple[int, int], ...]) -> np.ndarray:
    """The part of an array that a `slice` of the program names."""
    return np.asarray(array)[tuple(slice(*bound) for bound in bounds)]


def _joined(pieces: list[tuple[tuple[tuple[int, int], ...], np.ndarray]]) -> np.ndarray:
    pieces = sorted(pieces, key=lambda piece: piece[0])
    return pieces[0][1] if not pieces[0][0] else np.concatenate([array for _, array in pieces])


def _execute(
    program: PipelineProgram,
    operations: Sequence[Fragment | Transfer],
    values: dict[int, np.ndarray],
    texts: Sequence[str],
    run: Evaluate,
) -> None:
    sent = [(op.source, op.to_stage) for op in operations if isinstance(op, Transfer)]
    assert len(set(sent)) == len(sent)
    for op in operations:
        if isinstance(op, Transfer):
            assert program.values[op.source].group != program.values[op.target].group
            assert program.group_of(op.to_stage) == program.values[op.target].group
            values[op.target] = values[op.source]
            continue
        assert all(program.values[v].group == op.group for v in (*op.operands, *op.results))
        results = run(texts[op.index], [values[v] for v in op.operands])
        for value, array in zip(op.results, results, strict=True):
            assert array.shape == program.values[value].shape
            values[value] = array

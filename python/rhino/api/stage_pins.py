"""State that the stages of a pipeline keep: where, that said in a module not yet planned, and what a plan moves of it.

Owns that translation between plans of one state. What a plan without stages leaves to others is in `pins`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir

from rhino.api.pins import find_state
from rhino.api.returned import FlatPlace
from rhino.api.trace import Trace
from rhino.dialect import functions
from rhino.dialect.attributes import RhinoPin
from rhino.ir.pipeline.program import read_program
from rhino.machine.units import nbytes
from rhino.plan import PlanData, Tensor, is_pipeline
from rhino.plan.module import parse_module
from rhino.plan.pipeline import StagePiece, pipeline_pieces
from rhino.program.data import STATE
from rhino.program.element_types import dtype_bytes

# Of what moves so many are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Pin:
    """A leaf of the state as a pipeline keeps it: each of its pieces on one stage."""

    tensor: Tensor
    pieces: tuple[StagePiece, ...]


Pins = Mapping[int, Pin]


def stage_pins(trace: Trace, plan: PlanData, source: Trace | None) -> dict[int, Pin]:
    """For each flat argument of `trace` that is state of a pipeline, where the pipeline keeps it.

    Args:
      plan: the pipeline; one that is known without its module says too little to pin anything.
      source: the trace it is of; None where it is one of the same arguments from a file.
    """
    if plan.source is None:
        return {}
    shared = {i: i for i in range(len(trace.leaves))} if source is None else find_state(trace, plan, source)
    places, pieces = (trace if source is None else source).places, _pieces(plan)
    found = {}
    for i, there in shared.items():
        tensor = plan.arguments[there]
        if tensor.role in STATE or (tensor.role != "batch" and places[there].results):
            found[i] = Pin(tensor, pieces[there])
    return found


def write_stage_pins(module: ir.Module, pins: Pins, places: Sequence[FlatPlace]) -> None:
    """Pin arguments of @main, and the results that take their places, to the stages that keep them."""
    main = functions.find(module, "main")
    assert main is not None
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    for i, pin in pins.items():
        attribute = RhinoPin.to_attr([_entry(piece) for piece in pin.pieces], module.context)
        arguments[i][RhinoPin.name] = attribute
        if len(places[i].results) == 1:
            results[places[i].results[0]].setdefault(RhinoPin.name, attribute)
    functions.set_argument_attributes(main, arguments)
    functions.set_result_attributes(main, results)


def moves(plan: PlanData, pins: Pins) -> list[tuple[str, int]]:
    """What each call of a plan moves: names of pinned arguments that are elsewhere, or split otherwise, and bytes."""
    found: list[tuple[str, int]] = []
    if not pins:
        return found
    pieces = _pieces(plan) if is_pipeline(plan) else [()] * len(plan.arguments)
    for i, pin in pins.items():
        tensor = plan.arguments[i]
        kept = {piece.place for piece in pieces[i]}
        moved = [piece for piece in pin.pieces if piece.place not in kept]
        if moved:
            size = int(sum(prod(piece.shape) for piece in moved) * dtype_bytes(tensor.dtype))
            found.append((tensor.name, size))
    return found


def moves_text(moved: Sequence[tuple[str, int]]) -> str:
    """For people: how many bytes of which leaves."""
    names = ", ".join(name for name, _ in moved[:_NAMED])
    more = f" and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
    return f"{nbytes(sum(size for _, size in moved))} of its state: {names}{more}"


def _entry(piece: StagePiece) -> dict[str, object]:
    data: dict[str, object] = {"stage": piece.stage, "sharding": piece.dims}
    return {**data, "slice": piece.rows} if piece.rows else data


def _pieces(plan: PlanData) -> list[tuple[StagePiece, ...]]:
    source = plan.source
    assert source is not None
    module = parse_module(source, "the plan") if isinstance(source, str) else source
    main = functions.find(module, "main")
    assert main is not None
    return pipeline_pieces(main, read_program(module).argument_stages())

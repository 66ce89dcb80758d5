"""Sums over stages, rewritten so that each stage adds up its own part first: gradients in the loop, scalars after it.

Owns the two rewrites. What they change is the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoStage
from rhino.dialect.loops import widen_alike
from rhino.pipeline.cut import StagePlan
from rhino.pipeline.cut.rest import Combination
from rhino.program.data import Graph

Mark = Callable[[int, str], ir.Attribute]


def regroup_scalars(combinations: Sequence[Combination], values: Sequence[Any], ops: Sequence[Any], mark: Mark) -> None:
    """Each stage combines its own scalars; the stage of the result combines those of the stages."""
    for found in combinations:
        root = ops[found.root]
        parts: dict[int, list[Any]] = {}
        for leaf, stage in zip(found.leaves, found.stages, strict=True):
            parts.setdefault(stage, []).append(values[leaf])
        with root.context, root.location, ir.InsertionPoint(root):
            stages = sorted(parts, key=lambda s: (s != found.home, s))
            made = [_chain(root.name, parts[s], mark(s, "update")) for s in stages]
            result = _chain(root.name, made, mark(found.home, "update"))
        root.results[0].replace_all_uses_with(result)
        for i in reversed(found.items):
            ops[i].erase()


def _chain(name: str, parts: Sequence[Any], mark: ir.Attribute) -> Any:
    """The parts combined one after the other, at the current insertion point, laid out as the last of them."""
    result = parts[0]
    for part in parts[1:]:
        attributes = {RhinoStage.name: mark}
        sharding = _sharding(part)
        if sharding is not None:
            attributes[sdy.SHARDING] = sdy.per_value([sharding], mark.context)
        op = ir.Operation.create(name, results=[result.type], operands=[result, part], attributes=attributes)
        result = op.results[0]
    return result


def _sharding(value: Any) -> ir.Attribute | None:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    return sdy.results_of(owner)[ir.OpResult(value).result_number]


def split_gradients(graph: Graph, plan: StagePlan, values: Sequence[Any], ops: Sequence[Any], mark: Mark) -> None:
    """Gives each stage that has a part of a gradient an accumulator of its own; their sum is the gradient."""
    loop = ops[graph.microbatch_loop]
    changed = [k for k, tie in enumerate(graph.ops[graph.microbatch_loop].ties) if k and tie[2] != tie[3]]
    home = {v: plan.stage_of_op[op.index] for op in graph.ops for v in op.results}
    kept = loop.regions[1].blocks[0]
    terminator = kept.operations[len(kept.operations) - 1].operation
    extra: list[tuple[int, int, list[Any]]] = []
    for carry, parts in sorted(plan.sums.items()):
        position = changed[carry]
        owner = home[graph.ops[graph.microbatch_loop].ties[position][3]]
        by_stage: dict[int, list[Any]] = {}
        for v in parts:
            by_stage.setdefault(home[v], []).append(values[v])
        _accumulate(terminator, position, kept.arguments[position], by_stage.pop(owner), mark(owner, "backward"))
        extra += [(position, s, by_stage[s]) for s in sorted(by_stage)]
    _rebuild(loop, extra, home, graph, mark)


def _accumulate(terminator: Any, position: int, argument: Any, parts: Sequence[Any], mark: ir.Attribute) -> None:
    """The carry goes on with these parts only; what added up all of them is gone."""
    old = terminator.operands[position]
    with terminator.context, terminator.location, ir.InsertionPoint(terminator):
        terminator.operands[position] = _chain("stablehlo.add", [argument, _chain("stablehlo.add", parts, mark)], mark)
    pending = [old]
    while pending:
        value = pending.pop()
        op = value.owner
        if isinstance(op, ir.Block) or next(iter(value.uses), None) is not None or op.name != "stablehlo.add":
            continue
        pending += list(op.operands)
        op.operation.erase()


def _rebuild(loop: Any, extra: Sequence[tuple[int, int, list[Any]]], home: Any, graph: Graph, mark: Mark) -> None:
    """The loop with more carries: (the carry whose sum each is part of, its stage, its parts)."""
    count = len(loop.results)

    def following(sums: Sequence[Any]) -> list[Any]:
        found = []
        for so_far, (_, stage, parts) in zip(sums, extra, strict=True):
            backward = mark(stage, "backward")
            found.append(_chain("stablehlo.add", [so_far, _chain("stablehlo.add", parts, backward)], backward))
        return found

    new = widen_alike(loop, [position for position, _, _ in extra], following)
    with loop.context, loop.location:
        after = new.operation.parent.regions[0].blocks[0].operations
        index = next(i for i, view in enumerate(after) if view.operation == new)
        totals: dict[int, Any] = {}
        added: list[Any] = []
        ties = graph.ops[graph.microbatch_loop].ties
        with ir.InsertionPoint(after[index + 1]):
            for k, (position, _, _) in enumerate(extra):
                total = totals.get(position, new.results[position])
                update = mark(home[ties[position][3]], "update")
                totals[position] = _chain("stablehlo.add", [total, new.results[count + k]], update)
                added.append(totals[position].owner)
        for position, total in totals.items():
            new.results[position].replace_all_uses_except(total, _first_use(added, new.results[position]))
    loop.erase()


def _first_use(added: Sequence[Any], value: Any) -> Any:
    return next(op.operation if hasattr(op, "operation") else op for op in added if op.operands[0] == value)

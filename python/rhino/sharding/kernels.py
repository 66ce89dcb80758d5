"""What a plan makes of the kernels in a program: how their calls are split, and what these cost.

Owns that account, for the report. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from rhino.machine.collectives import ring_bytes
from rhino.program.data import Dims
from rhino.program.kernel_use import KernelUse
from rhino.sharding.leaving import executions
from rhino.sharding.paid import paid
from rhino.sharding.routes import placements
from rhino.sharding.solution import Solution
from rhino.sharding.wiring import factor_view


def kernel_uses(solution: Solution, ops: Collection[int] | None = None) -> list[KernelUse]:
    """The kernels of a planned program, or of some of its operations, in program order."""
    problem, costs, states = solution.problem, solution.costs, solution.states
    graph, klass = problem.graph, costs.quotient.klass
    around = _around(solution)
    found: dict[tuple[object, ...], KernelUse] = {}
    for node in problem.nodes:
        op = graph.ops[node.ops[0]] if node.kind == "op" else None
        if op is None or op.kernel is None or (ops is not None and op.index not in ops):
            continue
        k = klass[node.index]
        parts = prod(n for n, s in zip(costs.sizes, states[k], strict=True) if s > 0)
        dims: Dims = ()
        if op.operands and op.rule is not None:
            view = factor_view(op.rule, op.rule.operands[0], node.factors, False)
            placed = placements(tuple(view[s] for s in states[k]), solution.nesting[k])[0]
            dims = solution.spelled(op.operands[0], placed)
        sent_bytes, sent_s = around.get(op.index, (0.0, 0.0))
        use = KernelUse(
            name=op.kernel.name,
            count=op.trips,
            dims=dims,
            flops=op.trips * op.kernel.flops // parts,
            time_s=costs.node(k, states[k]),
            sent_bytes=round(sent_bytes),
            sent_s=sent_s,
            where=op.where,
            replicated=op.kernel.replicated,
        )
        known = found.get(use.key)
        found[use.key] = use if known is None else _together(known, use)
    return list(found.values())


def _together(a: KernelUse, b: KernelUse) -> KernelUse:
    return replace(
        a,
        count=a.count + b.count,
        flops=a.flops + b.flops,
        time_s=a.time_s + b.time_s,
        sent_bytes=a.sent_bytes + b.sent_bytes,
        sent_s=a.sent_s + b.sent_s,
    )


def _around(solution: Solution) -> dict[int, tuple[float, float]]:
    """For each kernel, bytes and seconds of conversions between it and its neighbours; shared ones count at each."""
    problem, costs, states = solution.problem, solution.costs, solution.states
    quotient = costs.quotient
    tied = {t.index: t for t, _ in quotient.transfers}
    found: dict[int, tuple[float, float]] = {}
    for transfer in problem.transfers:
        ops = dict.fromkeys(
            end.op for end in (*transfer.sources, *transfer.targets) if end.op >= 0 and _is_kernel(solution, end.op)
        )
        if not ops:
            continue
        known = tied[quotient.tied[transfer.index]]
        for seconds, steps, source, target in paid(costs, known, states, solution.nesting):
            sent = sum(
                n * ring_bytes(s.kind, prod(costs.sizes[a] for a in s.axes), s.nbytes)
                for s, n in executions(costs, known, source, target, steps)
            )
            for op in ops:
                nbytes, total = found.get(op, (0.0, 0.0))
                found[op] = (nbytes + sent, total + seconds)
    return found


def _is_kernel(solution: Solution, op: int) -> bool:
    return solution.problem.graph.ops[op].kernel is not None

"""Calls replaced by what they call, in time linear in the operations.

MLIR's own `inline` splits the block at every call, which moves all operations behind it: quadratic for an unrolled
model, whose calls all stand in one long block.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.ir.diagnostics import PassError


def inline_calls(module: ir.Module) -> None:
    """Inline callees before their callers, so that every body is copied complete. Raises PassError on recursion."""
    named = {functions.name_of(f): f for f in functions.all_functions(module)}
    calls = {name: functions.calls_of(f) for name, f in named.items()}
    # 1 while its callees are inlined, 2 when that is done: a callee still at 1 calls itself in the end.
    state: dict[str, int] = {}
    stack = list(reversed(named))
    while stack:
        name = stack[-1]
        if state.get(name) == 2:
            stack.pop()
            continue
        state[name] = 1
        callees = [c for c in dict.fromkeys(c for _, c in calls[name]) if c in named and c not in state]
        if callees:
            stack.extend(callees)
            continue
        for call, symbol in calls[name]:
            callee = named.get(symbol)
            if callee is None:
                continue
            if state[symbol] == 1:
                raise PassError(call, f"@{symbol} calls itself", ["write the recursion as stablehlo.while"])
            if len(callee.regions[0].blocks) == 1:
                _replace(call, callee)
        state[name] = 2
        stack.pop()


def _replace(call: ir.Operation, callee: ir.Operation) -> None:
    """Move the operations of a copy of the callee before the call, which is erased."""
    copy = callee.clone()
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, end = [op.operation for op in block.operations]
    for op in body:
        for moved in (op, *functions.walk(op)):
            moved.location = ir.Location.callsite(moved.location, [call.location])
        op.move_before(call)
    for result, value in zip(call.results, end.operands, strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()

"""Whether XLA left a recomputation as it was written: the arithmetic of its products, counted in what it compiled.

Owns that count, the comparison, and what is said of it. Knows nothing of how a program was rewritten.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxlib.mlir import ir

from rhino.compile.hlo import Computation, HloModule, called_computations, parse_hlo
from rhino.compile.hlo_loops import trip_count
from rhino.compile.hlo_times import product_in
from rhino.dialect.attributes import RhinoPlan
from rhino.ir.import_graph import import_graph
from rhino.recompute import products

# Shares below this are roundings: XLA rewrites a product of vectors as a sum, and pads others.
_LEAST = 0.02


def say_undone(module: ir.Module, hlo_text: Callable[[], str], devices: int) -> str:
    """A warning if XLA undid what a plan has computed again; empty if it did not, or nothing is.

    Args:
      module: as it was planned.
      hlo_text: what XLA made of it for one device; asked for only where something is computed again.
    """
    attributes = module.operation.attributes
    if RhinoPlan.name not in attributes or "recomputation" not in ir.DictAttr(attributes[RhinoPlan.name]):
        return ""
    plan = RhinoPlan.of(module)
    told = plan["recomputation"] if plan is not None else None
    assert isinstance(told, dict)
    graph = import_graph(module)
    wanted = sum(products(graph, op) for op in graph.ops if op.parent < 0)
    share = undone(hlo_text(), wanted, told["flops"], devices)
    if not share:
        return ""
    return (
        f"XLA does not do {share:.0%} of the products that the plan has computed again, so their operands are kept and "
        'the step needs more memory than predicted; plan with remat="keep", or tell us'
    )


def product_flops(hlo_text: str) -> float:
    """Floating-point operations of the products and convolutions that one device does in one run."""
    module = parse_hlo(hlo_text)
    return _flops(module, module.computations[module.entry])


def undone(hlo_text: str, wanted: float, again: float, devices: int = 1) -> float:
    """The share of the recomputed products that XLA does not do: it merged copies with what they are copies of.

    Products that devices do not split count on each of them, and hide as much of what is missing.

    Args:
      wanted: floating-point operations of all products of the module, recomputed ones included, over all devices.
      again: those of the recomputed ones (`rhino.ir.recompute.step.Recomputed.flops`).
    """
    if not again:
        return 0.0
    missing = (wanted - devices * product_flops(hlo_text)) / again
    return min(1.0, missing) if missing > _LEAST else 0.0


def _flops(module: HloModule, computation: Computation) -> float:
    total = 0.0
    for instruction in computation.instructions.values():
        found = product_in(module, computation, instruction)
        if found is not None:
            product = found[0]
            total += 2 * product.batch * product.rows * product.columns * product.depth
            continue
        called = called_computations(instruction)
        if instruction.opcode == "while":
            trips = trip_count(module, computation, instruction)
            total += (1 if trips is None else trips) * _flops(module, module.computations[called["body"][0]])
        elif instruction.opcode in ("call", "async-start"):
            total += sum(_flops(module, module.computations[name]) for names in called.values() for name in names)
        elif instruction.opcode == "conditional":
            branches = [module.computations[name] for names in called.values() for name in names]
            total += max((_flops(module, branch) for branch in branches), default=0.0)
    return total

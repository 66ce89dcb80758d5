"""Steps for the joint search: a chain of layers, as text and cut into micro-batches."""

from __future__ import annotations

from rhino.dialect.context import make_context, parse_text
from rhino.ir.microbatch.programs import SplitPrograms


def chain(layers: int, batch: int = 32, width: int = 64) -> str:
    """Forward and backward of `layers` products with tanh between, and plain gradient descent."""
    x, w = f"tensor<{batch}x{width}xf32>", f"tensor<{width}x{width}xf32>"
    parameters = [f'%w{i}: {w} {{rhino.role = "param", tf.aliasing_output = {i} : i32}}' for i in range(layers)]
    lines = []
    for i in range(layers):
        given = f"%h{i - 1}" if i else "%x"
        lines.append(f"%d{i} = stablehlo.dot_general {given}, %w{i}, contracting_dims = [1] x [0] : ({x}, {w}) -> {x}")
        lines.append(f"%h{i} = stablehlo.tanh %d{i} : {x}")
    back = f"%h{layers - 1}"
    for i in reversed(range(layers)):
        given = f"%h{i - 1}" if i else "%x"
        lines.append(f"%s{i} = stablehlo.multiply {back}, %h{i} : {x}")
        lines.append(f"%g{i} = stablehlo.dot_general {given}, %s{i}, contracting_dims = [0] x [0] : ({x}, {x}) -> {w}")
        lines.append(f"%b{i} = stablehlo.dot_general %s{i}, %w{i}, contracting_dims = [1] x [1] : ({x}, {w}) -> {x}")
        lines.append(f"%n{i} = stablehlo.subtract %w{i}, %g{i} : {w}")
        back = f"%b{i}"
    new = ", ".join(f"%n{i}" for i in range(layers))
    kinds = ", ".join([w] * layers)
    body = "\n  ".join(line for line in lines if not line.startswith("%b0"))
    return (
        f'func.func @main({", ".join(parameters)}, %x: {x} {{rhino.role = "batch"}}) -> ({kinds}) {{\n  '
        f"{body}\n  return {new} : {kinds}\n}}\n"
    )


def programs(layers: int, batch: int = 32, width: int = 64) -> SplitPrograms:
    """The chain, to be cut into any number of micro-batches."""
    return SplitPrograms.of(parse_text(chain(layers, batch, width), make_context()), "O1")

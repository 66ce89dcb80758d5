"""What a convolution says of its dimensions: image, kernel and result, forward and as a gradient.

Owns the reading of `dimension_numbers`. Knows no rules and no costs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.program.data import Convolved


def numbers(op: Any) -> list[list[str]]:
    """The dimensions of a convolution's image, kernel and result, in order."""
    return [part.strip(" []").split(", ") for part in re.split("x(?=\\[)|->", dimension_numbers(op))]


def dimension_numbers(op: Any) -> str:
    """Those of a convolution, such as `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`."""
    text = str(op.attributes["dimension_numbers"])
    return text[text.index("[") : text.rindex("]") + 1]


def kernel_output_dim(op: Any) -> int:
    """The kernel's output-feature dimension."""
    return numbers(op)[1].index("o")


def dilation(op: Any) -> int:
    """How many elements there are for each of the image's, the zeros between them included."""
    return prod(ir.DenseI64ArrayAttr(op.attributes["lhs_dilation"])) if "lhs_dilation" in op.attributes else 1


def convolved(op: Any) -> Convolved:
    """Which convolution an operation is, as XLA takes it.

    A window larger than what is made is a kernel's gradient, which has the image's features where a result has its
    batch; zeros in the image, or a kernel that is reversed, are an image's gradient, whose features the result has.
    """
    _, kernel, result = numbers(op)
    windows, made = op.operands[1].type.shape, op.results[0].type.shape
    window = prod(n for n, d in zip(windows, kernel, strict=True) if d.isdigit())
    if window > prod(n for n, d in zip(made, result, strict=True) if d.isdigit()):
        return Convolved("kernel", made[result.index("b")], _is_turned(result, made, "f", "b"))
    turned = getattr(op.operands[1].owner, "name", "") == "stablehlo.reverse"
    if dilation(op) > 1 or (turned and window > 1):
        return Convolved("image", made[result.index("f")], False)
    return Convolved("", windows[kernel.index("i")], _is_turned(kernel, windows, "o", "i"))


def _is_turned(dims: Sequence[str], shape: Sequence[int], first: str, last: str) -> bool:
    """Whether a kernel's dimensions are in another order than the library's, where that makes a difference."""
    order = sorted(dims, key=lambda d: (d != first, d == last, d))
    sizes = dict(zip(dims, shape, strict=True))
    return [d for d in dims if sizes[d] > 1] != [d for d in order if sizes[d] > 1]

"""Dots and convolutions as batched matrix products, which factors of their rules divide which sizes; and attention.

Owns the reading of an op as `batch` products of [rows, depth] by [depth, columns], or as fused attention. Knows no
device and no mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from rhino.program.data import Graph, Op
from rhino.program.element_types import dtype_bytes
from rhino.program.operations import CONTRACTIONS

# Rows of tensors that are no multiple of 16 bytes are read and written element by element, each in the time of so many
# bytes: six products of 197 tokens of ViT and CLIP, on an H200.
_ALIGNED_BYTES, _ALONE_BYTES = 16, 5.5
# A convolution of so few features of 16 bits, a picture's colours, takes so many times what it multiplies: 8 to 13 in
# ResNet-50, ViT and CLIP, on an H200.
_FEW, _FEW_TIMES = 8, 10.0

# Factors of an op's rule, and into how many parts a plan splits what has some of them.
Factors = frozenset[int]
Parts = Callable[[Factors], float]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """`batch` products of [rows, depth] by [depth, columns], all at once, of operands of one element type.

    Of a convolution rows are the positions of its images, columns the output features, and depth what each sum runs
    over: input features and window. `split` are the factors that divide the four sizes, in that order. It takes
    `slower` times as long as its sizes say.
    """

    dtype: str
    batch: int
    rows: int
    columns: int
    depth: float
    split: tuple[Factors, Factors, Factors, Factors]
    slower: float = 1.0

    def sizes(self, parts: Parts | None = None) -> tuple[float, float, float, float]:
        """Batch, rows, columns and depth; of one device's share, where `parts` says how a plan splits factors."""
        whole = (self.batch, self.rows, self.columns, self.depth)
        if parts is None:
            return whole
        batch, rows, columns, depth = (size / parts(split) for size, split in zip(whole, self.split, strict=True))
        return batch, rows, columns, depth


def slowness(shape: Sequence[int], element_bytes: float) -> float:
    """How many times as long a product takes to move a tensor as one whose rows begin where memory is read at once."""
    aligned = len(shape) < 2 or shape[-1] == 1 or shape[-1] * element_bytes % _ALIGNED_BYTES == 0
    return 1.0 if aligned or not element_bytes else max(1.0, _ALONE_BYTES / element_bytes)


def feature_slowness(features: int, element_bytes: float) -> float:
    """How many times as long as its sums a convolution over so many features of an image takes, and its gradients."""
    return _FEW_TIMES if features < _FEW and element_bytes == 2 else 1.0


def product_of(graph: Graph, op: Op, wide: bool = False) -> MatrixProduct | None:
    """The product that an op is, or a kernel that multiplies as one does; None if it has no rule that says so.

    Args:
      wide: whether what is bfloat16 is multiplied as float32.
    """
    rule, kernel = op.rule, op.kernel
    if (kernel is None and op.name not in CONTRACTIONS) or rule is None or not op.flops or len(op.operands) < 2:
        return None
    left, right = (frozenset(f for dim in mapping for f in dim) for mapping in rule.operands[:2])
    made = frozenset(f for mapping in rule.results for dim in mapping for f in dim)
    batch, rows, columns = left & right & made, (left & made) - right, (right & made) - left

    def size(factors: Factors) -> int:
        return prod(rule.factor_sizes[f] for f in factors)

    summed = (left | right) - made
    if kernel is not None and (kernel.rate != "tensor" or op.flops != 2 * size(batch | rows | columns | summed)):
        return None
    elements = graph.values[op.results[0]].elements
    dtype = kernel.dtype if kernel is not None else graph.values[op.operands[0]].dtype
    # Rows are what else there is of the result: positions over which a window moves by more than one are in no factor.
    length = elements // max(1, size(batch) * size(columns))
    depth = op.flops / (2 * max(1, elements))
    element_bytes = dtype_bytes("f32" if wide and dtype == "bf16" else dtype)
    slower = feature_slowness(op.convolved.features, element_bytes) if op.convolved is not None else 1.0
    return MatrixProduct(dtype, size(batch), length, size(columns), depth, (batch, rows, columns, summed), slower)


# Products of the size of the scores: two forward; backward the scores again, and those of four gradients.
_PRODUCTS = {"attention": 2, "attention-backward": 5}


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention: scores that its mask leaves, and rows, the queries of all heads. Undivided."""

    backward: bool
    dtype: str
    flops: int
    scores: float
    rows: int


def attention_of(rate: str, dtype: str, flops: int, shapes: Sequence[Sequence[int]]) -> Attention | None:
    """The attention that a kernel is, None if it is none: heads are the last dimension of its first operand and value.

    Where query, key and value are one array rows are counted three times.

    Args:
      rate, dtype, flops: of the kernel (`rhino.kernels.data.RATES`), of one execution.
      shapes: of its operands.
    """
    if rate not in _PRODUCTS or not shapes:
        return None
    query = shapes[0]
    value = next((s for s in shapes[2:3] if len(s) == len(query)), query)
    if not query or not query[-1] or not value[-1]:
        return None
    scores = flops / (_PRODUCTS[rate] * (query[-1] + value[-1]))
    return Attention(rate == "attention-backward", dtype, flops, scores, prod(query[:-1]))

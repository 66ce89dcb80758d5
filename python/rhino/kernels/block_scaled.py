"""Products of block-scaled operands: `jax.nn.scaled_matmul`, and cuDNN's call that XLA makes of it on Blackwell.

Owns which dimensions may be split. Operands are lhs [batch, rows, k], rhs [batch, columns, k] and a scale for each
block of k of each, without the batch where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.products import product_flops
from rhino.kernels.rules import make_rule

_BLOCKS = (16, 32)
# cuDNN reads scales tile by tile: so many rows, and so many blocks of k.
_TILE_ROWS = 128
_TILE_BLOCKS = 4


def _check(call: KernelCall) -> tuple[KernelTensor, KernelTensor, int]:
    """Left and right operand, and how many elements share a scale."""
    if len(call.operands) < 4 or not call.results:
        raise Refused("it has no two operands with a scale each")
    lhs, rhs, left, right = call.operands[:4]
    rank = len(lhs.shape)
    config = call.config.get("scaled_dot_backend_config", {})
    for side in ("lhs", "rhs"):
        if rank == 3 and [int(d) for d in config.get(f"{side}_batch_dimensions", [0])] != [0]:
            raise Refused(f"the batch of its {side} is not in front")
    if not (rank in (2, 3) and len(rhs.shape) == len(left.shape) == len(right.shape) == rank):
        raise Refused("its operands and their scales have not two or three dimensions each")
    block, rest = divmod(lhs.shape[-1], max(1, left.shape[-1]))
    if rest or left.shape[:-1] != lhs.shape[:-1] or right.shape[:-1] != rhs.shape[:-1]:
        raise Refused("its scales are padded: they are not those of whole blocks of its operands")
    if block not in _BLOCKS:
        raise Refused(
            f"{block} of its elements have one scale, not {' or '.join(map(str, _BLOCKS))}: scales are padded"
        )
    if lhs.shape[-1] != rhs.shape[-1] or left.shape[-1] != right.shape[-1]:
        raise Refused("the blocks of its operands are not alike")
    return lhs, rhs, block


def _known(
    call: KernelCall, rows: tuple[str, str], k: str, blocks: str, why: Mapping[str, str], sizes: Mapping[str, int],
    reduction: tuple[str, ...],
) -> Known:  # fmt: skip
    lhs = call.operands[0]
    b = "b " if len(lhs.shape) == 3 else ""
    m, n = rows
    operands = [f"{b}{m} {k}", f"{b}{n} {k}", f"{b}{m} {blocks}", f"{b}{n} {blocks}"]
    if any(t.elements != 1 for t in call.operands[4:]):
        raise Refused("its fifth operand is not one scale for all")
    operands += [" ".join(f"s{i}_{d}" for d in range(len(t.shape))) for i, t in enumerate(call.operands[4:])]
    results = [f"{b}{m} {n}"]
    results += [" ".join(f"r{i}_{d}" for d in range(len(t.shape))) for i, t in enumerate(call.results[1:])]
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results,
        whole=tuple(why), reduction=reduction, sizes=sizes,
    )  # fmt: skip
    flops = product_flops(lhs, call.results[0], (len(lhs.shape) - 1,))
    return Known(rule=rule, names=names, flops=flops, nbytes=call.traffic(1), dtype=lhs.dtype, whole=why)


def _describe(call: KernelCall) -> Known:
    _, _, block = _check(call)
    why = {"e": f"{block} elements have one scale"}
    return _known(call, ("m", "n"), "(k e)", "k", why, {"e": block}, ("k",))


def _describe_cudnn(call: KernelCall) -> Known:
    """Scales are in tiles: those of 128 rows stand together, so that rows are split by tiles and blocks not at all."""
    lhs, rhs, _ = _check(call)
    for side, tensor, scales in (("lhs", lhs, call.operands[2]), ("rhs", rhs, call.operands[3])):
        if tensor.shape[-2] % _TILE_ROWS or scales.shape[-1] % _TILE_BLOCKS:
            raise Refused(f"the scales of its {side} are padded to tiles of {_TILE_ROWS} x {_TILE_BLOCKS}")
    tile = f"the scales of {_TILE_ROWS} rows stand together"
    why = {"i": tile, "j": tile, "k": f"scales stand in tiles of {_TILE_BLOCKS} blocks"}
    return _known(call, ("(m i)", "(n j)"), "k", "l", {**why, "l": why["k"]}, {"i": _TILE_ROWS, "j": _TILE_ROWS}, ())


_RESULT = "Products of operands with a scale for each block of 32 (mx) or 16 (nv) elements"

ENTRIES = (
    Entry(
        "block-scaled-product",
        ("__op$block_scaled_dot",),
        f"{_RESULT}: `jax.nn.scaled_matmul`. Splits batch, rows and columns; what is contracted by whole blocks, as a "
        "sum.",
        _describe,
    ),
    Entry(
        "cudnn-block-scaled-product",
        ("__cudnn$blockScaledDot",),
        f"{_RESULT}, in cuDNN's layout of scales. Splits the batch, and rows and columns by 128; what is contracted "
        "stays whole, since scales stand in tiles.",
        _describe_cudnn,
    ),
)

"""Matrix products of cuBLAS and cuBLASLt, as XLA's GPU compiler calls them.

Owns what is read from their configuration (XLA's GemmBackendConfig) and which dimensions may be split. What a device
computes is written as ordinary operations (`rhino.ir.local_kernels.products`): XLA takes the raw calls from its own
compiler only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.rules import make_rule

GEMM, MATMUL, MATMUL_F8 = "__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"
_CONFIG = "gemm_backend_config"
_EPILOGUES = {
    f"{bias}{function}": (bool(bias), function.removesuffix("_AUX"), function.endswith("_AUX"))
    for bias in ("", "BIAS_")
    for function in ("RELU", "GELU", "GELU_AUX")
} | {"DEFAULT": (False, "", False), "BIAS": (True, "", False)}
_SIDES = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")


@dataclass(frozen=True, slots=True)
class Product:
    """One call, read: `out = function(alpha * a_scale * b_scale * lhs @ rhs + beta * addend + bias)`.

    Numbers are positions among operands, or results, and -1 for what is not there.

    Attributes:
      lhs_batch, rhs_batch, lhs_contracting, rhs_contracting: dimensions, as in `stablehlo.dot_general`.
      scales: of lhs, rhs, addend and result, of fp8.
      function: "", "RELU" or "GELU" (by tanh).
      before: the result that has the function's argument.
      largest: the result that has the largest absolute value, before the result's scale.
      precision: of lhs and rhs, as XLA names them.
    """

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    alpha: float
    beta: float
    addend: int
    bias: int
    scales: tuple[int, ...]
    function: str
    before: int
    largest: int
    precision: tuple[str, ...]

    @property
    def is_linear(self) -> bool:
        """Whether parts of the contracted dimensions may be added up."""
        return not (self.function or self.beta or self.bias >= 0 or self.largest >= 0)


def read_product(call: KernelCall) -> Product:
    """What a call computes.

    Raises:
      Refused: it is not one that is known; the message says why.
    """
    config = call.config.get(_CONFIG, call.config)
    if "dot_dimension_numbers" not in config:
        call.config_of(_CONFIG, "dot_dimension_numbers")
    if float(config.get("alpha_imag", 0)):
        raise Refused("its product is multiplied by a complex number")
    precision = config.get("precision_config", {})
    if precision.get("algorithm", "ALG_UNSET") != "ALG_UNSET":
        raise Refused(f"its algorithm {precision['algorithm']} is not known")
    given = config["dot_dimension_numbers"]
    lhs_batch, rhs_batch, lhs_contracting, rhs_contracting = (
        tuple(int(d) for d in given.get(f"{side}_dimensions", ())) for side in _SIDES
    )
    epilogue = str(config.get("epilogue", "DEFAULT"))
    if epilogue not in _EPILOGUES:
        raise Refused(f"its epilogue {epilogue} is not known")
    biased, function, aux = _EPILOGUES[epilogue]
    beta = float(config.get("beta", 0))
    out = call.results[0] if call.results else KernelTensor((), "")

    # Behind lhs and rhs: what is added, scales of fp8, the bias.
    rest = list(range(2, len(call.operands)))
    addend = rest.pop(0) if beta and rest else -1
    bias = rest.pop() if biased and rest else -1
    scaled = call.target == MATMUL_F8
    if (
        (beta and addend < 0)
        or (biased and bias < 0)
        or (rest and not scaled)
        or (scaled and len(rest) not in range(2, 5))
    ):
        raise Refused(f"it has {len(call.operands)} operands, which is not as many as its configuration asks for")
    if addend >= 0 and call.operands[addend].shape != out.shape:
        raise Refused(f"what it adds has shape {list(call.operands[addend].shape)}, and its result {list(out.shape)}")
    if any(call.operands[i].elements != 1 for i in rest):
        raise Refused("its scales are not one number each")

    # Behind the result: the function's argument, the largest value, and memory to work in.
    largest = next((i for i, t in enumerate(call.results) if i and t.shape == ()), -1)
    before = 1 if aux else -1
    if aux and (len(call.results) < 2 or call.results[1].shape != out.shape):
        raise Refused("the argument of its function is not among its results")
    found = Product(
        lhs_batch, rhs_batch, lhs_contracting, rhs_contracting, float(config.get("alpha_real", 1)), beta, addend, bias,
        tuple(rest), function, before, largest, tuple(str(p) for p in precision.get("operand_precision", ())),
    )  # fmt: skip
    _check(call, found)
    return found


def _check(call: KernelCall, product: Product) -> None:
    if len(call.operands) < 2 or not call.results:
        raise Refused("it has no two operands and a result")
    lhs, rhs = (t.shape for t in call.operands[:2])
    if any(d >= len(lhs) for d in (*product.lhs_batch, *product.lhs_contracting)) or any(
        d >= len(rhs) for d in (*product.rhs_batch, *product.rhs_contracting)
    ):
        raise Refused("its dimension numbers are not those of its operands")
    kept = [rhs[d] for d in _free(rhs, product.rhs_batch, product.rhs_contracting)]
    shape = (
        *(lhs[d] for d in product.lhs_batch),
        *(lhs[d] for d in _free(lhs, product.lhs_batch, product.lhs_contracting)),
        *kept,
    )
    if shape != call.results[0].shape:
        raise Refused(f"its result has shape {list(call.results[0].shape)}, and its operands make {list(shape)}")
    if product.bias >= 0 and list(call.operands[product.bias].shape) != kept:
        raise Refused(f"its bias has shape {list(call.operands[product.bias].shape)}, not {kept}")


def _free(shape: Sequence[int], *taken: Sequence[int]) -> list[int]:
    return [d for d in range(len(shape)) if not any(d in dims for dims in taken)]


def product_flops(lhs: KernelTensor, out: KernelTensor, contracting: Sequence[int]) -> int:
    """Multiplications and additions of a product."""
    return 2 * out.elements * prod(lhs.shape[d] for d in contracting)


def _describe(call: KernelCall) -> Known:
    product = read_product(call)
    lhs, rhs = call.operands[:2]
    left, right = [""] * len(lhs.shape), [""] * len(rhs.shape)
    for name, dims, others in (
        ("b", product.lhs_batch, product.rhs_batch),
        ("k", product.lhs_contracting, product.rhs_contracting),
    ):
        for i, (d, e) in enumerate(zip(dims, others, strict=True)):
            left[d] = right[e] = f"{name}{i}"
    rows: list[str] = []
    columns: list[str] = []
    for side, letter, kept in ((left, "m", rows), (right, "n", columns)):
        for d, name in enumerate(side):
            if not name:
                side[d] = f"{letter}{len(kept)}"
                kept.append(side[d])
    out = " ".join((*(left[d] for d in product.lhs_batch), *rows, *columns))
    operands = [" ".join(left), " ".join(right)]
    operands += [out] if product.addend >= 0 else []
    operands += [" ".join(f"s{i}_{d}" for d in range(len(call.operands[i].shape))) for i in product.scales]
    operands += [" ".join(columns)] if product.bias >= 0 else []
    results = [
        out if i in (0, product.before) else " ".join(f"r{i}_{d}" for d in range(len(t.shape)))
        for i, t in enumerate(call.results)
    ]
    contracted = [left[d] for d in product.lhs_contracting]
    # A sum of values that were rounded to eight bits is not the rounded sum.
    linear = product.is_linear and not call.results[0].dtype.startswith("f8")
    whole: dict[str, Any] = {} if linear else dict.fromkeys(contracted, _WHOLE)
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results,
        reduction=contracted if linear else (), whole=tuple(whole),
    )  # fmt: skip
    return Known(
        rule=rule,
        names=names,
        flops=product_flops(lhs, call.results[0], product.lhs_contracting),
        nbytes=call.traffic(1 + max(0, product.before, product.largest)),
        dtype="f8" if call.target == MATMUL_F8 else lhs.dtype,
        whole=whole,
        maxima=(product.largest,) if product.largest >= 0 else (),
    )


_WHOLE = "the bias, the function or the rounding behind the product is of the whole sum"

ENTRIES = (
    Entry(
        "cublas-product",
        (GEMM, MATMUL, MATMUL_F8),
        "Matrix products of cuBLAS and cuBLASLt, with what is fused behind them: an addend, a bias, relu or gelu, "
        "scales of fp8. Splits batch, rows and columns; what is contracted as a sum, where nothing is fused behind it. "
        "XLA takes such calls from its own compiler only: a plan writes them as `stablehlo.dot_general`, from which "
        "XLA makes them again.",
        _describe,
        program="cublas-product",
    ),
)

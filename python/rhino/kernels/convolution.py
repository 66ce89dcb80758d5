"""cuDNN's convolutions as XLA's GPU compiler calls them: forward, with what is fused behind, and both gradients.

Owns which dimensions may be split. StableHLO has no place for the window and the order of dimensions that such a call
has in HLO, so that the order is found from the shapes; it is one of the two that XLA's GPU compiler makes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.rules import make_rule

FORWARD, INPUT, FILTER = "__cudnn$convForward", "__cudnn$convBackwardInput", "__cudnn$convBackwardFilter"
FUSED, GRAPH = "__cudnn$convBiasActivationForward", "__cudnn$convForwardGraph"
_LOWEST_RANK = 3
_SPATIAL = "neighbouring positions are in one window"
_GROUPED = "channels of a group are added up together"
_BEHIND = "what is computed behind the convolution is of the whole sum over input channels"


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of the forward convolution: groups, input and output channels of one, and whether channels are last."""

    groups: int
    inputs: int
    outputs: int
    last: bool


def _sizes(x: KernelTensor, w: KernelTensor, y: KernelTensor) -> _Sizes:
    """Sizes of the convolution of an input with a filter, to an output."""
    rank = len(x.shape)
    if not rank == len(w.shape) == len(y.shape) >= _LOWEST_RANK:
        raise Refused("its input, filter and output have not the same three or more dimensions")
    if w.dtype.endswith("i8"):
        raise Refused("its integers are stored in vectors of channels")
    found = [_fits(x, w, y, last) for last in (True, False)]
    if found[0] is not None and found[1] is not None:
        raise Refused("its channels may be the first or the last dimension, and the call does not say which")
    sizes = found[0] or found[1]
    if sizes is None:
        raise Refused("its shapes are those of no convolution with the batch and the output channels in front")
    return sizes


def _fits(x: KernelTensor, w: KernelTensor, y: KernelTensor, last: bool) -> _Sizes | None:
    """The sizes, if channels are last (b01f_o01i->b01f), or behind the batch (bf01_oi01->bf01)."""
    at = -1 if last else 1
    channels, inputs, outputs = x.shape[at], w.shape[at], w.shape[0]
    if x.shape[0] != y.shape[0] or y.shape[at] != outputs or not inputs or channels % inputs:
        return None
    groups = channels // inputs
    return None if outputs % groups else _Sizes(groups, inputs, outputs // groups, last)


def _named(first: str, channels: str, spatial: str, count: int, last: bool) -> str:
    positions = [f"{spatial}{i}" for i in range(count)]
    return " ".join((first, *positions, channels) if last else (first, channels, *positions))


def _describe(call: KernelCall) -> Known:
    if len(call.operands) < 2 or not call.results:
        raise Refused("it has no two operands and a result")
    first, second, out = *call.operands[:2], call.results[0]
    x, w, y = {INPUT: (out, second, first), FILTER: (first, out, second)}.get(call.target, (first, second, out))
    sizes = _sizes(x, w, y)
    count = len(x.shape) - 2
    grouped = sizes.groups > 1
    inputs, outputs = ("(g i)", "(g o)") if grouped else ("i", "o")
    texts = {
        "x": _named("b", inputs, "s", count, sizes.last),
        "w": _named(outputs, "i", "k", count, sizes.last),
        "y": _named("b", outputs, "t", count, sizes.last),
    }
    order = {INPUT: "ywx", FILTER: "xyw"}.get(call.target, "xwy")
    operands = [texts[order[0]], texts[order[1]]]
    operands += [_behind(t, y, i, texts["y"], outputs) for i, t in enumerate(call.operands[2:], 2)]
    results = [texts[order[2]]]
    results += [" ".join(f"r{i}_{d}" for d in range(len(t.shape))) for i, t in enumerate(call.results[1:])]
    if any(t.dtype not in ("ui8", "i8") for t in call.results[1:]):
        raise Refused("it has more results than the convolution and memory to work in")

    summed = {INPUT: "o", FILTER: "b"}.get(call.target, "i")
    whole = {f"{letter}{i}": _SPATIAL for letter in "skt" for i in range(count)}
    if grouped:
        # Of a group not even its channels in the results are split: they are not side by side in one device's part.
        whole |= dict.fromkeys("io", _GROUPED)
    elif len(operands) > 2 or call.target in (FUSED, GRAPH):
        whole[summed] = _BEHIND
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results, whole=tuple(whole),
        reduction=() if summed in whole else (summed,),
        sizes={"g": sizes.groups, "i": sizes.inputs, "o": sizes.outputs} if grouped else {},
    )  # fmt: skip
    return Known(
        rule=rule,
        names=names,
        # Each position of the output is a sum over the window and the input channels of its group.
        flops=2 * (y.elements // y.shape[-1 if sizes.last else 1]) * w.elements,
        nbytes=call.traffic(1),
        dtype=x.dtype,
        whole=whole,
    )


def _behind(tensor: KernelTensor, y: KernelTensor, number: int, text: str, channels: str) -> str:
    """What is read behind the convolution: a bias of the output channels, another tensor like the output, a number."""
    if tensor.shape == y.shape:
        return text
    if len(tensor.shape) == 1:
        return channels
    if tensor.elements == 1:
        return " ".join(f"f{number}_{d}" for d in range(len(tensor.shape)))
    raise Refused(f"its operand {number} of shape {list(tensor.shape)} is no bias, and not like its output")


_DOC = (
    "Splits the batch, output and input channels (of grouped convolutions, the groups); positions stay whole, since "
    "windows overlap."
)
_FILE = "In StableHLO such a call lacks its window: it is planned, but XLA cannot compile it."

ENTRIES = (
    Entry(
        "cudnn-convolution",
        (FORWARD, FUSED, GRAPH),
        f"cuDNN's convolution, with a bias, an activation and an addend behind it. {_DOC} Input channels are a sum, "
        f"where nothing is behind it. {_FILE}",
        _describe,
    ),
    Entry(
        "cudnn-convolution-backward",
        (INPUT, FILTER),
        f"Its gradients. {_DOC} That of the input is a sum over output channels, that of the filter over the batch. "
        f"{_FILE}",
        _describe,
    ),
)

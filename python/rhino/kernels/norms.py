"""cuDNN's layer normalisation, as XLA's GPU compiler calls it.

Owns what is read from its configuration (XLA's CudnnNormBackendConfig): what is normalised are all dimensions but the
first, which holds the others.
"""

from __future__ import annotations

from rhino.kernels.data import Entry, KernelCall, Known, Refused
from rhino.kernels.rules import make_rule

_CONFIG = "cudnn_norm_backend_config"
_WHOLE = "mean and variance are over all that is normalised"
# Operands and results of a kind, by name: x and what is like it, scale and what is like it, one number for each row.
_KINDS = {
    "LAYER_FWD_INFER": ("x s s", "x"),
    "LAYER_FWD_TRAIN": ("x s s", "x r r"),
    "LAYER_BWD": ("x s x r r", "x s s"),
}


def _describe(call: KernelCall) -> Known:
    call.config_of(_CONFIG)
    kind = str(call.config_of(_CONFIG).get("kind", "LAYER_FWD_INFER"))
    if kind not in _KINDS:
        raise Refused(f"its kind {kind} is not known")
    reads, makes = (side.split() for side in _KINDS[kind])
    if len(call.operands) != len(reads) or len(call.results) not in (len(makes), len(makes) + 1):
        raise Refused(f"it has {len(call.operands)} operands and {len(call.results)} results, and is of kind {kind}")
    rest = range(1, len(call.operands[0].shape))
    normalised = [f"n{d}" for d in rest]
    texts = {
        "x": " ".join(("b", *normalised)),
        "s": " ".join(("one", *normalised)),
        "r": " ".join(("b", *(f"u{d}" for d in rest))),
    }
    operands, results = [texts[name] for name in reads], [texts[name] for name in makes]
    results += [" ".join(f"w{d}" for d in range(len(t.shape))) for t in call.results[len(makes) :]]
    whole = dict.fromkeys(normalised, _WHOLE)
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results, whole=normalised,
        reduction=("b",) if kind == "LAYER_BWD" else (),
    )  # fmt: skip
    return Known(rule, names, 0, call.traffic(len(makes)), call.operands[0].dtype, "vector", whole)


ENTRIES = (
    Entry(
        "cudnn-norm",
        ("__cudnn$norm",),
        "cuDNN's layer normalisation, for inference, training, and its gradients. Splits what is not normalised; "
        "gradients of scale and bias are sums over it.",
        _describe,
    ),
)

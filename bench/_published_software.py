"""The software of published runs, as far as a step's time goes: kernels of attention, what is fused, what is hidden.

Owns the eras: which of them a run is of, by its source, and their constants, which hold for all runs of an era. Those
with a published measurement have it beside them; the others were chosen once, over all runs of the era.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench._published_models import Row
from bench._published_programs import kind_of
from rhino.machine import Cluster
from rhino.machine.rates import AttentionRates
from rhino.pipeline.search.breakdown import OpSeconds
from rhino.program.data import Graph

# Per kernel and device, forward and backward. FlashAttention-2: bench/data/attention.csv, fitted as the presets' are.
# FlashAttention in Triton (2023): 30 to 50 % of an A100's peak forward and 25 to 35 % backward (arXiv 2307.08691,
# introduction, of FlashAttention 1); the middle, and on H100s as much faster as FlashAttention-2 is there.
KERNELS: Mapping[tuple[str, str], tuple[AttentionRates, AttentionRates]] = {
    ("flash-attention-2", "h100"): (
        AttentionRates(2.74e-15, 6.7e-14, 9.2e-11),
        AttentionRates(2.95e-15, 2.6e-13, 5.8e-10),
    ),
    ("triton", "a100"): (AttentionRates(8.0e-15, 0.0, 4.4e-10), AttentionRates(1.07e-14, 0.0, 1.1e-9)),
    ("triton", "h100"): (AttentionRates(4.5e-15, 0.0, 2.5e-10), AttentionRates(6.0e-15, 0.0, 6.0e-10)),
}


@dataclass(frozen=True, slots=True)
class Software:
    """One era.

    Attributes:
      attention: the kernel of `KERNELS` that fused attention is; "" for that of the preset.
      moved: bytes that element-wise kernels move, over those of XLA's fusions.
      weights: the same of casting weights and adding up their gradients in a loop over micro-batches or layers.
      busy: share of a step in which the device has work; the rest are late launches, logging, input.
      by_xla: whether kernels that are no products are XLA's. Others have their own for softmaxes and for gradients of
        lookups, which take what they move.
      gathers, sums, tensors: shares of collectives of parameters, of the sum over replicas behind the last micro-batch,
        and of activations, that other work hides.
    """

    name: str
    attention: str = ""
    moved: float = 1.0
    weights: float = 1.0
    busy: float = 1.0
    by_xla: bool = False
    gathers: float = 0.9
    sums: float = 0.0
    tensors: float = 0.0

    def on(self, cluster: Cluster) -> Cluster:
        """The cluster with this era's kernels."""
        device = cluster.device
        kind = {"h200": "h100"}.get(device.kind, device.kind)
        if device.kernels is None:
            return cluster
        kernels = device.kernels if self.by_xla else replace(device.kernels, elements=None)
        if (rates := KERNELS.get((self.attention, kind))) is not None:
            kernels = replace(kernels, attention=dict(zip(("forward", "backward"), rates, strict=True)))
        return replace(cluster, device=replace(device, kernels=kernels))

    def seconds(self, graph: Graph, given: OpSeconds, updaters: int = 1) -> OpSeconds:
        """What ops take in this era, from what they take as XLA would run them; `updaters` share the update."""
        kinds = classes(graph)
        factor = {"memory": self.moved, "weights": self.weights, "update": 1 / updaters}
        compute = [s * factor.get(kind, 1.0) for s, kind in zip(given.compute, kinds, strict=True)]
        exposed = [
            (c + b) * (1 - self.tensors) + max(0.0, h - b - late) * (1 - self.gathers)
            for c, h, b, late in zip(given.comm, given.hideable, given.beside, given.late, strict=True)
        ]
        return OpSeconds(compute, exposed, [*given.late], [0.0] * len(compute), [*given.late])


def classes(graph: Graph) -> list[str]:
    """By op what its time is counted under: as `kind_of`, and "weights" and "update"."""
    shapes = set()
    for argument in graph.arguments:
        if argument.role == "param":
            shape = [n for n in graph.values[argument.value].shape if n > 1]
            if len(shape) > 1:
                shapes |= {tuple(sorted(shape)), tuple(sorted(shape[1:]))}
    kinds = [kind_of(op) for op in graph.ops]
    last = max((i for i, kind in enumerate(kinds) if kind != "memory"), default=-1)
    for op in graph.ops:
        if kinds[op.index] != "memory":
            continue
        if op.parent < 0:
            if op.index > last:
                kinds[op.index] = "update"
            continue
        sizes = {tuple(sorted(n for n in graph.values[v].shape if n > 1)) for v in op.results}
        if any(len(size) > 1 and size in shapes for size in sizes):
            kinds[op.index] = "weights"
    return kinds


def totals(graph: Graph, seconds: OpSeconds, times: Sequence[float]) -> dict[str, float]:
    """Seconds by class, and of collectives, with how often each op's seconds count."""
    found = dict.fromkeys(("products", "attention", "memory", "weights", "update", "collectives"), 0.0)
    for kind, s, c, h, n in zip(classes(graph), seconds.compute, seconds.comm, seconds.hideable, times, strict=True):
        found[kind] += s * n
        found["collectives"] += (c + h) * n
    return found


_XLA = Software("XLA", by_xla=True, gathers=0.6, busy=0.93)
_FLASH_2 = "flash-attention-2"
# Megatron adds gradients up inside its products (gradient accumulation fusion) and keeps weights in 16 bits.
_MEGATRON = Software("Megatron-LM", moved=1.2, weights=0.3)
_CORE = Software("Megatron-Core", weights=0.3, sums=0.8, tensors=0.7)
_EAGER = Software("PyTorch FSDP, 2023", "triton", moved=1.2, weights=0.2)
_COMPILED = Software("PyTorch FSDP2, compiled", _FLASH_2, weights=0.2, busy=0.86)
# The first pattern that a row's source and architecture have. Of Megatron-Bridge the version of its container is told:
# routing and permuting tokens became fewer kernels, and CUDA graphs came.
ERAS: tuple[tuple[str, Software], ...] = (
    ("cases_april2021", replace(_MEGATRON, name="Megatron-LM, 2021", moved=1.5, busy=0.95)),
    ("MT-NLG|bigscience", replace(_MEGATRON, name="Megatron-DeepSpeed, 2022", moved=1.5, busy=0.87)),
    ("2205.05198|MegaScale", _MEGATRON),
    ("pythia", Software("GPT-NeoX, 2023", "triton", moved=1.5, weights=0.3, busy=0.7)),
    (r"Megatron-Bridge.* 25\.\d\d.* moe$", replace(_CORE, name="Megatron-Bridge, experts, 2025", moved=1.5)),
    (r"Megatron-Bridge.* 26\.0[1-4].* moe$", replace(_CORE, name="Megatron-Bridge, experts, early 2026", moved=1.3)),
    ("Megatron-Bridge.* moe$", replace(_CORE, name="Megatron-Bridge, experts, late 2026", moved=0.5)),
    ("Automodel", Software("AutoModel", weights=0.2)),
    ("model_table|NeMo|Llama 3 Herd", _CORE),
    ("mosaicml", _EAGER),
    ("torchtitan docs/performance|fms-fsdp", replace(_EAGER, name="PyTorch FSDP2", attention=_FLASH_2, busy=0.92)),
    ("TinyLlama|Bloomberg", replace(_EAGER, attention=_FLASH_2)),
    ("torchtitan|autoparallel", _COMPILED),
    ("Kempner", replace(_COMPILED, name="KempnerForge, 2026", busy=0.9)),
    # LayerNorm, GELU with bias, dropout and the optimizer are kernels of their own there.
    ("DeepLearningExamples.*BERT", Software("DeepLearningExamples, PyTorch", moved=0.5)),
    ("DeepLearningExamples", Software("DeepLearningExamples, MXNet", moved=0.6)),
    # XLA of 2022 hides no collective.
    ("alpa", Software("Alpa, 2022", by_xla=True, gathers=0.0)),
)


def software_of(row: Row) -> Software:
    """The era of a run; XLA's own where none is named, and of JAX programs."""
    told = f"{row['source']} {row['arch']}"
    return next((era for pattern, era in ERAS if re.search(pattern, told)), _XLA)

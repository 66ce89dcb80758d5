"""The models that published runs trained, as configurations of examples/models: architecture, precision and era.

Owns how a row's columns are read as a model, and the rules for what rows do not say: attention's kernel by source, what
recomputation saves. Knows no cluster and no layout.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

Row = Mapping[str, str]
# Layers of the model that one trip of its loop is.
_LAYERS = {"gpt": 1, "llama": 1, "sparse_llama": 1, "bert": 1, "vit": 1, "moe": 2}


class NotExpressed(Exception):
    """A row that no model of the zoo, or no layout, can express; the text says why."""


@dataclass(frozen=True, slots=True)
class Model:
    """A module of examples/models and its configuration. `notes` say where it is not what was published."""

    module: str
    config: Any
    layers: int
    notes: tuple[str, ...] = ()

    def with_layers(self, layers: int) -> Model:
        """The same with another number of layers, or of what is a layer of its loop; all of them alike."""
        if layers == self.layers:
            return self
        if self.module not in _LAYERS:
            raise NotExpressed(f"{self.module} has no loop over layers to be cut into stages")
        fields = {"layers": layers * _LAYERS[self.module]} | ({"dense": 0} if self.module == "sparse_llama" else {})
        return replace(self, config=replace(self.config, **fields), layers=layers)

    def step(self, batch: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The training step and its abstract inputs for so many examples."""
        module = importlib.import_module(f"examples.models.{self.module}")
        return module.make_train_step(self.config)[1], module.abstract_inputs(self.config, batch)


# By source (a pattern of its text): whether attention was one kernel. Others by `fused_attention`'s rule.
_KERNEL: tuple[tuple[str, bool], ...] = (
    ("rosetta/rosetta/projects/(vit|t5x)", False),  # its pages name no kernel
    ("DeepLearningExamples", False),
    ("BloombergGPT", False),  # 2022, SageMaker's library
    ("MT-NLG", False),
    ("bigscience", False),  # Megatron-DeepSpeed of 2022
    ("Pythia|pythia", True),  # its paper: flash attention
    ("llm.c", False),  # its build line has no cuDNN
)
_DTYPES = {"BF16": "bfloat16", "FP16": "float16", "fp32": "float32", "TF32": "float32"}
# Recomputation as pages name it, and what is saved: a name of jax.checkpoint_policies. What has several names in one
# page is the one nearest to it.
_SAVED: tuple[tuple[str, str], ...] = (
    ("SAVE_DOT_WITH_NO_BATCH_DIM", "dots_with_no_batch_dims_saveable"),
    ("minimal", "dots_with_no_batch_dims_saveable"),
    (r"selective \(op\)|per-op", "dots_with_no_batch_dims_saveable"),
)


# Frameworks that do not recompute keep what kernels read and make: operands and results of products and attention. XLA
# by itself keeps each value of the forward pass that the backward one reads, in float32 where they were.
_NO_RECOMPUTATION: Mapping[str, Any] = {"remat": True, "saved": "heavy"}


def number(row: Row, name: str, default: int = 0) -> int:
    """A column as an integer; what is empty is the default."""
    text = row.get(name, "")
    return int(float(text)) if text else default


def fused_attention(row: Row) -> bool:
    """Whether attention was one kernel, by source; else in eight bits or bfloat16, which is what came after 2022."""
    told = row["notes"] + row["source"]
    if "no flash attention" in told:
        return False
    for pattern, kernel in _KERNEL:
        if re.search(pattern, row["source"]):
            return kernel
    if "rosetta/rosetta/projects/pax" in row["source"]:  # kernels come with Transformer Engine there
        return "(TE)" in row["precision"]
    return not row["gpu"].startswith("V100") and row["precision"] not in ("FP16", "fp32", "TF32")


def precision(row: Row) -> tuple[str, str]:
    """The compute type, and "f8" where dense layers round their operands to eight bits.

    Raises:
      NotExpressed: no such type.
    """
    text = row["precision"].removesuffix(" (TE)")
    if text in ("FP8", "MXFP8"):
        return "bfloat16", "f8"
    if text not in _DTYPES:
        raise NotExpressed(f"no model computes in {text or 'an unknown type'}")
    return _DTYPES[text], ""


def recomputation(row: Row, kernel: bool) -> dict[str, Any]:
    """Fields of a language model's configuration. What is not stated is none.

    Megatron-LM's selective recomputation is that of scores and softmax, which one kernel does by itself.
    """
    text, layers = row["recompute"], number(row, "layers")
    some = re.match(r"full on (\d+) of", text)
    if some:
        return {"remat": True, "recomputed": int(some[1])}
    if "every other layer" in text:
        return {"remat": True, "recomputed": layers // 2}
    if text.startswith("full"):
        return {"remat": True}
    for pattern, saved in _SAVED:
        if re.search(pattern, text):
            return {"remat": True, "saved": saved}
    if text == "selective" or "GeLU" in text:
        return dict(_NO_RECOMPUTATION) if kernel else {"remat_scores": True}
    if text and not text.startswith("none"):
        raise NotExpressed(f"recomputation {text!r} has no policy of jax.checkpoint")
    return dict(_NO_RECOMPUTATION)


def model_of(row: Row) -> Model:
    """The model of a row.

    Raises:
      NotExpressed: no module of examples/models has its architecture; says why.
    """
    arch = row["arch"].split()[0]
    if arch == "unet":
        raise NotExpressed("the U-Net of examples/models is that of diffusion, with residual blocks and attention")
    if arch not in _BUILD:
        raise NotExpressed(f"examples/models has no {row['arch']}")
    return _BUILD[arch](row)


def _attention(row: Row, notes: list[str]) -> str:
    if not fused_attention(row):
        return "xla"
    head = number(row, "head_dim")
    if head > 128 or head % 8:
        notes.append(f"plain attention: cuDNN's has no heads of {head}")
        return "xla"
    return "cudnn"


def _decoder(row: Row) -> Model:
    """GPT and Llama: the latter where there are gates, or keys that queries share."""
    from examples.models.gpt import GPTConfig
    from examples.models.llama import LlamaConfig

    notes: list[str] = []
    dtype, products = precision(row)
    layers, width, heads = (number(row, name) for name in ("layers", "hidden", "heads"))
    attention = _attention(row, notes)
    common: dict[str, Any] = {
        "layers": layers, "width": width, "heads": heads, "vocab": number(row, "vocab"), "dtype": dtype,
        "seq_len": number(row, "seq_len"), "scan": True, "attention": attention, "products": products,
        **recomputation(row, attention == "cudnn"),
    }  # fmt: skip
    if width != heads * number(row, "head_dim", width // heads):
        raise NotExpressed(f"heads of {row['head_dim']} are not the width of {width} over {heads}")
    kv_heads, gated = number(row, "kv_heads", heads), row["ffn_gated"] == "1"
    hidden = number(row, "ffn", 4 * width)
    if kv_heads == heads and not gated and hidden == 4 * width:
        return Model("gpt", GPTConfig(**common), layers, tuple(notes))
    if common.pop("remat_scores", False):
        notes.append("scores are kept")
    return Model("llama", LlamaConfig(**common, kv_heads=kv_heads, hidden=hidden, gated=gated), layers, tuple(notes))


def _gshard(row: Row) -> Model:
    from examples.models.moe import MoEConfig

    dtype, _ = precision(row)
    told = moe_fields(row)
    config = MoEConfig(
        layers=number(row, "layers"), width=number(row, "hidden"), heads=number(row, "heads"), experts=told["E"],
        group=2048, vocab=number(row, "vocab"), seq_len=number(row, "seq_len"), dtype=dtype, scan=True,
        remat=row["recompute"] == "full",
    )  # fmt: skip
    return Model("moe", config, config.layers // 2)


def _sparse(row: Row) -> Model:
    from examples.models.sparse_llama import SparseLlamaConfig

    dtype, products = precision(row)
    told = moe_fields(row)
    ranks = re.search(r"q_lora (\d+), kv_lora (\d+), qk \d+\+(\d+)", row["notes"])
    query, key, rotated = map(int, ranks.groups()) if ranks else (0, 0, 0)
    notes: list[str] = []
    if ranks:
        notes.append(f"values padded to heads of {number(row, 'head_dim') + rotated}")
    if told.get("dense_layers") and number(row, "pp", 1) > 1:
        notes.append("the first layers have experts, too")
    recomputed = recomputation(row, kernel=True)
    config = SparseLlamaConfig(
        layers=number(row, "layers"), width=number(row, "hidden"), heads=number(row, "heads"),
        kv_heads=number(row, "kv_heads"), head=number(row, "head_dim"), hidden=number(row, "ffn"),
        vocab=number(row, "vocab"), seq_len=number(row, "seq_len"), experts=told["E"], chosen=told["topk"],
        expert=told["moe_ffn"], shared=told.get("shared", 0), dense=told.get("dense_layers", 0),
        query_rank=query, key_rank=key, rotated=rotated, dtype=dtype, products=products, scan=True,
        attention="cudnn" if fused_attention(row) else "xla", **recomputed,
    )  # fmt: skip
    return Model("sparse_llama", config, config.layers, tuple(notes))


def moe_fields(row: Row) -> dict[str, int]:
    """The column `moe`, "E=8,topk=2,...", by name."""
    return {name: int(value) for name, _, value in (part.partition("=") for part in row["moe"].split(",")) if value}


def _bert(row: Row) -> Model:
    from examples.models.bert import BERTConfig

    found = re.search(r"MLM head on (\d+)", row["notes"])
    config = BERTConfig(
        layers=number(row, "layers"), width=number(row, "hidden"), heads=number(row, "heads"),
        vocab=number(row, "vocab"), seq_len=number(row, "seq_len"), dtype=precision(row)[0], scan=True,
        predicted=int(found[1]) if found else 0,
    )  # fmt: skip
    return Model("bert", config, config.layers, ("Adam for LAMB",))


def _vit(row: Row) -> Model:
    from examples.models.vit import ViTConfig

    tokens = number(row, "seq_len") - 1
    config = ViTConfig(
        layers=number(row, "layers"), width=number(row, "hidden"), heads=number(row, "heads"),
        patch=224 // round(tokens**0.5), dtype=precision(row)[0], scan=True, hidden=number(row, "ffn"),
    )  # fmt: skip
    return Model("vit", config, config.layers)


def _t5(row: Row) -> Model:
    from examples.models.t5 import T5Config

    dtype, products = precision(row)
    layers = int(row["layers"].split("+")[0])
    config = T5Config(
        layers=layers, width=number(row, "hidden"), heads=number(row, "heads"), head_dim=number(row, "head_dim"),
        hidden=number(row, "ffn"), vocab=number(row, "vocab"), seq_len=number(row, "seq_len"), target_len=114,
        gated=row["ffn_gated"] == "1", dtype=dtype, products=products, scan=True,
    )  # fmt: skip
    return Model("t5", config, layers, ("tied embeddings",))


def _resnet(row: Row) -> Model:
    from examples.models.convnet import ConvNetConfig

    blocks = {50: (3, 4, 6, 3)}[number(row, "layers", 50)]
    config = ConvNetConfig(blocks, width=64, classes=1000, image=224, bottleneck=True, dtype=precision(row)[0])
    return Model("convnet", config, 1)


def _wide_resnet(row: Row) -> Model:
    from examples.models.wide_resnet import WideResNetConfig

    found = re.search(r"C=(\d+), width x(\d+)", row["model"])
    if found is None:
        raise NotExpressed("its channels are not told")
    config = WideResNetConfig(
        (3, 4, 6, 3), width=int(found[1]), widening=int(found[2]), dtype=precision(row)[0], scan=True
    )
    return Model("wide_resnet", config, 1)


_BUILD: Mapping[str, Callable[[Row], Model]] = {
    "gpt": _decoder,
    "llama": _decoder,
    "moe": _sparse,
    "moe-gshard": _gshard,
    "bert": _bert,
    "vit": _vit,
    "t5": _t5,
    "resnet": _resnet,
    "wide-resnet": _wide_resnet,
}

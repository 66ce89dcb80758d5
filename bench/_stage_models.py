"""A GPT and a U-Net of `examples`, in four stages: their own layers and losses, with parameters split as Megatron does.

Owns which layers are which stage's. Knows nothing of programs and processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench._stage_programs import Stage, StagedModel

STAGES = 4

# By the last names of a parameter: the dimension that is split over the devices of a stage. Others are whole on all.
_SPLITS: Mapping[tuple[str, str], int] = {
    **{(name, "kernel"): 1 for name in ("query", "key", "value", "up")},
    **{(name, "bias"): 0 for name in ("query", "key", "value", "up", "conv_in")},
    **{(name, "kernel"): 0 for name in ("out", "down")},
    ("conv_in", "kernel"): 3,
    ("conv_out", "kernel"): 2,
}


def make_gpt(microbatches: int, rows: int = 8, width: int = 128, length: int = 128) -> StagedModel:
    """A decoder with a block on each stage; what goes from stage to stage is float32[rows, length, width]."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import linen as nn

    from examples.models import gpt

    config = dataclasses.replace(
        gpt.PRESETS["tiny"], layers=STAGES, width=width, heads=4, seq_len=length, vocab=256, tied=False
    )
    embed, norm = nn.Embed(config.vocab, width), nn.LayerNorm()
    head = nn.Dense(config.vocab, use_bias=False)
    blocks = [gpt.Block(config) for _ in range(STAGES)]
    keys = iter(jax.random.split(jax.random.key(0), STAGES + 4))
    x = jnp.zeros((1, length, width))
    start = {
        "embed": embed.init(next(keys), jnp.zeros((1, 1), jnp.int32)),
        "positions": 0.02 * jax.random.normal(next(keys), (length, width)),
    }
    end = {"norm": norm.init(next(keys), x), "head": head.init(next(keys), x)}
    own = [{"block": block.init(next(keys), x)} for block in blocks]

    def run(index: int, params: Any, batch: Sequence[Any], inputs: Sequence[Any]) -> Any:
        if index == 0:
            (tokens,) = batch
            h = embed.apply(params["embed"], tokens) + params["positions"]
        else:
            (h,) = inputs
        h, _ = blocks[index].apply(params["block"], h)
        if index < STAGES - 1:
            return [h]
        logits = head.apply(params["head"], norm.apply(params["norm"], h))
        return gpt.next_token_loss(logits, batch[0])

    tokens = np.random.default_rng(0).integers(config.vocab, size=(microbatches, rows, length + 1), dtype=np.int32)
    stages = []
    for s in range(STAGES):
        params = own[s] | (start if s == 0 else {}) | (end if s == STAGES - 1 else {})
        reads = (f"h{s - 1}",) if s else ()
        makes = (f"h{s}",) if s < STAGES - 1 else ()
        batch = {0: ("inputs",), STAGES - 1: ("targets",)}.get(s, ())
        stages.append(_stage(params, batch, reads, makes, run, s))
    return StagedModel("GPT", stages, {"inputs": tokens[:, :, :-1].copy(), "targets": tokens[:, :, 1:].copy()})


# What the U-Net's stages begin with; the first begins with the stem.
_CUTS = ("down_0_half", "mid_attn", "up_0_0")


def make_unet(microbatches: int, rows: int = 1, width: int = 32, image: int = 32) -> StagedModel:
    """Two levels of one block; skips go directly from the stage that saves them to the one that takes them."""
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import linen as nn

    from examples.models import unet

    config = dataclasses.replace(unet.PRESETS["tiny"], image=image, width=width, blocks=1, attention=(), head_dim=32)
    layers = list(unet.plan(config))
    bounds = [0, *(next(i for i, layer in enumerate(layers) if layer.name == cut) for cut in _CUTS), len(layers)]
    # Which stage saves and which takes each skip; the first one is the stem's result.
    stage_of = [s for s in range(STAGES) for _ in range(bounds[s], bounds[s + 1])]
    saved, taken, stack = [0], {}, [0]
    for layer, s in zip(layers, stage_of, strict=True):
        if layer.skip:
            taken[stack.pop()] = s
        if layer.save:
            stack.append(len(saved))
            saved.append(s)
    keys = iter(jax.random.split(jax.random.key(1), 64))
    dense = functools.partial(nn.Dense, config.embedding)
    time_in, time_out, stem = dense(), dense(), nn.Conv(width, (3, 3))
    label = nn.Embed(config.classes, config.embedding)
    norm, out = nn.GroupNorm(config.norm_groups), nn.Conv(3, (3, 3))

    def module(layer: Any) -> Any:
        if layer.kind == "attention":
            return unet.Attention(config)
        return unet.ResidualBlock(config, layer.kind, layer.channels)

    def layer_params(layer: Any) -> Any:
        x = jnp.zeros((1, 8, 8, layer.channels_in))
        more = () if layer.kind == "attention" else (jnp.zeros((1, config.embedding)),)
        return module(layer).init(next(keys), x, *more)

    own: list[dict[str, Any]] = [{} for _ in range(STAGES)]
    for layer, s in zip(layers, stage_of, strict=True):
        own[s][layer.name] = layer_params(layer)
    wide = jnp.zeros((1, config.embedding))
    own[0] |= {
        "time_in": time_in.init(next(keys), jnp.zeros((1, width))),
        "time_out": time_out.init(next(keys), wide),
        "label": label.init(next(keys), jnp.zeros(1, jnp.int32)),
        "stem": stem.init(next(keys), jnp.zeros((1, 8, 8, 3))),
    }
    x = jnp.zeros((1, 8, 8, width))
    own[-1] |= {"norm": norm.init(next(keys), x), "last": out.init(next(keys), x)}
    makes = [(f"x{s}", *(f"skip{k}" for k, m in enumerate(saved) if m == s and taken[k] > s)) for s in range(STAGES)]
    makes[0], makes[-1] = (*makes[0], "embedding"), ()
    reads = [
        (f"x{s - 1}", "embedding", *(f"skip{k}" for k, t in taken.items() if t == s and saved[k] < s)) if s else ()
        for s in range(STAGES)
    ]

    def run(index: int, params: Any, batch: Sequence[Any], inputs: Sequence[Any]) -> Any:
        made = dict(zip(reads[index], inputs, strict=True))
        skip = 0
        if index == 0:
            noisy, time, labels = batch
            embedding = time_in.apply(params["time_in"], unet.time_features(time, width))
            embedding = time_out.apply(params["time_out"], nn.silu(embedding))
            made["embedding"] = embedding + label.apply(params["label"], labels)
            h = made["skip0"] = stem.apply(params["stem"], noisy)
        else:
            h = made[f"x{index - 1}"]
        for layer, s in zip(layers, stage_of, strict=True):
            if s == index:
                if layer.skip:
                    h = jnp.concatenate([h, made[f"skip{order[layer.name]}"]], axis=-1)
                more = () if layer.kind == "attention" else (made["embedding"],)
                h = module(layer).apply(params[layer.name], h, *more)
            if layer.save:
                skip += 1
                if s == index:
                    made[f"skip{skip}"] = h
        if index < STAGES - 1:
            made[f"x{index}"] = h
            return [made[name] for name in makes[index]]
        predicted = out.apply(params["last"], nn.silu(norm.apply(params["norm"], h)))
        return jnp.mean((predicted - batch[0]) ** 2)

    order = dict(zip((layer.name for layer in layers if layer.skip), taken, strict=True))
    example = unet.example_batch(config, microbatches * rows)
    angle = example["time"][:, None, None, None] * np.float32(np.pi / 2)
    example["noisy"] = np.cos(angle) * example["x"] + np.sin(angle) * example["noise"]
    batch = {
        name: example[name].reshape(microbatches, rows, *example[name].shape[1:])
        for name in ("noisy", "time", "label", "noise")
    }
    of_stage = {0: ("noisy", "time", "label"), STAGES - 1: ("noise",)}
    stages = [_stage(own[s], of_stage.get(s, ()), reads[s], makes[s], run, s) for s in range(STAGES)]
    return StagedModel("U-Net", stages, batch)


def _stage(
    params: Mapping[str, Any],
    batch: tuple[str, ...],
    reads: tuple[str, ...],
    makes: tuple[str, ...],
    run: Callable[..., Any],
    index: int,
) -> Stage:
    import jax
    import numpy as np

    flat, tree = jax.tree_util.tree_flatten_with_path(params)
    splits = [_SPLITS.get(tuple(getattr(key, "key", "") for key in path[-2:])) for path, _ in flat]  # type: ignore[arg-type]

    def flat_run(own: Sequence[Any], rows: Sequence[Any], inputs: Sequence[Any]) -> Any:
        return run(index, jax.tree.unflatten(tree, list(own)), rows, inputs)

    return Stage([np.asarray(leaf) for _, leaf in flat], splits, batch, reads, makes, flat_run)

"""Repeated layers of a Flax linen model: one after the other, or as one `nn.scan` over stacked variables.

Owns the two forms and the conversion between their parameters; knows nothing of what a layer computes.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

# What is too dear to be done again only to save memory: jax's names of products, fused attention, gathers and sorts.
_HEAVY = frozenset(
    "dot_general ragged_dot_general conv_general_dilated dot_product_attention_fwd_wrapper gather scatter scatter-add "
    "sort top_k".split()
)


def saves_heavy(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy of `jax.checkpoint`: element-wise work is done again inside the kernels that read it, nothing else."""
    return primitive.name in _HEAVY


def apply_layers(
    block: type[nn.Module],
    x: Any,
    *broadcast: Any,
    count: int,
    name: str,
    scan: bool,
    remat: bool = False,
    saved: str = "",
    recomputed: int = 0,
    variables: tuple[str, ...] = ("params",),
    **fields: Any,
) -> tuple[Any, Any]:
    """Run `count` blocks from within a compact method: `(x, outputs)`, outputs stacked on a new first axis.

    A block is made with `fields` and maps `(x, *broadcast)` to `(x, output)`, where `output` may be None. Unrolled
    blocks are named `{name}_0`, `{name}_1`, ...; a scan is one module `name` whose `variables` are stacked on axis 0.
    `remat` recomputes each block in the backward pass, or only the first `recomputed` ones, which a scan then runs as
    `{name}_recomputed` of their own. `saved` names what is not recomputed, one of `jax.checkpoint_policies`; "" is
    nothing but what blocks are given, and "heavy" whatever is no element-wise work: see `saves_heavy`.
    """
    if count == 0:
        return x, None
    if remat and 0 < recomputed < count:
        if not scan:
            raise ValueError("only a scan recomputes some of its blocks: set scan, or recomputed to 0")
        both: dict[str, Any] = {"scan": True, "variables": variables, **fields}
        part = f"{name}_recomputed"
        x, first = apply_layers(block, x, *broadcast, count=recomputed, name=part, remat=True, saved=saved, **both)
        x, rest = apply_layers(block, x, *broadcast, count=count - recomputed, name=name, **both)
        return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first, rest)
    if remat:
        # Inside a scan the loop itself already keeps the compiler from merging the recomputation away.
        named = saves_heavy if saved == "heavy" else getattr(jax.checkpoint_policies, saved, None)
        policy = named if saved else None
        block = nn.remat(block, prevent_cse=not scan, policy=policy)
    if scan:
        stacked = nn.scan(
            block,
            variable_axes=dict.fromkeys(variables, 0),
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=count,
        )
        return stacked(name=name, **fields)(x, *broadcast)  # type: ignore[no-any-return]
    outputs = []
    for index in range(count):
        x, output = block(name=f"{name}_{index}", **fields)(x, *broadcast)
        outputs.append(output)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)


def stack_layers(variables: dict[str, Any], *names: str) -> dict[str, Any]:
    """Variables of an unrolled model as those of the scanned one: `name_0`, `name_1`, ... become `name`."""
    stacked: dict[str, Any] = {}
    for key, value in variables.items():
        match = re.fullmatch(r"(.+)_\d+", key)
        if match and match[1] in names:
            continue
        stacked[key] = stack_layers(value, *names) if isinstance(value, dict) else value
    for name in names:
        layers = [key for key in variables if re.fullmatch(rf"{re.escape(name)}_\d+", key)]
        if layers:
            values = [variables[f"{name}_{index}"] for index in range(len(layers))]
            stacked[name] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *values)
    return stacked

"""Lion: signs of momenta, with weight decay masked away from biases."""

from __future__ import annotations

from typing import Any

import jax
import optax

from zoo.common import trained_mlp
from zoo.harness import About, Case

ABOUT = About("Optax", "Lion, weight decay with a mask")


def case() -> Case:
    def decayed(params: Any) -> Any:
        return jax.tree.map(lambda p: p.ndim > 1, params)

    return trained_mlp(optax.lion(1e-3, mask=decayed, weight_decay=0.1), rtol=2e-3)

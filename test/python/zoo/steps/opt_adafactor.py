"""Adafactor: second moments as rows and columns, updates relative to the parameters' scale."""

from __future__ import annotations

import optax

from zoo.common import trained_mlp
from zoo.harness import About, Case

ABOUT = About("Optax", "Adafactor, factored moments")


def case() -> Case:
    return trained_mlp(optax.adafactor(1e-2, min_dim_size_to_factor=8))

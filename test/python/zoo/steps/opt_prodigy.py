"""Prodigy: a learning rate estimated from inner products over all parameters."""

from __future__ import annotations

import optax.contrib

from zoo.common import trained_mlp
from zoo.harness import About, Case

ABOUT = About("Optax", "Prodigy: step size from global inner products")


def case() -> Case:
    return trained_mlp(optax.contrib.prodigy(1.0, eps=1e-5), rtol=5e-3)

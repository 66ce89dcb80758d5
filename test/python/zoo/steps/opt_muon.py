"""Muon: Newton-Schulz on the gradients of matrices, Adam for the rest."""

from __future__ import annotations

import optax.contrib

from zoo.common import trained_mlp
from zoo.harness import About, Case

ABOUT = About("Optax", "muon")


def case() -> Case:
    return trained_mlp(optax.contrib.muon(0.02), rtol=2e-3)

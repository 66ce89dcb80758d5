"""MultiSteps: gradients of several calls are accumulated in the state; the update is behind a `lax.cond`."""

from __future__ import annotations

import optax

from zoo.common import trained_mlp
from zoo.harness import About, Case

ABOUT = About("Optax", "MultiSteps: accumulation over calls, update under cond", ci=("one",))


def case() -> Case:
    return trained_mlp(optax.MultiSteps(optax.adam(1e-2, eps=1e-6), every_k_schedule=2))

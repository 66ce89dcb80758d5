"""Schedule-free AdamW: the state keeps a second sequence of parameters."""

from __future__ import annotations

import optax.contrib

from zoo.common import trained_mlp
from zoo.harness import About, Case

ABOUT = About("Optax", "schedule-free AdamW")


def case() -> Case:
    return trained_mlp(optax.contrib.schedule_free_adamw(0.01, warmup_steps=2, eps=1e-5))

"""jax's own test programs, one for every way each primitive is used, as StableHLO text with arguments.

Owns reading them. They are private to jax: names and number differ between versions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np

from bench.differential.trial import Case


@cache
def _all() -> dict[str, Any]:
    from jax._src.internal_test_util import test_harnesses

    found: dict[str, Any] = {}
    for harness in test_harnesses.all_harnesses:
        if harness.filter("cpu") and not any(limit.skip_run for limit in harness.jax_unimplemented):
            found.setdefault(harness.fullname, harness)
    return found


def names() -> list[str]:
    """All of them, in jax's order."""
    return list(_all())


def case_of(name: str) -> Case:
    """One of them; jax's errors come out as they are."""
    harness = _all()[name]
    arguments = harness.dyn_args_maker(np.random.RandomState(0))
    lowered = jax.jit(harness.dyn_fun, keep_unused=True).lower(*arguments)
    flat = [
        np.asarray(
            jax.random.key_data(a)
            if isinstance(a, jax.Array) and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key)
            else a
        )
        for a in jax.tree.leaves(arguments)
    ]
    flat = [
        np.asarray(a, s.dtype)
        if s.dtype != jax.dtypes.prng_key and not jax.dtypes.issubdtype(s.dtype, jax.dtypes.prng_key)
        else a
        for a, s in zip(flat, jax.tree.leaves(lowered.in_avals), strict=True)
    ]
    return Case(name, lowered.as_text(), flat)

"""Passes that say that they left a module as it was: it is not verified again, so they must have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import optax
import pytest
from jax_programs import batch_norm, mlp_step, scanned_gpt_step

from rhino.dialect.context import make_context, parse_text
from rhino.passes.normalize.inline import Inline
from rhino.passes.registry import PassLog, load

# Those of rhino-auto that most steps need nothing of.
LEAVING = (
    "rhino-forward-copies", "rhino-sink-constants", "rhino-batch-lookups", "rhino-neutral-starts",
    "rhino-convert-operands", "rhino-delay-random", "rhino-adopt-mesh", "rhino-describe-kernels",
    "rhino-order-products", "rhino-expose-strided-dims", "rhino-partition-kernels",
)  # fmt: skip


@pytest.mark.parametrize("program", [partial(mlp_step, optax.adam(1e-3)), scanned_gpt_step, batch_norm])
def test_passes_that_say_so_leave_the_module_as_it_was(program: Callable[[bool], str]) -> None:
    module = parse_text(program(True), make_context())
    said = []
    for rewrite in (Inline(), *(load(name)() for name in LEAVING)):
        log, before = PassLog(lambda diagnostic: None, module.operation.location), str(module)
        with module.context:
            rewrite.run(module, log)
        assert not log.unchanged or str(module) == before, rewrite.name
        said += [rewrite.name] * log.unchanged
    assert len(said) > len(LEAVING) // 2

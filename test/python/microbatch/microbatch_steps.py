"""Training steps to split into micro-batches, and how to run them before and after."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir

from rhino.compile import compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager

FAST_COMPILE = {"xla_backend_optimization_level": 0}


def tiny(name: str, batch_size: int = 8, **changes: Any) -> tuple[Any, Any, Any]:
    """The step of a tiny model, a state in the middle of training, and a batch.

    At its start an optimizer's state is zero, and the first step divides gradients by themselves.
    """
    model = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(model.PRESETS["tiny"], **changes)
    state = model.abstract_inputs(config, batch_size)[0]
    random = np.random.default_rng(0)

    def value(path: Any, leaf: Any) -> np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return np.ones(leaf.shape, leaf.dtype)
        drawn = random.normal(0, 0.1, leaf.shape) if "params" in str(path[0]) else random.uniform(0.1, 0.2, leaf.shape)
        return drawn.astype(leaf.dtype)

    state = jax.tree_util.tree_map_with_path(value, state)
    return model.make_train_step(config)[1], state, model.example_batch(config, batch_size)


def lowered(function: Callable[..., Any], *arguments: Any) -> str:
    """The step as jax lowers it, inlined, with roles."""
    module = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo")
    return text_of(str(module.operation.get_asm(enable_debug_info=True)), "rhino-inline", "symbol-dce", "canonicalize",
                   "rhino-classify-args")  # fmt: skip


def text_of(text: str, *passes: str) -> str:
    """The module after some passes."""
    return str(module_after(text, *passes).operation.get_asm(enable_debug_info=True))


def module_after(text: str, *passes: str) -> ir.Module:
    """The module after some passes, verified."""
    context = make_context()
    module = parse_text(text, context)
    manager = PassManager(context)
    for name in passes:
        manager.add(name)
    manager.run(module)
    module.operation.verify()
    return module


def split(text: str, count: int, sums: int = 1) -> str:
    """The step over micro-batches, with so many local sums."""
    return text_of(text, f"rhino-split-microbatch{{count={count} sums={sums}}}")


def run(text: str, arguments: Sequence[Any]) -> list[np.ndarray]:
    """The results on one CPU device."""
    return [np.asarray(out) for out in compile_module(text, "cpu", options=FAST_COMPILE)(*arguments)]


def agree(got: Sequence[np.ndarray], want: Sequence[np.ndarray], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Checks that results are the same up to the order of additions; `atol` is relative to each result's largest."""
    assert len(got) == len(want)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = float(np.abs(b.astype(np.float64)).max()) if b.size else 0.0
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol * max(scale, 1e-30), err_msg=f"result {i}")

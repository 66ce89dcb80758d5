"""A chain of stages as a pipelined step, made without planning: each stage runs the same loop of narrow layers.

The matrices are so small that XLA computes each on one core, so that two stages can run beside each other on two cores.
Backward computes its stage's forward again. Owns the programs of the stages and the same step for plain `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Chain:
    """The size of a case: `layers` per stage, `rows` per micro-batch."""

    stages: int
    groups: int
    microbatches: int
    layers: int
    rows: int = 64
    width: int = 96

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.stages} stages on {self.groups}, {self.microbatches} micro-batches"


def functions(chain: Chain) -> dict[str, Callable[..., Any]]:
    """What the fragments compute, by kind; "first" and "last" are the stages where it differs."""
    import jax
    import jax.numpy as jnp

    def layers(params: Any, x: Any) -> Any:
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params)[0]

    def take(batch: Any, index: Any) -> Any:
        return jax.lax.dynamic_index_in_dim(batch, index, keepdims=False)

    def backward(params: Any, x: Any, gradient: Any, total: Any) -> Any:
        of_params, of_x = jax.vjp(layers, params, x)[1](gradient)
        return of_x, total + of_params

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(layers(params, x) ** 2) / (chain.rows * chain.microbatches)

    def last_backward(params: Any, x: Any, total: Any, losses: Any) -> Any:
        value, (of_params, of_x) = jax.value_and_grad(loss, (0, 1))(params, x)
        return of_x, total + of_params, losses + value

    return {
        "layers": layers,
        "first forward": lambda params, batch, index: (x := take(batch, index), layers(params, x)),
        "forward": layers,
        "first backward": lambda *args: backward(*args)[1],
        "backward": backward,
        "last backward": last_backward,
        "prepare": lambda: jnp.zeros((chain.layers, chain.width, chain.width)),
        "last prepare": lambda: (jnp.zeros((chain.layers, chain.width, chain.width)), jnp.zeros(())),
        "update": lambda params, total: params - RATE * total,
    }


def build(chain: Chain) -> tuple[Any, list[str]]:
    """The program, and the module of each of its fragments."""
    import jax

    from rhino.pipeline.program import (
        Fragment,
        GroupMesh,
        GroupValue,
        PipelineProgram,
        Result,
        StageArgument,
        StageCarry,
        Transfer,
    )

    count, width = chain.stages, chain.width
    values: list[GroupValue] = []
    weights, rows = (chain.layers, width, width), (chain.rows, width)

    def value(stage: int, shape: tuple[int, ...], scope: str, dtype: str = "f32") -> int:
        values.append(GroupValue(len(values), stage % chain.groups, shape, dtype, ((),) * len(shape), scope))
        return len(values) - 1

    known = functions(chain)
    modules: list[str] = []
    texts: dict[tuple[Any, ...], str] = {}
    moved = 0

    def fragment(kind: str, function: str, stage: int, operands: tuple[int, ...], results: tuple[int, ...]) -> Fragment:
        types = {"f32": "float32", "ui32": "uint32"}
        shapes = tuple((values[v].shape, types[values[v].dtype]) for v in operands)
        if (function, shapes) not in texts:
            lowered = jax.jit(known[function], keep_unused=True).lower(*(jax.ShapeDtypeStruct(*s) for s in shapes))
            texts[function, shapes] = lowered.as_text()
        modules.append(texts[function, shapes])
        return Fragment(len(modules) - 1, kind, stage, stage % chain.groups, 0, operands, results)

    def transfer(source: int, of: str, start: int, stop: int) -> tuple[list[Any], int]:
        nonlocal moved
        target = value(stop, values[source].shape, "microbatch")
        moved += 1
        return [Transfer(moved - 1, source, target, of, 0, start, stop)], target

    last = count - 1
    params = [value(s, weights, "step") for s in range(count)]
    batch = value(0, (chain.microbatches, *rows), "step")
    index = value(0, (), "microbatch", "ui32")
    sums = [
        tuple(value(s, weights, scope) for scope in ("step", "microbatch", "microbatch", "step")) for s in range(count)
    ]
    losses = tuple(value(last, (), scope) for scope in ("step", "microbatch", "microbatch", "step"))
    before = [fragment("prepare", "prepare", s, (), (sums[s][0],)) for s in range(last)]
    before.append(fragment("prepare", "last prepare", last, (), (sums[last][0], losses[0])))
    body: list[Any] = []
    entering: list[int] = []
    for s in range(count):
        out = value(s, rows, "microbatch")
        if s == 0:
            entering.append(value(0, rows, "microbatch"))
            body.append(fragment("forward", "first forward", 0, (params[0], batch, index), (entering[0], out)))
        else:
            body.append(fragment("forward", "forward", s, (params[s], entering[s]), (out,)))
        if s < last:
            ops, there = transfer(out, "forward", s, s + 1)
            body += ops
            entering.append(there)
    gradient = value(last, rows, "microbatch")
    operands = (params[last], entering[last], sums[last][1], losses[1])
    body.append(fragment("backward", "last backward", last, operands, (gradient, sums[last][2], losses[2])))
    for s in reversed(range(last)):
        ops, arrived = transfer(gradient, "backward", s + 1, s)
        body += ops
        operands = (params[s], entering[s], arrived, sums[s][1])
        if s == 0:
            body.append(fragment("backward", "first backward", 0, operands, (sums[0][2],)))
        else:
            gradient = value(s, rows, "microbatch")
            body.append(fragment("backward", "backward", s, operands, (gradient, sums[s][2])))
    new = [value(s, weights, "step") for s in range(count)]
    after = [fragment("update", "update", s, (params[s], sums[s][3]), (new[s],)) for s in range(count)]
    carried = [*zip(sums, range(count), strict=True), (losses, last)]
    program = PipelineProgram(
        stages=count,
        microbatches=chain.microbatches,
        meshes=tuple(GroupMesh(f"stage{g}", (), (g,)) for g in range(chain.groups)),
        values=tuple(values),
        arguments=(
            *(StageArgument(v, s, (), s, True) for s, v in enumerate(params)),
            StageArgument(batch, count, (), -1, False),
        ),
        results=(*(Result(v, s, ()) for s, v in enumerate(new)), Result(losses[3], count, ())),
        before=tuple(before),
        body=tuple(body),
        after=tuple(after),
        carries=tuple(StageCarry(held[0], held[1], held[2], held[3], s) for held, s in carried),
        counters=(index, *(-1,) * (chain.groups - 1)),
    )
    return program, modules


def whole_step(chain: Chain) -> Callable[..., Any]:
    """The same step as a user writes it for one device: all rows at once."""
    import jax
    import jax.numpy as jnp

    layers = functions(chain)["layers"]

    def loss(params: list[Any], batch: Any) -> Any:
        h = batch.reshape(-1, chain.width)
        for stage in params:
            h = layers(stage, h)
        return jnp.sum(h**2) / h.shape[0]

    def step(*arguments: Any) -> Any:
        *params, batch = arguments
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return [p - RATE * g for p, g in zip(params, gradients, strict=True)], value

    return step


def arguments(chain: Chain) -> list[Any]:
    """Parameters of all stages, and a batch cut into micro-batches."""
    import numpy as np

    random = np.random.default_rng(0)
    shape = (chain.layers, chain.width, chain.width)
    params = [random.standard_normal(shape, np.float32) / np.float32(chain.width**0.5) for _ in range(chain.stages)]
    return [*params, random.standard_normal((chain.microbatches, chain.rows, chain.width), np.float32)]

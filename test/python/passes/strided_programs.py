"""Layers that make several things with one matrix, in the ways people write them, and each with a matrix per thing.

Owns the programs, as jax lowers a whole training step with them: loss, gradients, clipping, AdamW. Parameters called
`o` read what the layer made, and are split by rows over devices; all others by columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager

Params = dict[str, jax.Array]
Block = Callable[[Params, jax.Array], jax.Array]
F32 = jnp.float32


@dataclass(frozen=True, slots=True)
class Layer:
    """A residual layer: the shapes of its parameters for a width, and what it computes of x of (batch, time, width)."""

    shapes: Callable[[int], dict[str, tuple[int, ...]]]
    block: Block


def attend(q: jax.Array, k: jax.Array, v: jax.Array, heads: int, kv_heads: int) -> jax.Array:
    """Attention of `heads` query heads, of which `heads / kv_heads` share keys and values."""
    batch, time, width = q.shape
    q = q.reshape(batch, time, kv_heads, heads // kv_heads, width // heads)
    k, v = (t.reshape(batch, time, kv_heads, -1) for t in (k, v))
    scores = jax.nn.softmax(jnp.einsum("bqhgd,bkhd->bhgqk", q, k))
    return jnp.einsum("bhgqk,bkhd->bqhgd", scores, v).reshape(batch, time, width)


def by_split(y: jax.Array, n: int) -> list[jax.Array]:
    """`jnp.split`."""
    return jnp.split(y, n, axis=-1)


def by_slices(y: jax.Array, n: int) -> list[jax.Array]:
    """Slices with `...`."""
    c = y.shape[-1] // n
    return [y[..., i * c : (i + 1) * c] for i in range(n)]


def by_index(y: jax.Array, n: int) -> list[jax.Array]:
    """A reshape to (n, chunk), then an index."""
    z = y.reshape(*y.shape[:-1], n, -1)
    return [z[..., i, :] for i in range(n)]


def by_moved_axis(y: jax.Array, n: int) -> list[jax.Array]:
    """einops' '... (n c) -> n ... c', unpacked."""
    return list(jnp.moveaxis(y.reshape(*y.shape[:-1], n, -1), -2, 0))


STYLES = {f.__name__: f for f in (by_split, by_slices, by_index, by_moved_axis)}


def qkv(style: Callable[..., Any] = by_split) -> Layer:
    """Queries, keys and values with one matrix and bias."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        return x + attend(*style(x @ p["w"] + p["b"], 3), heads=4, kv_heads=4) @ p["o"]

    return Layer(lambda h: {"w": (h, 3 * h), "b": (3 * h,), "o": (h, h)}, block)


def qkv_by_hand() -> Layer:
    """The same with three matrices."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        return x + attend(*(x @ p[f"w{c}"] + p[f"b{c}"] for c in "qkv"), heads=4, kv_heads=4) @ p["o"]

    return Layer(lambda h: {f"w{c}": (h, h) for c in "qkv"} | {f"b{c}": (h,) for c in "qkv"} | {"o": (h, h)}, block)


def heads_by_einops() -> Layer:
    """'b t (three heads head) -> three b heads t head', and queries, keys and values by index."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        z = (x @ p["w"]).reshape(*x.shape[:2], 3, 4, -1).transpose(2, 0, 3, 1, 4)
        scores = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", z[0], z[1]))
        return x + jnp.einsum("bhqk,bhkd->bqhd", scores, z[2]).reshape(x.shape) @ p["o"]

    return Layer(lambda h: {"w": (h, 3 * h), "o": (h, h)}, block)


def grouped_kv() -> Layer:
    """Keys and values with one matrix, shared by two query heads each."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        return x + attend(x @ p["q"], *jnp.split(x @ p["kv"], 2, axis=-1), heads=8, kv_heads=4) @ p["o"]

    return Layer(lambda h: {"q": (h, h), "kv": (h, h), "o": (h, h)}, block)


def grouped_kv_by_hand() -> Layer:
    """The same with two matrices."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        return x + attend(x @ p["q"], x @ p["k"], x @ p["v"], heads=8, kv_heads=4) @ p["o"]

    return Layer(lambda h: {"q": (h, h), "k": (h, h // 2), "v": (h, h // 2), "o": (h, h)}, block)


def swiglu(style: Callable[..., Any] = by_split) -> Layer:
    """A gated feed-forward layer, gate and up with one matrix."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        gate, up = style(x @ p["w"], 2)
        return x + (jax.nn.silu(gate) * up) @ p["o"]

    return Layer(lambda h: {"w": (h, 8 * h), "o": (4 * h, h)}, block)


def swiglu_by_hand() -> Layer:
    """The same with two matrices."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        return x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["o"]

    return Layer(lambda h: {"gate": (h, 4 * h), "up": (h, 4 * h), "o": (4 * h, h)}, block)


def recurrent(cell: Callable[..., Any], shapes: Callable[[int], dict[str, tuple[int, ...]]]) -> Layer:
    """A cell scanned over time: (parameters, (hidden, memory), input) -> (hidden, memory)."""

    def block(p: Params, x: jax.Array) -> jax.Array:
        def one(state: Any, x: jax.Array) -> Any:
            state = cell(p, state, x)
            return state, state[0]

        zero = jnp.zeros((x.shape[0], x.shape[2]), x.dtype)
        return jax.lax.scan(one, (zero, zero), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return Layer(shapes, block)


def _lstm_gates(i: jax.Array, f: jax.Array, g: jax.Array, o: jax.Array, memory: jax.Array) -> Any:
    memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(memory), memory


def _gru_gates(x: Any, h: Any, hidden: jax.Array) -> Any:
    reset, update = jax.nn.sigmoid(x[0] + h[0]), jax.nn.sigmoid(x[1] + h[1])
    new = (1 - update) * jnp.tanh(x[2] + reset * h[2]) + update * hidden
    return new, new


def lstm() -> Layer:
    """Four gates with one matrix for the input and one for the state."""

    def cell(p: Params, state: Any, x: jax.Array) -> Any:
        return _lstm_gates(*jnp.split(x @ p["x"] + state[0] @ p["h"] + p["b"], 4, axis=-1), state[1])

    return recurrent(cell, lambda h: {"x": (h, 4 * h), "h": (h, 4 * h), "b": (4 * h,)})


def lstm_by_hand() -> Layer:
    """The same with a matrix per gate."""

    def cell(p: Params, state: Any, x: jax.Array) -> Any:
        return _lstm_gates(*(x @ p[f"x{g}"] + state[0] @ p[f"h{g}"] + p[f"b{g}"] for g in "ifgu"), state[1])

    return recurrent(
        cell, lambda h: {f"{k}{g}": (h, h) for k in "xh" for g in "ifgu"} | {f"b{g}": (h,) for g in "ifgu"}
    )


def lstm_concatenated() -> Layer:
    """Four gates of [input, state] with one matrix."""

    def cell(p: Params, state: Any, x: jax.Array) -> Any:
        joined = jnp.concatenate([x, state[0]], axis=-1)
        return _lstm_gates(*jnp.split(joined @ p["w"] + p["b"], 4, axis=-1), state[1])

    return recurrent(cell, lambda h: {"w": (2 * h, 4 * h), "b": (4 * h,)})


def gru() -> Layer:
    """Three gates with one matrix for the input and one for the state."""

    def cell(p: Params, state: Any, x: jax.Array) -> Any:
        return _gru_gates(by_split(x @ p["x"] + p["b"], 3), by_split(state[0] @ p["h"], 3), state[0])

    return recurrent(cell, lambda h: {"x": (h, 3 * h), "h": (h, 3 * h), "b": (3 * h,)})


def gru_by_hand() -> Layer:
    """The same with a matrix per gate."""

    def cell(p: Params, state: Any, x: jax.Array) -> Any:
        return _gru_gates(
            [x @ p[f"x{g}"] + p[f"b{g}"] for g in "ruz"], [state[0] @ p[f"h{g}"] for g in "ruz"], state[0]
        )

    return recurrent(cell, lambda h: {f"{k}{g}": (h, h) for k in "xh" for g in "ruz"} | {f"b{g}": (h,) for g in "ruz"})


# Name -> the layer with one matrix, and by hand with several.
PAIRS = {
    "qkv": (qkv(), qkv_by_hand()),
    "grouped kv": (grouped_kv(), grouped_kv_by_hand()),
    "swiglu": (swiglu(), swiglu_by_hand()),
    "lstm": (lstm(), lstm_by_hand()),
    "gru": (gru(), gru_by_hand()),
}
FUSED = (
    {f"qkv {name}": qkv(style) for name, style in STYLES.items()}
    | {f"swiglu {name}": swiglu(style) for name, style in STYLES.items()}
    | {"heads by einops": heads_by_einops(), "grouped kv": grouped_kv(), "lstm": lstm(), "gru": gru()}
    | {"lstm concatenated": lstm_concatenated()}
)


def train_step(
    layer: Layer, width: int, batch: int = 4, time: int = 8, layers: int = 2, scan: bool = False, optimizer: Any = None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step of a stack of the layer, with recomputation when scanned, and its abstract arguments."""
    optimizer = optimizer or optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    shapes = layer.shapes(width)

    def forward(p: Any, x: jax.Array) -> jax.Array:
        if scan:
            return jax.lax.scan(lambda h, q: (jax.checkpoint(layer.block)(q, h), None), x, p)[0]
        for q in p:
            x = layer.block(q, x)
        return x

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        p, moments = state
        loss, gradients = jax.value_and_grad(lambda p: ((forward(p, x) - y) ** 2).mean())(p)
        updates, moments = optimizer.update(gradients, moments, p)
        return (optax.apply_updates(p, updates), moments), loss

    def spec(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, F32)

    params: Any = {name: spec(layers, *shape) for name, shape in shapes.items()}
    if not scan:
        params = [{name: spec(*shape) for name, shape in shapes.items()} for _ in range(layers)]
    x = spec(batch, time, width)
    return step, ((params, jax.eval_shape(optimizer.init, params)), x, x)


def lowered(step: Callable[..., Any], arguments: tuple[Any, ...], expose: bool) -> ir.Module:
    """The step as jax lowers it, its state donated, with roles; with strided dimensions exposed if wanted."""
    text = jax.jit(step, donate_argnums=(0,), keep_unused=True).lower(*arguments).compiler_ir("stablehlo")
    module = parse_text(str(text.operation.get_asm(enable_debug_info=True)), make_context())
    passes = PassManager(module.context).add("inline").add("symbol-dce").add("rhino-classify-args")
    (passes.add("rhino-expose-strided-dims") if expose else passes).run(module)
    return module


def values(module: ir.Module) -> list[np.ndarray]:
    """Small random arguments."""
    main = functions.find(module, "main")
    assert main is not None
    random = np.random.default_rng(0)
    kinds = main.attributes["function_type"].value.inputs
    return [
        np.asarray(random.uniform(-0.4, 0.4, tuple(k.shape)), np.float32)
        if str(k.element_type) == "f32"
        else np.zeros(tuple(k.shape), np.int32)
        for k in kinds
    ]

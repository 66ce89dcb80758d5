"""rhino-order-products: the same numbers, and stacks that loops read in the order in which they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.ordered_products import order_products
from rhino.passes.pass_manager import PassManager
from rhino.program.orders import copied_stacks

GROUPS, WIDTH = 2, 8


def module_of(function: Callable[..., Any], shapes: Sequence[Sequence[int]]) -> ir.Module:
    """A step as the pass finds it, in a list of passes."""
    tensors = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    module = parse_text(jax.jit(function).lower(*tensors).as_text(), make_context())
    passes = "rhino-inline,symbol-dce,canonicalize,func.func(chlo-legalize-to-stablehlo)"
    PassManager.parse(f"builtin.module({passes})", module.context).run(module)
    return module


def evaluated(module: ir.Module, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    with module.context:
        return [
            np.array(out) for out in stablehlo.eval_module(module, [ir.DenseElementsAttr.get(a) for a in arguments])
        ]


def drawn(shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def layers(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of layers of grouped attention, whose loop keeps the scores: keys before queries and groups."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        queries = (h @ w).reshape(*h.shape[:2], GROUPS, WIDTH)
        keys = h[..., :WIDTH]
        scores = jnp.einsum("bkd,bqgd->bkqg", keys, queries).transpose(0, 3, 2, 1)
        return h + jnp.einsum("bgqk,bkd->bqgd", scores * scores, keys).reshape(h.shape), None

    return jax.grad(lambda w: jnp.mean(jax.lax.scan(layer, x, w)[0]))(weights)


def test_stacks_lie_as_they_are_read() -> None:
    shapes = (3, GROUPS * WIDTH, GROUPS * WIDTH), (2, 48, GROUPS * WIDTH)
    module, arguments = module_of(layers, shapes), [a / 8 for a in drawn(shapes)]
    assert copied_stacks(import_graph(module))
    want = evaluated(module, arguments)
    assert order_products(module) == 1
    assert not copied_stacks(import_graph(module))
    np.testing.assert_allclose(evaluated(module, arguments), want, rtol=1e-4, atol=1e-7)
    assert order_products(module) == 0


@st.composite
def products(draw: st.DrawFn) -> tuple[Callable[..., Any], list[tuple[int, ...]], bool]:
    """A transposed product that a stack gets, of dimensions in any order; and whether a product can have its order."""
    batch, left, right = ([f"{kind}{i}" for i in range(draw(st.integers(0, 2)))] for kind in "blr")
    # What is contracted has one element, so that the result is not the smaller one.
    sizes = {name: draw(st.integers(2, 4)) for name in (*batch, *left, *right)} | {"c": 1}
    a, b = (draw(st.permutations([*batch, *own, "c"])) for own in (left, right))
    made = [*batch, *(n for n in a if n in left), *(n for n in b if n in right)]
    possible = draw(st.booleans())
    if possible:
        heads, *sides = (draw(st.permutations(names)) for names in (batch, left, right))
        wanted = [*heads, *(n for side in draw(st.permutations(sides)) for n in side)]
    else:
        wanted = draw(st.permutations(made))

    def step(x: jax.Array, y: jax.Array, stack: jax.Array) -> jax.Array:
        numbers = ([a.index("c")], [b.index("c")]), ([a.index(n) for n in batch], [b.index(n) for n in batch])
        row = jax.lax.dot_general(x, y, numbers).transpose([made.index(n) for n in wanted])
        return jax.lax.dynamic_update_slice(stack, row[None], (1,) + (0,) * row.ndim)

    shapes = [tuple(sizes[n] for n in names) for names in (a, b, wanted)]
    return step, [*shapes[:2], (3, *shapes[2])], possible


@given(products())
@settings(max_examples=60, deadline=None)
def test_the_same_numbers_in_every_order(drawing: tuple[Callable[..., Any], list[tuple[int, ...]], bool]) -> None:
    step, shapes, possible = drawing
    module, arguments = module_of(step, shapes), drawn(shapes)
    turned = "stablehlo.transpose" in str(module)
    want = evaluated(module, arguments)
    changed = order_products(module)
    (got,) = evaluated(module, arguments)
    np.testing.assert_array_equal(got, want[0])
    larger = np.prod(shapes[2][1:]) > np.prod(shapes[0]) + np.prod(shapes[1])
    assert changed <= (turned and larger)
    if possible:
        assert changed == (turned and larger)

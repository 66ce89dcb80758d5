"""Convolutions as XLA's library takes them: forward or a gradient, over how many features, in which order."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.program import Graph
from rhino.program.data import Convolved, Op
from rhino.program.products import product_of
from rhino.program.turned import copied_kernel


def convolution(dims: tuple[str, str, str], stride: int = 1, groups: int = 1) -> Callable[..., jax.Array]:
    def convolve(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, k, (stride, stride), "SAME", dimension_numbers=dims, feature_group_count=groups
        )

    return convolve


def convolved(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.name == "stablehlo.convolution"]


NHWC = ("NHWC", "HWIO", "NHWC")
TORCH = ("NCHW", "OIHW", "NCHW")
OURS = ("NHWC", "OHWI", "NHWC")


def gradients(convolve: Callable[..., jax.Array], x: jax.ShapeDtypeStruct, k: jax.ShapeDtypeStruct) -> list[Op]:
    """The convolutions of both gradients alone: of the image first."""
    graph = graph_of(jax.grad(lambda x, k: jnp.sum(convolve(x, k).astype(jnp.float32)), argnums=(0, 1)), x, k)
    return convolved(graph)


@pytest.mark.parametrize(
    ("dims", "image", "kernel", "turned"),
    [
        (NHWC, (8, 32, 32, 3), (5, 5, 3, 16), True),
        (TORCH, (8, 3, 32, 32), (16, 3, 5, 5), True),
        (OURS, (8, 32, 32, 3), (16, 5, 5, 3), False),
        (TORCH, (8, 3, 32, 32), (16, 3, 1, 1), False),
        (NHWC, (8, 32, 32, 3), (1, 1, 3, 16), True),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_which_it_is(
    dims: tuple[str, str, str], image: tuple[int, ...], kernel: tuple[int, ...], turned: bool, stride: int
) -> None:
    given = spec(*image, dtype=jnp.bfloat16), spec(*kernel, dtype=jnp.bfloat16)
    (forward,) = convolved(graph_of(convolution(dims, stride), *given))
    assert forward.convolved == Convolved("", 3, turned)
    backward = {op.convolved.of: op.convolved for op in gradients(convolution(dims, stride), *given) if op.convolved}
    assert backward["kernel"] == Convolved("kernel", 3, turned)
    # With nothing between the elements, and one position, the gradient of the image is a forward one.
    positions = max(n for n in kernel if n != 16 and n != 3)
    if stride > 1 or positions > 1:
        assert backward["image"] == Convolved("image", 3, False)
    else:
        assert backward[""].features == 16


def test_few_features_are_slow_in_all_directions_alike() -> None:
    """The kernel's gradient has them where a product has rows, and with a stride the sum has the window's parts too."""
    given = spec(8, 32, 32, 3, dtype=jnp.bfloat16), spec(6, 6, 3, 16, dtype=jnp.bfloat16)
    graph = graph_of(jax.grad(lambda k, x: convolution(NHWC, 2)(x, k).astype(jnp.float32).sum()), given[1], given[0])
    forward = graph_of(convolution(NHWC, 2), *given)
    for made in (forward, graph):
        (op,) = convolved(made)
        narrow, wide = product_of(made, op), product_of(made, op, wide=True)
        assert narrow is not None and wide is not None
        assert (narrow.slower, wide.slower) == (10.0, 1.0)


def test_features_are_those_of_one_group() -> None:
    given = spec(8, 32, 32, 32), spec(3, 3, 4, 64)
    (op,) = convolved(graph_of(convolution(NHWC, groups=8), *given))
    assert op.convolved == Convolved("", 4, True)


def test_what_is_copied_into_the_librarys_order() -> None:
    image, kernel = spec(8, 32, 32, 16), spec(3, 3, 16, 32)

    def copied(function: Callable[..., jax.Array], *given: jax.ShapeDtypeStruct) -> list[int | None]:
        graph = graph_of(function, *given)
        return [copied_kernel(graph, op) for op in convolved(graph)]

    assert copied(convolution(NHWC), image, kernel) == [1]
    assert copied(convolution(OURS), image, spec(32, 3, 3, 16)) == [None]
    # What is converted is written in the other order, a layer of a stack is not.
    half = lambda x, k: convolution(NHWC)(x, k.astype(jnp.bfloat16))  # noqa: E731
    assert copied(half, spec(8, 32, 32, 16, dtype=jnp.bfloat16), kernel) == [None]
    layer = lambda x, ks: convolution(NHWC)(x, ks[1])  # noqa: E731
    assert copied(layer, image, spec(4, 3, 3, 16, 32)) == [1]
    step = jax.grad(lambda k, x: jnp.sum(convolution(NHWC)(x, k)))
    assert copied(step, kernel, image) == [-1]

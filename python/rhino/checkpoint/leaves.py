"""Leaves of a state as the arrays that hold them: one, one in another shape, or one per stage.

Owns which arrays a leaf is made of, and how a leaf is made of arrays. Knows neither Orbax nor files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rhino.api.leaves import key_sharding
from rhino.api.objects import split, states
from rhino.api.strided import StridedArray
from rhino.checkpoint.boxes import Index, Window
from rhino.compile._jax import weakly_typed
from rhino.errors import RhinoError
from rhino.runtime.staged import StagedArray


@dataclass(frozen=True, slots=True)
class LeafPart:
    """One of the arrays that a leaf is made of.

    Attributes:
      window: which part of the leaf it holds, in which shape.
      sharding: of the array.
    """

    window: Window
    sharding: Any

    def blocks(self) -> dict[Index, list[Any]]:
        """The block of the stored array that each device has: devices by block, the same in every process."""
        found: dict[Index, list[Any]] = {}
        for device, index in self.sharding.devices_indices_map(self.window.stored).items():
            block = tuple(at.indices(size)[:2] for at, size in zip(index, self.window.stored, strict=True))
            found.setdefault(block, []).append(device)
        return found

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of every block."""
        shape: tuple[int, ...] = self.sharding.shard_shape(self.window.stored)
        return shape


@dataclass(frozen=True, slots=True, eq=False)
class AbstractLeaf:
    """A leaf without its values: what to restore, and onto which devices.

    Attributes:
      aval: shape, dtype and weak typing of the leaf, as jax keeps them.
      parts: the arrays that it is made of.
      join: makes the leaf of these arrays.
    """

    aval: Any
    parts: tuple[LeafPart, ...]
    join: Callable[[Sequence[jax.Array]], Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The original shape."""
        shape: tuple[int, ...] = self.aval.shape
        return shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.aval.dtype


def abstract_leaf(leaf: Any) -> Any:
    """Where the leaf is, if it is an array on devices or a `ShapeDtypeStruct` with a sharding; else the leaf itself."""
    if isinstance(leaf, AbstractLeaf):
        return leaf
    if isinstance(leaf, StridedArray):
        return strided_leaf(leaf._layout)
    if isinstance(leaf, StagedArray):
        return staged_leaf(leaf.layout)
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and leaf.sharding is not None:
        weak = bool(getattr(leaf, "weak_type", False))  # keys have none
        return plain_leaf(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak), leaf.sharding)
    return leaf


def plain_leaf(aval: Any, sharding: Any) -> AbstractLeaf:
    """A leaf that is one array of its own shape."""
    window = Window((0,) * len(aval.shape), tuple(aval.shape), tuple(aval.shape))

    def join(arrays: Sequence[jax.Array]) -> jax.Array:
        return weakly_typed(arrays[0]) if aval.weak_type else arrays[0]

    return AbstractLeaf(aval, (LeafPart(window, sharding),), join)


def strided_leaf(layout: Any) -> AbstractLeaf:
    """A leaf that is stored with dimensions cut into factors."""
    shape = tuple(layout.aval.shape)
    window = Window((0,) * len(shape), shape, tuple(layout.stored_shape))
    part = LeafPart(window, layout.sharding)
    return AbstractLeaf(layout.aval, (part,), lambda arrays: StridedArray(arrays[0], layout))


def staged_leaf(layout: Any) -> AbstractLeaf:
    """A leaf of which several stages have their rows."""
    parts = tuple(
        LeafPart(_rows(layout.aval.shape, at), sharding)
        for at, sharding in zip(layout.slices, layout.shardings, strict=True)
    )
    return AbstractLeaf(layout.aval, parts, lambda arrays: StagedArray(arrays, layout))


def arrays_of(leaf: Any) -> tuple[jax.Array, ...]:
    """The arrays that a leaf is made of, in the order of `abstract_leaf(leaf).parts`."""
    if isinstance(leaf, StridedArray):
        return (leaf.stored,)
    return leaf.pieces if isinstance(leaf, StagedArray) else (leaf,)


def _rows(shape: Sequence[int], at: Sequence[tuple[int, int]]) -> Window:
    start = tuple(low for low, _ in at) + (0,) * (len(shape) - len(at))
    size = tuple(high - low for low, high in at) + tuple(shape[len(at) :])
    return Window(start, size, size)


def abstract_state(source: Any, argument: int | Sequence[int] = 0) -> Any:
    """What to restore: the state of a planned step, or one like a state that is given.

    Args:
      source: a step from `rhino.parallelize` that has a plan; or a pytree of arrays, Rhino's included, and of
        `jax.ShapeDtypeStruct`s with shardings.
      argument: of a step, which of its positional arguments is the state; several make a tuple.

    Returns:
      A pytree of the same structure, with an `nnx.State` for each object of NNX. Leaves that the plan keeps as plain
      arrays are `jax.ShapeDtypeStruct`s with shardings, which Orbax itself takes, too.

    Raises:
      RhinoError: the step has no plan yet, no such argument, or was planned for devices that are not here.
    """
    return states(target_of(source, argument))


def target_of(source: Any, argument: int | Sequence[int] = 0) -> Any:
    """As `abstract_state`, with an `ObjectState` for each object."""
    from rhino.api.parallelized import Parallelized

    if not isinstance(source, Parallelized):
        return jax.tree.map(abstract_leaf, split(source))
    built = source._planned("restoring a state")
    arguments, _ = jax.tree.unflatten(built.trace.in_tree, range(len(built.trace.leaves)))
    wanted = (argument,) if isinstance(argument, int) else tuple(argument)
    for at in wanted:
        if not 0 <= at < len(arguments):
            raise RhinoError(f"the step has {len(arguments)} arrays or pytrees as positional arguments, no {at}")
    chosen = arguments[argument] if isinstance(argument, int) else tuple(arguments[at] for at in wanted)
    return jax.tree.map(_leaves_of(built, source), chosen)


def _leaves_of(built: Any, step: Any) -> Callable[[int], Any]:
    from rhino.api.pipeline import BuiltPipeline

    if isinstance(built, BuiltPipeline):
        built.prepare(step.cluster)
        places = built.compiled.executable.places

        def in_stages(i: int) -> Any:
            layout, aval = places[i].layout, built.trace.leaves[i].aval
            if not places[i].whole:
                return staged_leaf(layout)
            sharding = layout.shardings[0]
            if is_key(aval.dtype):  # the module has their bits, with a dimension more
                sharding = key_sharding(sharding, len(aval.shape))
            return _struct(aval, sharding)

        return in_stages
    layouts = built.binding.layouts_in or (None,) * len(built.trace.leaves)

    def over_mesh(i: int) -> Any:
        if layouts[i] is not None:
            return strided_leaf(layouts[i])
        return _struct(built.trace.leaves[i].aval, built.binding.flat_in[i])

    return over_mesh


def _struct(aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=weak)


def is_key(dtype: Any) -> bool:
    """Whether it is the type of new-style PRNG keys, whose bits are trailing dimensions."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def key_bits(aval: Any) -> Any:
    """Shape and dtype of the bits of an array of keys, as jax describes arrays."""
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))


def on_host(array: jax.Array) -> np.ndarray[Any, Any]:
    """An array of one device in host memory; of keys their bits."""
    return np.asarray(jax.random.key_data(array) if is_key(array.dtype) else array)

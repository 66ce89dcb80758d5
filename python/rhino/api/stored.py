"""Programs whose arguments or results are stored in other shapes than the user's: lowered flat, called with pytrees.

Owns both conversions, leaf by leaf. Knows nothing of how a plan was made or a module compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax

from rhino.api.binding import Binding
from rhino.api.strided import StoredLayout, StridedArray, stored
from rhino.api.trace import Trace
from rhino.compile._jax_kernels import Kernels
from rhino.compile._jax_manual import function_of, no_mesh
from rhino.compile.executable import Executable
from rhino.compile.target import DEVICELESS

Layouts = Sequence[StoredLayout | None]


def lower_stored(trace: Trace, binding: Binding) -> jax.stages.Lowered:
    """The traced program over the binding's devices, as a function of flat stored arrays to flat stored arrays."""
    flat = function_of(trace.jaxpr)

    def step(*arrays: Any) -> Any:
        # Only shapes matter here: the planned module takes this program's place.
        taken = zip(arrays, binding.layouts_in, strict=True)
        inside = [array if layout is None else array.reshape(layout.aval.shape) for array, layout in taken]
        results = zip(flat(*inside), binding.layouts_out, strict=True)
        return tuple(array if layout is None else array.reshape(layout.stored_shape) for array, layout in results)

    step.__name__ = step.__qualname__ = trace.name
    shapes = [
        jax.ShapeDtypeStruct(
            leaf.aval.shape if layout is None else layout.stored_shape, leaf.aval.dtype, weak_type=leaf.aval.weak_type
        )
        for leaf, layout in zip(trace.leaves, binding.layouts_in, strict=True)
    ]
    jitted = jax.jit(
        step,
        in_shardings=binding.flat_in,
        out_shardings=binding.flat_out,
        donate_argnums=trace.donated,
        keep_unused=True,
    )
    with warnings.catch_warnings(), no_mesh():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        return Kernels(trace.kernels.platform, only_types=True).lower(jitted.trace(*shapes))


def store(leaves: Sequence[Any], layouts: Layouts) -> list[Any]:
    """The user's leaves, each as a program takes it: those of a `StridedArray` at no cost."""
    return [leaf if layout is None else stored(leaf, layout) for leaf, layout in zip(leaves, layouts, strict=True)]


def wrap(arrays: Sequence[Any], layouts: Layouts) -> list[Any]:
    """Stored arrays as the user's leaves."""
    pairs = zip(arrays, layouts, strict=True)
    return [array if layout is None else StridedArray(array, layout) for array, layout in pairs]


class StoredExecutable(Executable):
    """An executable of flat stored arrays, called like the step: pytrees of `StridedArray`s and other arrays."""

    def __init__(self, flat: Executable, trace: Trace, binding: Binding) -> None:
        super().__init__(flat.target, flat._signature, flat.seconds, flat.compiled)
        self._trace = trace
        self._binding = binding

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run it. Keyword-only arguments of the step are one dictionary, last.

        Raises:
          RhinoError: compiled for a GPU that is not here.
          TypeError: the arguments are of another pytree structure.
        """
        wanted = self._trace.in_tree
        last = bool(self._binding.keyword_shardings)
        split = (arguments[:-1], arguments[-1]) if last and arguments else (arguments, {})
        leaves, tree = jax.tree.flatten(split)
        if keywords or tree != wanted:
            raise TypeError(f"{self._trace.name} was compiled for arguments of structure {wanted}, not {tree}")
        here = self.target not in DEVICELESS  # else nothing can be placed, and running says so
        return self.run(store(leaves, self._binding.layouts_in) if here else leaves)

    def run(self, arrays: Sequence[Any]) -> Any:
        """Run it on flat stored arrays; the result is the user's pytree."""
        results = super().__call__(*arrays)
        return jax.tree.unflatten(self._trace.out_tree, wrap(results, self._binding.layouts_out))

"""Where the buffers of a step are, as jax says it, and the way of the caller's arrays in and out.

Owns shardings of slots, checks of arguments, and arrays in pieces. Knows nothing of the order in which things run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rhino.array_like import ArrayLike
from rhino.compile._jax import numpy_dtype
from rhino.errors import RhinoError
from rhino.pipeline.program import PipelineProgram
from rhino.program.element_types import type_text
from rhino.runtime.arrays import handle, is_here, put
from rhino.runtime.boundaries import Boundary
from rhino.runtime.moves import as_typed
from rhino.runtime.script import UNREAD, RunFragment, Script
from rhino.runtime.staged import PiecesLayout, Slice, StagedArray, cut
from rhino.runtime.staged import index as rows_of


def slot_shardings(
    program: PipelineProgram, script: Script, boundaries: Sequence[Boundary], devices: Sequence[Sequence[Any]]
) -> list[Any]:
    """The sharding of every slot: as made, or else as first read; as its type says where no fragment has it.

    Args:
      devices: of each group.
    """
    found: dict[int, Any] = {}
    for action in script.actions:
        if isinstance(action, RunFragment):
            boundary = boundaries[action.fragment]
            for slot, sharding in zip(action.operands, boundary.takes, strict=True):
                found.setdefault(slot, sharding)
            found.update(
                (s, sharding) for s, sharding in zip(action.results, boundary.gives, strict=True) if s != UNREAD
            )

    for slot, index in enumerate(script.values):
        if slot not in found:  # what only moves, and an argument that nothing reads
            value = program.values[index]
            found[slot] = as_typed(value.sharding, program.meshes[value.group].axes, devices[value.group])
    return [found[slot] for slot in range(script.slots)]


@dataclass(slots=True)
class CallerArgument:
    """One argument of the step as the caller knows it.

    Attributes:
      entries: (slot, piece, sharding) for each place it goes to.
      layout: of the pieces; one piece with an empty slice is a whole array.
      name: what errors call it.
    """

    index: int
    entries: tuple[tuple[int, int, Any], ...]
    layout: PiecesLayout
    name: str
    # What the last step was given, and what is known to be right: steps return the very same objects each time.
    _aval: Any = None
    _seen: list[Any] = field(default_factory=list)
    _mine: list[bool] = field(default_factory=list)  # per entry, whether this process has a part of it

    def __post_init__(self) -> None:
        self._seen = [sharding for _, _, sharding in self.entries]
        self._mine = [is_here(sharding.device_set) for sharding in self._seen]

    @property
    def whole(self) -> bool:
        """Whether it is kept as one array."""
        return len(self.layout.slices) == 1

    def load(
        self, leaf: Any, table: list[Any], crossings: Mapping[int, int], send: Callable[[int, list[Any]], None]
    ) -> None:
        """Puts the caller's array where it is read; at no cost if it is there already.

        Args:
          crossings: by slot, the one that other processes keep it in.
          send: called for such a slot, if the array is on the processes that keep it.
        """
        if isinstance(leaf, jax.Array | ArrayLike):
            if leaf.is_deleted():  # jaxlib 0.10.2 crashes on it
                raise RhinoError(
                    f"{self.name} has been deleted: an earlier step took its buffer, as donated",
                    "use the state that the step returned, or do not donate it",
                )
            aval = leaf.aval
            if aval is not self._aval:
                self._check(leaf)
                self._aval = aval
        else:
            self._check(leaf)
        pieces = self.pieces(leaf)
        for i, (slot, piece, sharding) in enumerate(self.entries):
            array = pieces[piece]
            kept = crossings.get(slot)
            if kept is not None and table[kept] is array:
                send(slot, table)
            elif not isinstance(array, jax.Array):
                table[slot] = put(array, sharding) if self._mine[i] else None
            elif array.sharding is self._seen[i]:
                table[slot] = array
            elif array.sharding == sharding and array.committed:
                self._seen[i] = array.sharding
                table[slot] = array
            elif self._mine[i]:
                table[slot] = put(array, sharding)

    def pieces(self, leaf: Any) -> Sequence[Any]:
        """The leaf as arrays in the slices of the layout, anywhere."""
        if self.whole:
            if isinstance(leaf, ArrayLike):
                return [leaf.original()]
            if not isinstance(leaf, jax.Array):
                return [np.asarray(leaf, self.layout.aval.dtype)]
            return [_bits(leaf)]
        if isinstance(leaf, StagedArray) and leaf.layout.slices == self.layout.slices:
            return leaf.pieces
        return cut(_bits(leaf), self.layout)

    def place(self, leaf: Any) -> Any:
        """The leaf as the step takes it at least cost."""
        self._check(leaf)
        return self.joined([put(a, s) for a, s in zip(self.pieces(leaf), self.layout.shardings, strict=True)])

    def joined(self, pieces: Sequence[jax.Array]) -> Any:
        """The argument that has these pieces, each where it is kept."""
        return pieces[0] if self.whole else StagedArray(pieces, self.layout)

    def piece_of(self, leaf: jax.Array, piece: int) -> jax.Array:
        """One piece of a whole leaf, inside a jitted function; of PRNG keys their bits."""
        if not hasattr(leaf, "dtype"):
            leaf = jax.numpy.asarray(leaf, self.layout.aval.dtype)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return leaf if self.whole else leaf[rows_of(self.layout.slices[piece])]

    def _check(self, leaf: Any) -> None:
        wanted = self.layout.aval
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        shape = np.shape(leaf) if not hasattr(leaf, "shape") else tuple(leaf.shape)
        dtype = leaf.dtype if hasattr(leaf, "dtype") else wanted.dtype  # Python numbers take the wanted one
        if shape != wanted.shape or dtype != wanted.dtype:
            raise RhinoError(
                f"{self.name} is {type_text(dtype, shape)}, and the step was compiled for "
                f"{type_text(wanted.dtype, wanted.shape)}",
                "give what it was planned for, or plan for this: step.plan(*args)",
            )


@dataclass(frozen=True, slots=True)
class Output:
    """One result of the step: its slots, and the layout of the pieces they hold; one is a whole array."""

    slots: tuple[int, ...]
    layout: PiecesLayout

    def take(self, table: Sequence[Any]) -> Any:
        """The result, out of the table; of what other processes have, a handle."""
        found = [self._array(table[slot], k) for k, slot in enumerate(self.slots)]
        return found[0] if len(found) == 1 else StagedArray(found, self.layout)

    def _array(self, found: Any, piece: int) -> Any:
        if isinstance(found, jax.Array):
            return found
        return handle(self.layout.piece_shape(piece), self.layout.aval.dtype, self.layout.shardings[piece])


def inputs(program: PipelineProgram, script: Script, shardings: Sequence[Any]) -> list[CallerArgument]:
    """The arguments of the step, by their original index."""
    found = []
    for index in range(1 + max((a.index for a in program.arguments), default=-1)):
        entries = [
            (argument, slot)
            for argument, slot in zip(program.arguments, script.arguments, strict=True)
            if argument.index == index
        ]
        if not entries:
            raise RhinoError(f"argument {index} of the step is nowhere in the pipeline", "form the fragments again")
        slices = sorted(dict.fromkeys(argument.slice for argument, _ in entries))
        at = [next(slot for a, slot in entries if a.slice == s) for s in slices]
        layout = _layout(program, [script.values[slot] for slot in at], slices, [shardings[slot] for slot in at])
        places = tuple((slot, slices.index(a.slice), shardings[slot]) for a, slot in entries)
        name = entries[0][0].name or f"argument {index} of the step"
        found.append(CallerArgument(index, places, layout, name))
    return found


def outputs(program: PipelineProgram, script: Script, shardings: Sequence[Any]) -> list[Output]:
    """The results of the step, by their original index."""
    found = []
    for index in range(1 + max((r.index for r in program.results), default=-1)):
        pairs = [(r, slot) for r, slot in zip(program.results, script.results, strict=True) if r.index == index]
        pairs.sort(key=lambda pair: pair[0].slice)
        slots = tuple(slot for _, slot in pairs)
        slices = [result.slice for result, _ in pairs]
        values = [script.values[slot] for slot in slots]
        found.append(Output(slots, _layout(program, values, slices, [shardings[slot] for slot in slots])))
    return found


def _layout(
    program: PipelineProgram, values: Sequence[int], slices: Sequence[Slice], shardings: Sequence[Any]
) -> PiecesLayout:
    value = program.values[values[0]]
    leading = tuple(max(at[dim][1] for at in slices) for dim in range(len(slices[0])))
    shape = leading + value.shape[len(leading) :]
    return PiecesLayout(jax.core.ShapedArray(shape, numpy_dtype(value.dtype)), tuple(slices), tuple(shardings))


def _bits(leaf: Any) -> Any:
    """An array, or of PRNG keys their bits."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf

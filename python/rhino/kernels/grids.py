"""Which dimensions of a blocked kernel a device can have a part of: a grid of programs, each on blocks of arrays.

Owns the analysis of Pallas kernels: a grid axis may be cut into runs, one for each device, if a run reads and writes
only a part of each array that has blocks along it, numbered from the part's start. Knows neither jax nor Pallas: the
blocks that a program works on are given as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from rhino.kernels.rules import RuleText, fit_ranks
from rhino.program.data import Rule

# Numbers of blocks per dimension, for grid points given as arrays, one per axis.
Index = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
# The most programs for which the numbers of an array's blocks are looked at, every one of them.
_MOST = 1 << 22


@dataclass(frozen=True, slots=True)
class Blocks:
    """How one array is cut. `sizes[d]` are the elements between blocks along dim d; 0 where blocks are not regular.

    `axes` are those of the grid on which `index` may depend; None for any.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    index: Index
    axes: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A grid axis, and how it may be cut into `parts` runs, or any divisor of that.

    `dims[t]` is the dimension of array t that is cut with it, or -1. `shared`: programs along it write to the same
    blocks. `why` is empty, or why the axis cannot be cut.
    """

    axis: int
    parts: int
    dims: tuple[int, ...]
    shared: bool = False
    read: bool = False
    why: str = ""

    @property
    def places(self) -> frozenset[tuple[int, int]]:
        """The (array, dimension) pairs that are cut with it."""
        return frozenset((t, d) for t, d in enumerate(self.dims) if d >= 0)


def cut_axes(grid: Sequence[int], arrays: Sequence[Blocks], outputs: int, read: Collection[int]) -> list[Axis]:
    """What can be done with each axis of the grid that has more than one program.

    Args:
      arrays: inputs, then outputs.
      outputs: how many of the arrays are outputs.
      read: axes whose number of the program the kernel reads: it would count from the start of a device's run.
    """
    return [_cut(grid, axis, arrays, outputs, axis in read) for axis, size in enumerate(grid) if size > 1]


def _cut(grid: Sequence[int], axis: int, arrays: Sequence[Blocks], outputs: int, read: bool) -> Axis:
    whole = (-1,) * len(arrays)
    looked = max(prod(grid[a] for a in _looked_at(grid, axis, array)) for array in arrays)
    if looked > _MOST:
        why = f"blocks along axis {axis} of its grid are numbered in {looked} ways, too many to look at"
        return Axis(axis, 1, whole, read=read, why=why)
    parts, dims = _parts(grid, axis, arrays) or (1, whole)
    if max(dims) < 0:
        why = f"no array is cut into blocks along axis {axis} of its grid, or not regularly"
        return Axis(axis, 1, whole, read=read, why=why)
    return Axis(axis, parts, dims, any(d < 0 for d in dims[len(dims) - outputs :]), read)


def cut_rule(
    axes: Sequence[Axis],
    arrays: Sequence[Blocks],
    outputs: int,
    given: RuleText | None = None,
    reduction: Collection[str] = (),
    whole: Collection[str] = (),
) -> tuple[Rule, tuple[str, ...], dict[str, str]]:
    """The sharding rule of a blocked kernel: a factor for each axis that can be cut, and one for what stays together.

    An axis whose programs write to the same blocks can be cut only if a rule that the user gave says that they sum.
    So can one whose place the kernel reads, to know the first of a sum.

    Args:
      given: the user's rule, which an axis must agree with: all that is cut with it has one factor there, and all that
        has this factor is cut.
      reduction, whole: factors of the user's rule that are summed over, and that must stay whole.

    Returns: the rule; the names of its factors; and why factors that are not split are not, by name.

    Raises:
      RhinoError: the given rule does not have the ranks of these arrays.
    """
    if given is not None:
        given = fit_ranks(
            given, [a.shape for a in arrays[: len(arrays) - outputs]], [a.shape for a in arrays[-outputs:]]
        )
    kept: dict[tuple[int, int], int] = {}
    sizes: list[int] = []
    names: list[str] = []
    sums: list[int] = []
    why: dict[str, str] = {}
    for axis in axes:
        name, refused = _named(axis, arrays, given, whole)
        summed = name in reduction
        refused = refused or axis.why
        if not refused and axis.shared and not summed:
            refused = f"programs along axis {axis.axis} of its grid write to the same blocks"
        if not refused and axis.read and not summed:
            refused = f"the kernel reads its place along axis {axis.axis} of its grid"
        if refused:
            why[name] = refused
            continue
        kept.update(dict.fromkeys(axis.places, len(sizes)))
        sums += [len(sizes)] if summed else []
        sizes.append(axis.parts)
        names.append(name)
    replicate: list[int] = []
    mappings = []
    for t, array in enumerate(arrays):
        dims: list[tuple[int, ...]] = []
        for d, size in enumerate(array.shape):
            factors = [kept[t, d]] if (t, d) in kept else []
            rest = size // (sizes[factors[0]] if factors else 1)
            if rest != 1 or not factors:
                replicate.append(len(sizes))
                factors.append(len(sizes))
                sizes.append(rest)
                names.append(f"w{t}_{d}")
            dims.append(tuple(factors))
        mappings.append(tuple(dims))
    inputs = len(arrays) - outputs
    rule = Rule(tuple(sizes), tuple(mappings[:inputs]), tuple(mappings[inputs:]), tuple(sums), tuple(replicate))
    return rule, tuple(names), why


def _named(axis: Axis, arrays: Sequence[Blocks], given: RuleText | None, whole: Collection[str]) -> tuple[str, str]:
    """The name of an axis' factor, and why the user's rule does not allow it to be split."""
    if given is None or axis.why:
        return f"g{axis.axis}", ""
    values = [*given.operands, *given.results]
    found = {values[t][d][0] for t, d in axis.places}
    if len(found) != 1:
        return f"g{axis.axis}", f"what is cut with axis {axis.axis} of its grid has factors {', '.join(sorted(found))}"
    (name,) = found
    if name in whole:
        return name, "its registration says so"
    same = {
        (t, d)
        for t, (value, array) in enumerate(zip(values, arrays, strict=True))
        for d, (dim, size) in enumerate(zip(value, array.shape, strict=True))
        if dim[0] == name and size > 1
    }
    if same != axis.places:
        return name, f"blocks along axis {axis.axis} of its grid are only of some of what has factor '{name}'"
    return name, ""


def _parts(grid: Sequence[int], axis: int, arrays: Sequence[Blocks]) -> tuple[int, tuple[int, ...]] | None:
    """The most runs the axis can be cut into, and the dimension of each array that is cut with it."""
    size = grid[axis]
    # By array and dimension the number of the block, for each place along the axis (rows) and of the others (columns).
    tables: list[list[np.ndarray]] = []
    for array in arrays:
        if not (looked := _looked_at(grid, axis, array)):
            tables.append([])
            continue
        points = _points(grid, looked)
        numbers = [np.broadcast_to(np.asarray(n), points[0].shape) for n in array.index(points)]
        tables.append([n.reshape(size, -1) for n in numbers])
    for parts in (n for n in range(size, 1, -1) if size % n == 0):
        dims = [_dim(array, table, parts) for array, table in zip(arrays, tables, strict=True)]
        if all(d is not None for d in dims) and any(d is not None and d >= 0 for d in dims):
            return parts, tuple(-1 if d is None else d for d in dims)
    return None


def _dim(array: Blocks, tables: Sequence[np.ndarray], parts: int) -> int | None:
    """The dimension cut with the axis, -1 if none is; None if some dimension follows it in another way."""
    cut = -1
    for d, table in enumerate(tables):
        run = table.shape[0] // parts
        runs = table.reshape(parts, run, -1)
        first = runs[:1]
        if (runs == first).all():
            continue  # every run works on the same blocks
        step, rest = divmod(array.shape[d], parts * array.sizes[d]) if array.sizes[d] else (0, 1)
        starts = np.arange(parts).reshape(-1, 1, 1) * step
        if rest or cut >= 0 or not (runs == first + starts).all():
            return None
        cut = d
    return cut


def _looked_at(grid: Sequence[int], axis: int, array: Blocks) -> list[int]:
    """The axes along which programs are looked at, to see how an array follows one of them, that one first; or none."""
    followed = range(len(grid)) if array.axes is None else sorted(array.axes)
    return [axis, *(a for a in followed if a != axis)] if axis in followed else []


def _points(grid: Sequence[int], looked: Sequence[int]) -> list[np.ndarray]:
    """Grid points with every place along these axes, the first of them outermost, and the first place of the others."""
    mesh = np.meshgrid(*(np.arange(grid[a], dtype=np.int32) for a in looked), indexing="ij")
    flat = {a: m.reshape(-1) for a, m in zip(looked, mesh, strict=True)}
    return [flat.get(a, np.zeros(mesh[0].size, np.int32)) for a in range(len(grid))]


def local_grid(grid: Sequence[int], parts: Mapping[int, int]) -> tuple[int, ...]:
    """The grid of one device, whose axes are cut into so many runs."""
    return tuple(size // parts.get(axis, 1) for axis, size in enumerate(grid))

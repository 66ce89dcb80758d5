"""Plans that others wrote by hand: a mesh and `PartitionSpec`s, by pytree, by rules on paths, or by logical axes.

Owns what such specs say of one argument, and why they do not fit. Imports neither jax nor MLIR; pytrees are read in
`spec_trees`, files in `spec_file`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from rhino.errors import RhinoError
from rhino.program.data import Dims
from rhino.schema.kinds import suggestion

Mesh = tuple[tuple[str, int], ...]
# What a spec has for one dimension: mesh axes, or logical names; None leaves it to no rule.
Entry = tuple[str, ...]

_STEPS = re.compile(r"""\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]|\[([^\]]*)\]|([^.\[\]]+)""")


@dataclass(frozen=True, slots=True)
class SpecArgument:
    """An argument of a step as specs find it: its name, the keys to it joined by slashes, and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def path(self) -> str:
        """`state/params/h_0/mlp/up/kernel` of `state.params['h_0']['mlp']['up']['kernel']`."""
        return path_of(self.name)


def path_of(name: str) -> str:
    """The keys in an argument's name, joined by slashes as t5x, EasyLM and others write them for their rules."""
    return "/".join("".join(found) for found in _STEPS.findall(name))


@dataclass(frozen=True, slots=True)
class Specs:
    """A plan by hand: how arguments lie on a mesh. What it does not pin is left to Shardy's propagation, as by `jit`.

    Args:
      mesh: axes and sizes, outermost first: {"data": 2, "model": 4}, "data=2,model=4", or a `jax.sharding.Mesh` or
        `AbstractMesh`, whose devices are taken in jax's order. None is that of the `NamedSharding`s of a tree.
      tree: a pytree of `PartitionSpec`s or `NamedSharding`s for the positional arguments, one tuple as
        `jax.jit(in_shardings=...)` has it, or a prefix of it; None and what it lacks is whole. With `axis_rules`, of
        logical names; also of the boxes of Flax that carry them.
      rules: (regular expression, spec) pairs: of an argument the first holds whose expression is found in its path,
        "state/params/h_0/mlp/up/kernel". Scalars have no rule.
      axis_rules: (logical name, mesh axis or tuple of them or None) pairs, as of Flax: specs have logical names then,
        and the first pair holds whose axes are free in the tensor. Without `tree` and `rules`, the names are those
        that the arguments carry: boxes of `nn.with_logical_partitioning`, or variables of NNX.
      tensors: specs by name or path of single arguments, before any rule.

    Raises:
      RhinoError: no mesh, a mesh with an axis twice, or an expression that is none.
    """

    mesh: Any = None
    tree: Any = None
    rules: Sequence[tuple[str, Any]] = ()
    axis_rules: Sequence[tuple[str, Any]] | None = None
    tensors: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pattern, _ in self.rules:
            try:
                re.compile(pattern)
            except re.error as error:
                raise RhinoError(
                    f"rule {pattern!r} is no regular expression: {error}", "escape it, as by re.escape"
                ) from None

    @property
    def axes(self) -> Mesh:
        """(axis, size) pairs, outermost first.

        Raises:
          RhinoError: there are none.
        """
        return mesh_axes(self.mesh)


def mesh_axes(mesh: Any) -> Mesh:
    """The axes of what users have as a mesh. Raises RhinoError as `Specs`."""
    from rhino.request import mesh_text

    shape = getattr(mesh, "shape", mesh)  # jax's meshes have a dictionary there
    text = mesh_text(dict(shape) if isinstance(shape, Mapping) else shape)
    if not text:
        raise RhinoError("the specs have no mesh", 'give its axes, outermost first: mesh={"data": 2, "model": 4}')
    if "=" not in text:
        raise RhinoError(f"the mesh {text} has no names of axes, by which specs go", 'write it as "data=2,model=4"')
    return tuple((axis, int(size)) for axis, _, size in (part.partition("=") for part in text.split(",")))


def entries(spec: Any) -> tuple[Entry, ...]:
    """A spec as one tuple of names per dimension: of a `PartitionSpec`, or of any sequence of None, text and tuples.

    Raises:
      RhinoError: something else is in it.
    """
    if spec is None:
        return ()
    if isinstance(spec, str) or not isinstance(spec, Iterable):
        raise RhinoError(f"{spec!r} is no spec", "give a PartitionSpec, or a list with an entry for each dimension")
    if getattr(spec, "unreduced", None):
        raise RhinoError(f"{spec!r} leaves partial sums, which no argument is", "give the layout of the whole sum")
    found: list[Entry] = []
    for entry in spec:
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise RhinoError(
                f"{spec!r} has an entry {entry!r}", "write None, an axis, or a tuple of axes for each dimension"
            )
        found.append(tuple(names))
    return tuple(found)


def on_mesh(names: Sequence[Entry], rules: Sequence[tuple[str, Any]]) -> tuple[Entry, ...]:
    """Logical names as mesh axes: rules in order, each for a dimension that has none yet, if its axes are free.

    As Flax's `logical_to_mesh_axes`; a name without a rule is whole.
    """
    found: list[Entry | None] = [None] * len(names)
    for logical, axes in rules:
        given = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        for d, name in enumerate(names):
            used = {axis for entry in found for axis in entry or ()}
            if found[d] is None and name == (logical,) and not used.intersection(given):
                found[d] = given
    return tuple(entry or () for entry in found)


@dataclass(frozen=True, slots=True)
class Layouts:
    """What specs say of a step: axes per dimension of each argument, and what the user should know.

    Attributes:
      mesh: without axes of one device.
      dims: by argument.
      notes: one line each.
    """

    mesh: Mesh
    dims: tuple[Dims, ...]
    notes: tuple[str, ...] = ()


def layouts(specs: Specs, arguments: Sequence[SpecArgument], of_tree: Sequence[Any] | None = None) -> Layouts:
    """The layout of each argument.

    Args:
      of_tree: the spec of each argument from a pytree; None for those it has none of.

    Raises:
      RhinoError: specs do not fit their arguments: the first that does not, and how many more.
    """
    mesh, sizes = specs.axes, dict(specs.axes)
    used: set[int] = set()
    named: set[str] = set()
    found: list[Dims] = []
    unmatched, wrong = [], []
    for i, argument in enumerate(arguments):
        spec = of_tree[i] if of_tree is not None else None
        where = "its spec"
        for key in (argument.name, argument.path) if spec is None else ():
            if key in specs.tensors:
                spec = specs.tensors[key]
                named.add(key)
        for r, (pattern, given) in enumerate(specs.rules if spec is None and argument.shape else ()):
            if re.search(pattern, argument.path):
                spec, where = given, f"rule {pattern!r}"
                used.add(r)
                break
        if spec is None:
            unmatched += [argument.name] if argument.shape else []
            found.append(tuple(() for _ in argument.shape))
            continue
        names = entries(spec)
        if specs.axis_rules is not None:
            names = on_mesh(names, specs.axis_rules)
        problem = _problem(argument, names, where, sizes)
        wrong += [problem] if problem else []
        dims = (*names, *((),) * (len(argument.shape) - len(names)))
        found.append(tuple(tuple(axis for axis in axes if sizes.get(axis, 1) > 1) for axes in dims))
    if wrong:
        more = f" (and {len(wrong) - 1} more arguments do not fit)" if len(wrong) > 1 else ""
        raise RhinoError(wrong[0].message + more, wrong[0].remedy)
    notes = [
        f"rule {pattern!r} is of no argument: {_why(pattern, arguments, specs.rules[:r])}"
        for r, (pattern, _) in enumerate(specs.rules)
        if r not in used
    ]
    notes += [f"{key}: there is no such argument" for key in specs.tensors if key not in named]
    if unmatched:
        shown = ", ".join(unmatched[:3]) + (", ..." if len(unmatched) > 3 else "")
        many = len(unmatched) > 1
        count = f"{len(unmatched)} arguments have no spec and are" if many else "1 argument has no spec and is"
        notes.append(f"{count} whole on every device: {shown}")
    return Layouts(tuple((axis, size) for axis, size in mesh if size > 1), tuple(found), tuple(notes))


def _why(pattern: str, arguments: Sequence[SpecArgument], before: Sequence[tuple[str, Any]]) -> str:
    found = [argument for argument in arguments if argument.shape and re.search(pattern, argument.path)]
    if not found:
        return f"none has it in its path, as in {arguments[0].path}" if arguments else "there is none"
    first = next((other for other, _ in before if re.search(other, found[0].path)), None)
    return f"{'a spec of its own' if first is None else f'rule {first!r}'} comes first"


def _problem(argument: SpecArgument, names: Sequence[Entry], where: str, sizes: Mapping[str, int]) -> RhinoError | None:
    """Why a spec does not fit an argument; None if it does."""
    shape, every = argument.shape, [axis for axes in names for axis in axes]
    spec = "(" + ", ".join("None" if not axes else "+".join(axes) for axes in names) + ")"
    if unknown := next((axis for axis in every if axis not in sizes), None):
        message = f"{argument.name}: {where} {spec} names axis '{unknown}', which the mesh has not"
        return RhinoError(message, suggestion(unknown, tuple(sizes)))
    if twice := next((axis for axis in every if every.count(axis) > 1), None):
        message = f"{argument.name}: {where} {spec} has axis '{twice}' twice"
        return RhinoError(message, "an axis splits one dimension of a tensor; leave it out of one of them")
    if len(names) > len(shape):
        message = f"{argument.name}: {where} {spec} is for {len(names)} dimensions, and its shape is {list(shape)}"
        return RhinoError(message, "drop the entries in excess, or write a rule of its own for it")
    for d, (size, axes) in enumerate(zip(shape, names, strict=False)):
        parts = prod(sizes[axis] for axis in axes)
        if size % parts:
            message = (
                f"{argument.name}: {where} {spec} cuts dim {d} of size {size} into {parts} parts of different sizes"
            )
            return RhinoError(message, "leave the dimension whole, or pad it to a multiple")
    return None

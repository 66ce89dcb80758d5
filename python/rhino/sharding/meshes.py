"""Which meshes there may be on a cluster.

Owns the shapes each level tries, the check of one the user gives, and meshes around axes that a program brings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from rhino.errors import RhinoError
from rhino.machine import Cluster

AXIS_NAMES = ("x", "y", "z")
# (axis, size) pairs, outermost first.
Mesh = tuple[tuple[str, int], ...]


def named(shape: Sequence[int], names: Sequence[str] = AXIS_NAMES) -> Mesh:
    """A mesh of these sizes."""
    return tuple(zip(names, shape, strict=False))


def read_mesh(text: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and names of a mesh written as "2x4" or "data=2,model=4"; without names in the first case.

    Raises:
      RhinoError: it is written otherwise.
    """
    if not text:
        return (), ()
    has_names = "=" in text
    parts = [part.strip().rpartition("=") for part in (text.split(",") if has_names else text.split("x"))]
    names = tuple(name.strip() for name, _, _ in parts) if has_names else ()
    try:
        sizes = tuple(int(size) for _, _, size in parts)
    except ValueError:
        sizes = ()
    if not sizes or (has_names and (not all(names) or len(set(names)) < len(names))):
        raise RhinoError(
            f"mesh '{text}' is not sizes joined by x, nor axes with names of their own",
            "write 8, 2x4 or 4x2x2, or data=2,model=4",
        )
    return sizes, names


def names_around(axes: Mesh, sizes: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """The names, or none where the mesh with them would not have these axes next to each other."""
    mesh = named(sizes, names)
    return tuple(names) if any(mesh[i : i + len(axes)] == axes for i in range(len(mesh) - len(axes) + 1)) else ()


def meshes_around(axes: Mesh, cluster: Cluster, level: str) -> list[Mesh]:
    """The meshes to try that have these axes next to each other; the others split what these leave of the cluster.

    Raises:
      RhinoError: the axes do not divide the cluster's devices.
    """
    left = _left(axes, cluster)
    if left == 1:
        return [axes]
    found = [_around(axes, (left,), 1), _around(axes, (left,), 0)]
    for a in range(2, left):
        if left % a == 0:
            pair = (a, left // a)
            found += [_around(axes, pair, 1), _around(axes, pair, 2)]
            found += [_around(axes, pair, 0)] if level == "O2" else []
    return found


def mesh_around(axes: Mesh, sizes: Sequence[int], cluster: Cluster) -> Mesh:
    """The mesh of given sizes that has these axes, inside the others wherever that can be.

    Raises:
      RhinoError: it has no place for them.
    """
    _left(axes, cluster)
    wanted = [size for _, size in axes]
    for start in range(len(sizes) - len(wanted), -1, -1):
        if list(sizes[start : start + len(wanted)]) == wanted:
            return _around(axes, (*sizes[:start], *sizes[start + len(wanted) :]), start)
    raise RhinoError(
        f"mesh {'x'.join(map(str, sizes))} has no place for {axes_text(axes)}, on which the step's manual computations "
        "are",
        "give a mesh with these sizes next to each other, or leave it to the search",
    )


def checked_axes(axes: Mesh, mesh: Mesh) -> Mesh:
    """A given mesh. Raises RhinoError if it has not these axes next to each other, in their order."""
    if names_around(axes, [size for _, size in mesh], [name for name, _ in mesh]):
        return mesh
    raise RhinoError(
        f"the mesh {axes_text(mesh)} has no {axes_text(axes)}, which the step's manual computations take",
        "write the step for axes of that mesh, next to each other, or drop what fixes the mesh",
    )


def place_in(
    cluster: Cluster | None, sizes: tuple[int, ...] = (), stages: int = 0
) -> Callable[[Sequence[tuple[str, int]]], tuple[str, str] | None]:
    """Says why a cluster, cut into stages, or a mesh of given sizes has no place for a mesh; see `Keeping.unfit`."""

    def unfit(axes: Sequence[tuple[str, int]]) -> tuple[str, str] | None:
        needs, text = prod(size for _, size in axes), axes_text(tuple(axes))
        if cluster is None:
            return None
        devices = cluster.num_devices
        if stages > 1 and not sizes and (devices // stages) % needs:
            why = f"over a mesh {text}, and each of {stages} stages has {devices // stages} devices"
            return why, "write it for a mesh that a stage has room for, or plan without stages"
        if devices % needs:
            why = f"over a mesh {text} of {needs} devices, which do not divide the {devices} of cluster {cluster.name}"
            remedy = "write it for a mesh whose size divides the number of devices"
            return why, f"{remedy}, or annotations=ignore, and the plan is free"
        wanted = [size for _, size in axes]
        places = (list(sizes[i : i + len(wanted)]) == wanted for i in range(len(sizes)))
        if sizes and not any(places):
            why = f"over a mesh {text}, for which the mesh {'x'.join(map(str, sizes))} has no place"
            return why, "ask for a mesh with these sizes next to each other, or for none"
        return None

    return unfit


def mesh_name(mesh: Mesh) -> str:
    """For people: "2x4", or "sp=4, x=2" where the axes have names that somebody gave them."""
    sizes = [size for _, size in mesh]
    return axes_text(mesh) if mesh != named(sizes) else "x".join(map(str, sizes)) or "1"


def axes_text(axes: Mesh) -> str:
    """Such as "data=2, sp=4"."""
    return ", ".join(f"{name}={size}" for name, size in axes)


def _left(axes: Mesh, cluster: Cluster) -> int:
    taken = prod(size for _, size in axes)
    if cluster.num_devices % taken:
        raise RhinoError(
            f"the step's manual computations are over a mesh {axes_text(axes)} of {taken} devices, which do not divide "
            f"the {cluster.num_devices} of cluster {cluster.name}",
            "write the step for a mesh whose size divides the number of devices",
        )
    return cluster.num_devices // taken


def _around(axes: Mesh, others: Sequence[int], outer: int) -> Mesh:
    """The axes with others, of which so many are in front of them."""
    names = (*AXIS_NAMES, *(f"{a}{i}" for i in range(len(axes)) for a in AXIS_NAMES))
    rest = named(others, [name for name in names if name not in dict(axes)])
    return (*rest[:outer], *axes, *rest[outer:])


def mesh_shapes(cluster: Cluster, level: str = "O1") -> list[tuple[int, ...]]:
    """The meshes of one or two axes to try, outermost axis first; at O1 only those whose inner axis stays in a host.

    Hosts that share an NVLink domain count as one.
    """
    n = cluster.num_devices
    if level == "O2":
        return [(n,), *((a, n // a) for a in range(2, n) if n % a == 0)]
    inner = [b for b in range(2, cluster.domain + 1) if n % b == 0 and cluster.domain % b == 0]
    return [(n,), *[(n // b, b) for b in inner if n // b > 1]]


def three_axes(n: int) -> list[tuple[int, ...]]:
    """Every mesh of n devices with three axes of two devices or more."""
    return [(a, b, n // a // b) for a in range(2, n) if n % a == 0 for b in range(2, n // a) if n // a % b == 0]


def checked_mesh(mesh: tuple[int, ...], cluster: Cluster, own: int = 0) -> tuple[int, ...]:
    """The mesh itself. Raises RhinoError if it has not 1 to 3 axes, or another number of devices than the cluster.

    Args:
      own: how many axes the program brings, beside which there may be two.
    """
    text = "x".join(map(str, mesh))
    most = max(len(AXIS_NAMES), own + 2)
    if not 1 <= len(mesh) <= most:
        raise RhinoError(f"mesh {text} has {len(mesh)} axes", f"give 1 to {most}")
    if any(n < 1 for n in mesh):
        raise RhinoError(f"mesh {text} has an axis of {min(mesh)} devices", "give sizes of 1 or more")
    if prod(mesh) != cluster.num_devices:
        raise RhinoError(
            f"mesh {text} has {prod(mesh)} devices but cluster {cluster.name} has {cluster.num_devices}",
            "give sizes whose product is the number of devices",
        )
    return mesh

"""Units: maximal slices of tensors whose elements have the same holders and the same receivers (2211.05322 §3.1).

Owns how tensors are cut into units and what of a unit crosses between hosts. Knows neither strategies nor times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import lcm, prod

from rhino.errors import RhinoError
from rhino.reshard.data import MovedTensor, Network, Slice, Tile, Unit

_Masks = dict[tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class BundleTask:
    """A bundle of units on the level of hosts: who may send it, and where it has to go.

    Attributes:
      bundle: its position in the program's bundles.
      item_bytes: of the unit's tensor; a common multiple of those of several.
      holders: hosts that hold it, ascending.
      targets: hosts with a receiver and without a holder, ascending; none if it stays inside hosts.
      receivers: receiving devices of each target; the most that one of several units has.
    """

    bundle: int
    nbytes: int
    item_bytes: int
    holders: tuple[int, ...]
    targets: tuple[int, ...]
    receivers: tuple[int, ...]


def units_of(tensors: Iterable[MovedTensor]) -> tuple[Unit, ...]:
    """The units of tensors, in the order of the tensors and row-major by first element.

    They partition what anybody receives; those of a receiver partition what its tile lacks. No two that could be one
    box are apart.

    Raises:
      RhinoError: a tile is outside of its tensor, or somebody wants elements that nobody holds.
    """
    units: list[Unit] = []
    for number, tensor in enumerate(tensors):
        for box, holders, receivers in _boxes(tensor, number):
            nbytes = prod(stop - start for start, stop in box) * tensor.item_bytes
            units.append(Unit(len(units), number, box, nbytes, holders, receivers))
    return tuple(units)


def tasks_of(units: Sequence[Unit], network: Network, item_bytes: Sequence[int] = ()) -> tuple[BundleTask, ...]:
    """The units between hosts, each a bundle of its own. `item_bytes` is by tensor, 1 where it is not given.

    RhinoError if the network does not have a device.
    """
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {}
    hosts = hosts_of(network)
    tasks = []
    for unit in units:
        key = (unit.holders, unit.receivers)
        if key not in known:
            known[key] = _ends(hosts(unit.holders), hosts(unit.receivers))
        item = item_bytes[unit.tensor] if item_bytes else 1
        tasks.append(BundleTask(unit.index, unit.nbytes, item, *known[key]))
    return tuple(tasks)


def bundled(tasks: Sequence[BundleTask], alike: bool) -> tuple[tuple[tuple[int, ...], ...], tuple[BundleTask, ...]]:
    """Bundles of the units that leave their hosts, one for each set of holders and of targets, and their tasks.

    Units with the largest items come first, so that what is cut at multiples of them is cut between items.

    Args:
      tasks: one per unit, as from `tasks_of`.
      alike: whether units of a bundle also have equally many receivers on each target.
    """
    classes: dict[tuple[object, ...], list[BundleTask]] = {}
    for task in tasks:
        if task.targets:
            key = (task.holders, task.targets, task.receivers if alike else ())
            classes.setdefault(key, []).append(task)
    bundles, together = [], []
    for index, members in enumerate(classes.values()):
        bundles.append(tuple(task.bundle for task in sorted(members, key=lambda task: (-task.item_bytes, task.bundle))))
        most = tuple(max(counts) for counts in zip(*(task.receivers for task in members), strict=True))
        nbytes, item = sum(task.nbytes for task in members), lcm(*(task.item_bytes for task in members))
        together.append(BundleTask(index, nbytes, item, members[0].holders, members[0].targets, most))
    return tuple(bundles), tuple(together)


def _ends(holding: Sequence[int], receiving: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The holders, the targets and the receivers of a task, given the hosts of a unit's devices."""
    holders = sorted(set(holding))
    count: dict[int, int] = {}
    for host in receiving:
        if host not in holders:
            count[host] = count.get(host, 0) + 1
    targets = sorted(count)
    return tuple(holders), tuple(targets), tuple(count[host] for host in targets)


def hosts_of(network: Network) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """The hosts of devices, by `host_of`. Looks up equal tuples once: thousands of units have few different ones."""
    return cache(lambda devices: tuple(host_of(network, device) for device in devices))


def host_of(network: Network, device: int) -> int:
    """The host of a device. RhinoError if the network does not have it, or gives its host no bandwidth."""
    host = network.host_of.get(device)
    if host is None:
        raise RhinoError(f"device {device}: the network has no host for it", "give host_of every device of the tiles")
    if network.bandwidth_bytes_s.get(host, 0) <= 0:
        raise RhinoError(f"host {host}: no bandwidth is given for it", "give bandwidth_bytes_s every host, positive")
    return host


def _boxes(tensor: MovedTensor, number: int) -> list[tuple[Slice, tuple[int, ...], tuple[int, ...]]]:
    """Box, holders and receivers of each unit of a tensor."""
    for tile in (*tensor.source, *tensor.target):
        _check_tile(tile, tensor, number)
    devices = sorted({tile.device for tile in (*tensor.source, *tensor.target)})
    bit = {device: 1 << at for at, device in enumerate(devices)}
    cuts = []
    for dim, size in enumerate(tensor.shape):
        ends = {end for tile in (*tensor.source, *tensor.target) for end in tile.slice[dim]}
        cuts.append(sorted(ends | {0, size}))
    holders = _cells(tensor.source, cuts, bit)
    wanted = _cells(tensor.target, cuts, bit)
    keys: dict[tuple[int, ...], tuple[int, int]] = {}
    for cell in sorted(wanted):
        held = holders.get(cell, 0)
        if not held:
            at = [cuts[dim][index] for dim, index in enumerate(cell)]
            raise RhinoError(
                f"tensor {number}: nobody holds element {at}, which devices want", "give source tiles that cover it"
            )
        if wanted[cell] & ~held:
            keys[cell] = (held, wanted[cell] & ~held)
    members: dict[int, tuple[int, ...]] = {}

    def listed(mask: int) -> tuple[int, ...]:
        if mask not in members:
            members[mask] = tuple(device for device in devices if bit[device] & mask)
        return members[mask]

    found = []
    for box, (held, receivers) in _merged(keys, len(tensor.shape)):
        where = tuple((cuts[dim][low], cuts[dim][high]) for dim, (low, high) in enumerate(box))
        found.append((where, listed(held), listed(receivers)))
    return sorted(found, key=lambda each: [start for start, _ in each[0]])


def _check_tile(tile: Tile, tensor: MovedTensor, number: int) -> None:
    inside = len(tile.slice) == len(tensor.shape) and all(
        0 <= start <= stop <= size for (start, stop), size in zip(tile.slice, tensor.shape, strict=False)
    )
    if not inside:
        raise RhinoError(
            f"tensor {number}: device {tile.device}: tile {tile.slice} is not inside of shape {tensor.shape}",
            "give [start, stop) per dimension",
        )


def _cells(tiles: Sequence[Tile], cuts: Sequence[Sequence[int]], bit: Mapping[int, int]) -> _Masks:
    """The devices, as bits, of each cell of the grid that the cuts make. Devices with the same tile go together."""
    same: dict[Slice, int] = {}
    for tile in tiles:
        same[tile.slice] = same.get(tile.slice, 0) | bit[tile.device]
    index = [{cut: at for at, cut in enumerate(ends)} for ends in cuts]
    cells: _Masks = {}
    for where, mask in same.items():
        ranges = [range(index[dim][start], index[dim][stop]) for dim, (start, stop) in enumerate(where)]
        for cell in product(*ranges):
            cells[cell] = cells.get(cell, 0) | mask
    return cells


def _merged(keys: Mapping[tuple[int, ...], tuple[int, int]], rank: int) -> list[tuple[Slice, tuple[int, int]]]:
    """Boxes of cells with the same key: neighbours are joined, one dimension after the other.

    Once is enough: two boxes that touch along a dimension and agree in the others are made of lines that did so before,
    when that dimension's neighbours were joined.
    """
    boxes = [(tuple((at, at + 1) for at in cell), key) for cell, key in keys.items()]
    for dim in reversed(range(rank)):
        boxes = _joined(boxes, dim)
    return boxes


def _joined(boxes: Sequence[tuple[Slice, tuple[int, int]]], dim: int) -> list[tuple[Slice, tuple[int, int]]]:
    """Boxes of the same key that touch along one dimension and agree in all others, joined."""
    joined: list[tuple[Slice, tuple[int, int]]] = []
    for box, key in sorted(boxes, key=lambda each: (each[0][:dim], each[0][dim + 1 :], each[0][dim])):
        if joined:
            last, other = joined[-1]
            alike = key == other and last[:dim] == box[:dim] and last[dim + 1 :] == box[dim + 1 :]
            if alike and last[dim][1] == box[dim][0]:
                joined[-1] = ((*last[:dim], (last[dim][0], box[dim][1]), *last[dim + 1 :]), key)
                continue
        joined.append((box, key))
    return joined

"""Resharding problems for tests: from mesh to mesh, by hand or drawn."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from random import Random

from rhino.reshard.data import MovedTensor, Network
from rhino.reshard.tiles import parse_spec, spec_tiles

BANDWIDTH = Fraction(10**9)
MESHES = ((1, 4), (2, 4), (4, 2), (2, 2), (3, 2), (2, 3), (4, 4), (8,), (6,), (2, 2, 2))


def problem(
    shape: tuple[int, ...],
    source: tuple[tuple[int, ...], str],
    target: tuple[tuple[int, ...], str],
    *,
    per_host: int = 4,
    first: int | None = None,
    item_bytes: int = 4,
    latency: Fraction = Fraction(0),
) -> tuple[MovedTensor, Network]:
    """A tensor from (mesh, spec) to (mesh, spec); the target mesh is on the next hosts, or starts at device `first`."""
    count = prod(source[0])
    start = -(-count // per_host) * per_host if first is None else first
    tensor = MovedTensor(
        shape,
        item_bytes,
        spec_tiles(shape, source[0], parse_spec(source[1])),
        spec_tiles(shape, target[0], parse_spec(target[1]), start),
    )
    return tensor, network(max(count, start + prod(target[0])), per_host, latency)


def network(devices: int, per_host: int, latency: Fraction = Fraction(0)) -> Network:
    """Hosts of equal bandwidth."""
    host_of = {device: device // per_host for device in range(devices)}
    return Network(host_of, dict.fromkeys(sorted(set(host_of.values())), BANDWIDTH), latency)


def drawn_spec(random: Random, rank: int, axes: int) -> str:
    """Each mesh axis splits a dimension, or none."""
    spec = ["R"] * rank
    for axis in range(axes):
        if random.random() < 0.6:
            dim = random.randrange(rank)
            spec[dim] = f"{spec[dim] if spec[dim] != 'R' else 'S'}{axis}"
    return ",".join(spec)


def drawn(seed: int, *, overlap: bool = False, latency: Fraction = Fraction(0)) -> tuple[MovedTensor, Network]:
    """A tensor of 2 or 3 dimensions, many of which do not divide, between two meshes; on common hosts if `overlap`."""
    random = Random(seed)
    rank = random.choice((2, 3))
    shape = tuple(random.choice((1024, 1000, 96, 64, 130, 257, 512, 5)) for _ in range(rank))
    source, target = random.choice(MESHES), random.choice(MESHES)
    per_host = random.choice((1, 2, 4))
    return problem(
        shape,
        (source, drawn_spec(random, rank, len(source))),
        (target, drawn_spec(random, rank, len(target))),
        per_host=per_host,
        first=random.choice((0, per_host, prod(source) // 2)) if overlap else None,
        item_bytes=random.choice((1, 2, 4, 8)),
        latency=latency,
    )

"""Tensors of repeated layers as one line: the same name but for numbers, the same type, role and sharding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rhino.plan import Tensor

_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors alike; `name` has a star where their names have different numbers. `tensor` is the first of them."""

    name: str
    tensor: Tensor
    count: int


def group(tensors: Iterable[Tensor]) -> list[Group]:
    """The groups, in the order of their first tensors."""
    members: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        words = tuple(_NUMBER.split(tensor.name)[::2])
        members.setdefault((words, tensor.role, tensor.shape, tensor.dtype, tensor.sharding), []).append(tensor)
    return [Group(_common_name(alike), alike[0], len(alike)) for alike in members.values()]


def _common_name(tensors: Sequence[Tensor]) -> str:
    parts = zip(*(_NUMBER.split(tensor.name) for tensor in tensors), strict=True)
    return "".join(same[0] if len(dict.fromkeys(same)) == 1 else "*" for same in parts)

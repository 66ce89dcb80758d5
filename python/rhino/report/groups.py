"""Tensors of repeated layers as one line: the same name but for numbers, the same type, role and sharding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rhino.plan import Tensor

_NUMBER = re.compile(r"(\d+)")
_KEY = re.compile(r"\[[^\]]*\]|\.\w+")


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors alike; `name` has a star where their names have different numbers. `tensor` is the first of them."""

    name: str
    tensor: Tensor
    count: int
    tensors: tuple[Tensor, ...] = ()


def group(tensors: Iterable[Tensor], apart: Callable[[Tensor], object] = lambda tensor: None) -> list[TensorGroup]:
    """The groups, in the order of their first tensors.

    Args:
      apart: what tensors of one group must have in common besides.
    """
    members: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        words = tuple(_NUMBER.split(tensor.name)[::2])
        stored = tensor.stored_shape, tensor.dtype, tensor.sharding, tensor.memory
        kind = (words, tensor.role, tensor.shape, stored, apart(tensor))
        members.setdefault(kind, []).append(tensor)
    return [TensorGroup(_common_name(alike), alike[0], len(alike), tuple(alike)) for alike in members.values()]


def _common_name(tensors: Sequence[Tensor]) -> str:
    parts = zip(*(_NUMBER.split(tensor.name) for tensor in tensors), strict=True)
    return "".join(same[0] if len(dict.fromkeys(same)) == 1 else "*" for same in parts)


@dataclass(frozen=True, slots=True)
class Mirror:
    """Optimizer state that is split as the parameters are, such as all first moments: `name` is what holds them.

    `over` are axes that split it besides: those of a distributed optimizer. `hosted`: it is kept by the hosts.
    """

    name: str
    tensors: tuple[Tensor, ...]
    over: tuple[str, ...] = ()
    hosted: bool = False


def mirrors(tensors: Sequence[Tensor]) -> tuple[list[Mirror], list[Tensor]]:
    """Optimizer state split as the parameter of the same keys, or further, by what holds it; and all other tensors."""
    params = [tensor for tensor in tensors if tensor.role == "param"]
    shared = _shared_keys([_KEY.findall(tensor.name) for tensor in params])
    known = {tuple(_KEY.findall(tensor.name)[shared:]): tensor for tensor in params}
    lengths = sorted({len(keys) for keys in known}, reverse=True)
    held: dict[tuple[str, tuple[str, ...], bool], list[Tensor]] = {}
    rest = []
    for tensor in tensors:
        keys = _KEY.findall(tensor.name) if tensor.role == "opt_state" else []
        found = next((tuple(keys[-n:]) for n in lengths if n and tuple(keys[-n:]) in known), None)
        param = known[found] if found else None
        over = _besides(param, tensor) if param else None
        if found and over is not None:
            held.setdefault((tensor.name[: -len("".join(found))], over, bool(tensor.memory)), []).append(tensor)
        else:
            rest.append(tensor)
    return [Mirror(name, tuple(alike), over, hosted) for (name, over, hosted), alike in held.items()], rest


def shared_prefix(names: Sequence[str]) -> str:
    """What all names begin with, in whole keys: "state.params" of parameters; at least one key is left to each."""
    paths = [_KEY.findall(name) for name in names]
    if len(names) < 2 or not all(paths):
        return ""
    head = names[0][: len(names[0]) - len("".join(paths[0]))]
    if any(not name.startswith(head) for name in names):
        return ""
    return head + "".join(paths[0][: _shared_keys(paths)])


def _besides(param: Tensor, tensor: Tensor) -> tuple[str, ...] | None:
    """The axes that split a tensor within what splits its parameter; None where it lies otherwise."""
    if (param.shape, param.stored_shape) != (tensor.shape, tensor.stored_shape):
        return None
    found: list[str] = []
    for own, axes in zip(param.sharding, tensor.sharding, strict=True):
        if axes[: len(own)] != own:
            return None
        found += axes[len(own) :]
    return tuple(found)


def _shared_keys(paths: Sequence[Sequence[str]]) -> int:
    """How many leading keys all paths share, at least one key left to each."""
    if not paths:
        return 0
    count = 0
    while all(len(path) > count + 1 and path[count] == paths[0][count] for path in paths):
        count += 1
    return count

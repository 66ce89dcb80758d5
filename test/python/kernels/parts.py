"""A call of a kernel computed part by part, as its rule says, against the whole call.

`check_parts` is given a plain function that stands for the kernel; a rule that is wrong for it fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.table import describe
from rhino.program.data import Rule

# A plain form: from the call, with its shapes and configuration, and its operands to its results; None for scratch.
Plain = Callable[..., Sequence[Any]]
Mapping_ = tuple[tuple[int, ...], ...]


def tensor(dtype: str, *shape: int) -> KernelTensor:
    return KernelTensor(shape, dtype)


def known(call: KernelCall) -> tuple[Entry, Known]:
    found = describe(call)
    assert found is not None, f"the table has no entry for {call.target}"
    return found


def refusal(call: KernelCall) -> Refused:
    """Why the table refuses a call."""
    try:
        entry, _ = known(call)
    except Refused as refused:
        return refused
    raise AssertionError(f"{entry.name} takes the call")


def arrays(call: KernelCall, seed: int = 0) -> list[Any]:
    """Operands of a call: normal numbers as float32, small counts for integers."""
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 4, t.shape).astype(np.int32)
        if "i" in t.dtype
        else random.standard_normal(t.shape).astype(np.float32)
        for t in call.operands
    ]


def check_parts(
    call: KernelCall, plain: Plain, operands: Sequence[Any] | None = None, parts: int = 2, atol: float = 1e-4
) -> set[str]:
    """Splits each factor that may be in parts, one after the other, and compares with the whole; returns their names.

    Parts are put together as the rule says: side by side where a result has the factor, the largest for `maxima`, else
    added where the factor is a sum; what is left must be the same for all parts.
    """
    entry, found = known(call)
    rule, whole = found.rule, list(operands) if operands is not None else arrays(call)
    wanted = plain(call, *whole)
    checked = set()
    for f, name in enumerate(found.names):
        if f in rule.replicate or f in rule.permutation or rule.factor_sizes[f] == 1:
            continue
        assert rule.factor_sizes[f] % parts == 0, f"factor {name} of {rule.factor_sizes[f]} has no {parts} parts"
        local = _local(entry, call, rule, f, parts)
        made = []
        for part in range(parts):
            cut = [_cut(x, m, rule, f, part, parts) for x, m in zip(whole, rule.operands, strict=True)]
            made.append(plain(local, *cut))
        for i, (want, mapping) in enumerate(zip(wanted, rule.results, strict=True)):
            if want is None:
                continue
            ours = [np.asarray(results[i]) for results in made]
            assert all(list(x.shape) == list(local.results[i].shape) for x in ours), f"{name}: result {i} is no part"
            got = _together(ours, mapping, rule, f, i in found.maxima)
            assert got is not None, f"{name}: result {i} differs between parts, and nothing puts it together"
            np.testing.assert_allclose(got, np.asarray(want), atol=atol, rtol=1e-4, err_msg=f"{name}, result {i}")
        checked.add(name)
    return checked


def _local(entry: Entry, call: KernelCall, rule: Rule, f: int, parts: int) -> KernelCall:
    """The call on one part, with the configuration that the entry gives it."""

    def shapes(tensors: Sequence[KernelTensor], mappings: Sequence[Mapping_]) -> tuple[KernelTensor, ...]:
        return tuple(
            KernelTensor(tuple(n // parts if f in d else n for n, d in zip(t.shape, m, strict=True)), t.dtype)
            for t, m in zip(tensors, mappings, strict=True)
        )

    local = replace(call, operands=shapes(call.operands, rule.operands), results=shapes(call.results, rule.results))
    if entry.resize is None:
        return local
    changes = entry.resize(call, local.operands, local.results)
    return replace(local, config=_changed(call.config, changes))


def _changed(config: Any, changes: Any) -> Any:
    found = dict(config)
    for (key, *rest), value in changes.items():
        found[key] = _changed(found[key], {tuple(rest): value}) if rest else value
    return found


def _cut(x: Any, mapping: Mapping_, rule: Rule, f: int, part: int, parts: int) -> Any:
    """The part of an operand: of the dimension with the factor every run of it that belongs to the part."""
    x = np.asarray(x)
    for d, factors in enumerate(mapping):
        if f in factors:
            at = factors.index(f)
            sizes = [rule.factor_sizes[g] for g in factors]
            apart = x.reshape(*x.shape[:d], *sizes, *x.shape[d + 1 :])
            run = sizes[at] // parts
            cut = np.take(apart, np.arange(part * run, (part + 1) * run), axis=d + at)
            x = cut.reshape(*x.shape[:d], -1, *x.shape[d + 1 :])
    return x


def _together(made: list[Any], mapping: Mapping_, rule: Rule, f: int, largest: bool) -> Any:
    for d, factors in enumerate(mapping):
        if f in factors:
            at, parts = factors.index(f), len(made)
            sizes = [rule.factor_sizes[g] // (parts if g == f else 1) for g in factors]
            apart = [x.reshape(*x.shape[:d], *sizes, *x.shape[d + 1 :]) for x in made]
            shape = made[0].shape
            return np.concatenate(apart, axis=d + at).reshape(*shape[:d], -1, *shape[d + 1 :])
    if largest:
        return np.maximum.reduce(made)
    if f in rule.reduction:
        return np.add.reduce(made)
    return made[0] if all(np.allclose(made[0], x, atol=1e-5) for x in made) else None

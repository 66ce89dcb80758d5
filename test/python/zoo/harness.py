"""Runs steps as users write them three ways, and compares what they return with plain `jax.jit` on one device.

Owns what a step of the zoo says of itself (`About`, `Case`) and the comparison. The steps are in `zoo/steps`, one each.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import rhino

STEPS = Path(__file__).parent / "steps"
# Devices so slow and links so fast that whatever can be split is split: a tiny model on `local` would be left whole.
CLUSTER = Path(__file__).parents[1] / "exec" / "slow_devices.yaml"
MODES = ("one", "mesh", "stages")


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A refusal that is right: what it says, and the remedy, which is tried.

    Args:
      text: a regular expression of the message.
      limit: for the documentation's table: why.
      options: of `rhino.parallelize`, with which it is right; None where there is no remedy.
    """

    text: str
    limit: str
    options: dict[str, Any] | None = dataclasses.field(default_factory=lambda: {"microbatches": 1})


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What a step is, and what is expected of it. Readable without the packages it needs.

    Args:
      frontend: what it is written with.
      what: in a few words.
      needs: modules that must be importable.
      ci: modes that CI runs; the others are marked `long`.
      mesh: of the mode "mesh".
      one, stages: a refusal where there is one. A mesh is refused as one program is.
      x64: whether it runs under `jax.enable_x64`.
    """

    frontend: str
    what: str
    needs: tuple[str, ...] = ()
    ci: tuple[str, ...] = ()
    mesh: str = "2x4"
    one: Refused | None = None
    stages: Refused | None = None
    x64: bool = False

    def refusal(self, mode: str) -> Refused | None:
        return self.stages if mode == "stages" else self.one


def returned_first(state: int) -> Callable[[Any], tuple[tuple[Any, ...], Any]]:
    """Steps that return what they update first, then the rest."""
    return lambda out: (tuple(out[:state]), out[state:]) if state else ((), out)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A step with its arguments.

    Args:
      step: as given to `jax.jit`.
      state: leading arguments, which the step returns updated.
      batches: the further arguments of each call.
      after: the next state and the rest, of what the step returned; by default the first values are the state.
      donate, static: argument numbers, as for `jax.jit`.
      rtol: largest difference allowed, over the largest magnitude of the leaf.
      atol: largest difference that is allowed in any case.
      options: of `rhino.parallelize`, in every mode.
      jit: what its users jit it with elsewhere. With `nnx.jit` the step changes its state in place, objects of NNX, and
        returns the rest.
    """

    step: Callable[..., Any]
    state: tuple[Any, ...]
    batches: Sequence[tuple[Any, ...]]
    after: Callable[[Any], tuple[tuple[Any, ...], Any]] | None = None
    donate: tuple[int, ...] = ()
    static: tuple[int, ...] = ()
    rtol: float = 1e-4
    atol: float = 1e-6
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    jit: Callable[..., Any] = jax.jit


def names() -> list[str]:
    return sorted(path.stem for path in STEPS.glob("*.py"))


def module(name: str) -> ModuleType:
    return importlib.import_module(f"zoo.steps.{name}")


def about(name: str) -> About:
    return module(name).ABOUT


def missing(name: str) -> list[str]:
    """The modules a step needs that are not installed."""
    return [need for need in about(name).needs if importlib.util.find_spec(need) is None]


@functools.lru_cache(maxsize=1)
def _made(name: str) -> Case:
    return module(name).case()


@functools.lru_cache(maxsize=1)
def _expected(name: str) -> list[Any]:
    case = _made(name)
    return _run(case.jit(case.step, static_argnums=case.static), case)


def _run(step: Callable[..., Any], case: Case) -> list[Any]:
    """What every call returned, the state left out of all but the last."""
    in_place = case.jit is nnx.jit
    after = case.after or returned_first(0 if in_place else len(case.state))
    state = _copied_objects(case.state) if in_place else jax.tree.map(_copy, case.state)
    found = []
    for batch in case.batches:
        updated, rest = after(step(*state, *batch))
        state = state if in_place else updated
        # At once: the next call may consume what is donated.
        found.append(_host(rest))
    return [*found, _host(nnx.to_pure_dict(nnx.state(state)) if in_place else state)]


def _copied_objects(objects: Any) -> Any:
    structure, values = nnx.split(objects)
    return nnx.merge(structure, jax.tree.map(_copy, values))


def _copy(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _host(tree: Any) -> Any:
    return jax.tree.map(_array, rhino.original(tree))


def _array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _compare(got: Any, want: Any, rtol: float, atol: float) -> None:
    ours, theirs = jax.tree.structure(got), jax.tree.structure(want)
    assert ours == theirs, f"{ours}\n{theirs}"
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        where = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{where}: {a.dtype}{a.shape} for {b.dtype}{b.shape}"
        if not jnp.issubdtype(b.dtype, jnp.inexact):
            assert np.array_equal(a, b), f"{where}: {a} for {b}"
            continue
        kind = np.complex128 if jnp.issubdtype(b.dtype, jnp.complexfloating) else np.float64
        x, y = a.astype(kind), b.astype(kind)
        finite = np.isfinite(y)
        assert np.array_equal(x[~finite], y[~finite], equal_nan=True), f"{where}: {x} for {y}"
        scale = float(np.abs(y[finite]).max(initial=0.0))
        error = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
        assert error <= rtol * scale + atol, f"{where}: off by {error:.3g} of {scale:.3g}, allowed {rtol} and {atol}"


def _planned(case: Case, mode: str, mesh: str, **more: Any) -> list[Any]:
    options: dict[str, Any] = {"cluster": str(CLUSTER), **case.options}
    if mode == "mesh":
        options |= {"mesh": mesh}
    if mode == "stages":
        options |= {"stages": 2, "microbatches": 2}
    options |= more
    step = rhino.parallelize(case.step, donate_argnums=case.donate, static_argnums=case.static, **options)
    return _run(step, case)


def check(name: str, mode: str) -> None:
    """Run a step of the zoo in a mode: the numbers of plain `jax.jit`, or the refusal that is stated, its remedy tried.

    Raises:
      AssertionError: neither.
    """
    if about(name).x64:
        with jax.enable_x64(True):
            _check(name, mode)
    else:
        _check(name, mode)


def _check(name: str, mode: str) -> None:
    told, case = about(name), _made(name)
    refused = told.refusal(mode)
    if refused is None:
        _compare(_planned(case, mode, told.mesh), _expected(name), case.rtol, case.atol)
        return
    try:
        _planned(case, mode, told.mesh)
    except rhino.RhinoError as error:
        text, remedy = str(error), error.remedy
        assert re.search(refused.text, text), text
    else:
        raise AssertionError(f"{name} is not refused as {mode}: say so in its ABOUT")
    if refused.options == {"microbatches": 1}:
        assert "one micro-batch" in remedy, remedy
    if "or give statistics=micro-batch" in remedy:
        # Not the numbers of one device, as it says; but it must run.
        _planned(case, mode, told.mesh, statistics="micro-batch")
    if refused.options is not None:
        _compare(_planned(case, mode, told.mesh, **refused.options), _expected(name), case.rtol, case.atol)

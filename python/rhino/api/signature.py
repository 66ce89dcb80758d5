"""How a call's arguments are told apart: positional or keyword-only, traced or static, and what makes two calls alike.

Owns the mirror of `jax.jit`'s conventions for static and donated arguments. Knows nothing of plans.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rhino.errors import RhinoError

LeafKey = tuple[tuple[int, ...], Any, bool]
_Kind: Any = type(inspect.Parameter.VAR_POSITIONAL)  # inspect's enumeration of kinds of parameters


@dataclass(frozen=True, slots=True)
class UserCall:
    """One call, its static arguments taken out.

    Attributes:
      args, kwargs: all arguments, every one that can be positional made so.
      traced_args, traced_kwargs: those that are not static.
      names: the parameter name of each traced positional argument.
      statics: (position or name, value) of each static argument.
      opened: whether the traced arguments stand for objects that the call updates; see `rhino.api.objects`.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    traced_args: tuple[Any, ...]
    traced_kwargs: dict[str, Any]
    names: tuple[str, ...]
    statics: tuple[tuple[int | str, Hashable], ...]
    opened: bool = False


class Signature:
    """The parameters of a function, and which of them are static or donated.

    Attributes:
      static, donated: positions.
      static_names, donated_names: of parameters that may be given by keyword, those of `static` and `donated` included.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        static: int | Sequence[int] = (),
        donated: int | Sequence[int] = (),
        static_names: str | Sequence[str] = (),
        donated_names: str | Sequence[str] = (),
    ) -> None:
        kinds = _parameters(fn)
        self._positional = (*kinds[_Kind.POSITIONAL_ONLY], *kinds[_Kind.POSITIONAL_OR_KEYWORD])
        self._only_positional, self._keywords = kinds[_Kind.POSITIONAL_ONLY], kinds[_Kind.KEYWORD_ONLY]
        self._rest = "".join(kinds[_Kind.VAR_POSITIONAL])
        self._any_keyword = bool(kinds[_Kind.VAR_KEYWORD])
        stars = (*(f"*{name}" for name in kinds[_Kind.VAR_POSITIONAL]), *self._keywords)
        self._shown = (*self._positional, *stars, *(f"**{name}" for name in kinds[_Kind.VAR_KEYWORD]))
        self.static, self.static_names = self._both(static, static_names, "static")
        self.donated, self.donated_names = self._both(donated, donated_names, "donate")
        both = [
            *(i for i in self.static if i in self.donated),
            *(repr(name) for name in self.static_names if name in self.donated_names),
        ]
        if both:
            raise RhinoError(
                f"argument {both[0]} is both static and donated", "a static argument has no buffer to donate"
            )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UserCall:
        """The call in its normal form, so that `f(state, batch=b)` and `f(state, b)` are one."""
        if kwargs:
            args, kwargs = self._make_positional(args, kwargs)
        if not self.static and not self.static_names:
            return UserCall(args, kwargs, args, kwargs, self.names(len(args)), ())
        traced = [i for i in range(len(args)) if i not in self.static]
        every = self.names(len(args))
        return UserCall(
            args,
            kwargs,
            tuple(args[i] for i in traced),
            {name: value for name, value in kwargs.items() if name not in self.static_names},
            tuple(every[i] for i in traced),
            (
                *((i, args[i]) for i in self.static if i < len(args)),
                *((name, kwargs[name]) for name in self.static_names if name in kwargs),
            ),
        )

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], set[int]]:
        """The flat traced arguments of a call in its normal form, and which of them are donated."""
        given = {i: arg for i, arg in enumerate(args) if i not in self.static}
        # As jax flattens a dictionary: by name.
        by_name = {name: kwargs[name] for name in sorted(kwargs) if name not in self.static_names}
        leaves: list[Any] = []
        donated: set[int] = set()
        for gives, arg in (
            *((i in self.donated, arg) for i, arg in given.items()),
            *((name in self.donated_names, arg) for name, arg in by_name.items()),
        ):
            start = len(leaves)
            leaves += jax.tree.leaves(arg)
            donated |= set(range(start, len(leaves))) if gives else set()
        return leaves, donated

    def jit(self, fn: Callable[..., Any]) -> Any:
        """`jax.jit` of a function with these parameters, static and donated as they are."""
        return jax.jit(
            fn,
            static_argnums=self.static,
            static_argnames=self.static_names,
            donate_argnums=self.donated,
            donate_argnames=self.donated_names,
            keep_unused=True,
        )

    def __repr__(self) -> str:
        return f"({', '.join(self._shown)})"

    def names(self, count: int) -> tuple[str, ...]:
        """What the first `count` positional arguments are called."""
        if count <= len(self._positional):
            return self._positional[:count]
        extra = count - len(self._positional)
        return (*self._positional, *(f"{self._rest}[{i}]" for i in range(extra)))

    def _both(
        self, numbers: int | Sequence[int], names: str | Sequence[str], what: str
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """All positions and all names of the arguments that are given by one or the other."""
        positions = set(self._positions(numbers, f"{what}_argnums"))
        named: dict[str, None] = {}
        for name in (names,) if isinstance(names, str) else names:
            if name in self._positional:
                positions.add(self._positional.index(name))
            elif name not in self._keywords and not self._any_keyword:
                known = ", ".join((*self._positional, *self._keywords)) or "none"
                raise RhinoError(f"{what}_argnames has {name!r}, but the function's parameters are: {known}")
            named[name] = None
        found = tuple(sorted(positions))
        by_position = (self._positional[i] for i in found if i < len(self._positional))
        by_position = (name for name in by_position if name not in self._only_positional)
        return found, tuple(dict.fromkeys((*by_position, *named)))

    def _positions(self, given: int | Sequence[int], what: str) -> tuple[int, ...]:
        numbers = (given,) if isinstance(given, int) else tuple(given)
        count = len(self._positional)
        found = []
        for number in numbers:
            position = number + count if number < 0 else number
            if position < 0 or (position >= count and not self._rest):
                raise RhinoError(f"{what} has {number}, but the function takes {count} positional arguments")
            found.append(position)
        return tuple(sorted(dict.fromkeys(found)))

    def _make_positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        left = dict(kwargs)
        bound = list(args)
        # A parameter left to its default ends the run: filling the default in would make a constant a traced value.
        while len(bound) < len(self._positional) and self._positional[len(bound)] in left:
            bound.append(left.pop(self._positional[len(bound)]))
        return tuple(bound), left


def _parameters(fn: Callable[..., Any]) -> dict[Any, tuple[str, ...]]:
    """The names of the parameters of each kind."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin
        parameters = [inspect.Parameter("args", _Kind.VAR_POSITIONAL), inspect.Parameter("kwargs", _Kind.VAR_KEYWORD)]
    return {kind: tuple(p.name for p in parameters if p.kind is kind) for kind in _Kind}


def check_static(call: UserCall) -> None:
    """Raise RhinoError for a static argument that cannot be hashed."""
    for where, value in call.statics:
        try:
            hash(value)
        except TypeError:
            raise RhinoError(
                f"static argument {where!r} has the unhashable type {type(value).__name__}",
                "pass a hashable value, such as a tuple, or do not make it static",
            ) from None


def leaf_key(leaf: Any) -> LeafKey | None:
    """Shape, dtype as jax will see it, and weak typing; None for what is no array."""
    if isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic):
        return (), jax.dtypes.canonicalize_dtype(type(leaf)), not isinstance(leaf, bool)
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None or type(leaf).__module__.startswith("torch"):  # whose types are none of numpy's
        return None
    # New-style PRNG keys have a dtype that numpy does not know.
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return tuple(shape), dtype, bool(getattr(leaf, "weak_type", False))


def abstract(leaf: Any) -> Any:
    """The leaf without its data and its place; what is no array is left for jax to complain about."""
    key = leaf_key(leaf)
    return leaf if key is None else jax.ShapeDtypeStruct(key[0], key[1], weak_type=key[2])

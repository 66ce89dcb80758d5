"""Objects that no traced step can update: Keras models and variables, PyTorch modules and tensors, what is no array.

Owns what is said instead of losing an update without a word. Imports none of these libraries: objects of one that was
not imported cannot be there.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax.tree_util import tree_flatten_with_path

from rhino.api.objects import object_paths, path_name
from rhino.api.signature import UserCall, leaf_key
from rhino.errors import RhinoError

_ARGUMENTS = {
    "keras": "parallelize model.train_step, whose arguments are arrays, or give [v.value for v in model.variables]",
    "ref": "give the array that it holds, ref[...]; variables of NNX without ref=True",
    "torch": "torchax.interop.wrap_jax_jit(step, jax_jit_func=rhino.parallelize) takes tensors",
}
_HELD = {
    "keras": "parallelize model.train_step, which takes and returns its state: "
    "model.train_function = lambda state, it: step(state, next(it)) lets model.fit use it",
    "torch": "take weights as an argument and return them, as steps of torchax.train.make_train_step do",
}
_ROOTS = {"keras": "keras", "torch": "torch", "torchax": "torch"}
# Whose functions hold no objects of the user's, and hold many others.
_LIBRARIES = ("jax", "jaxlib", "numpy", "flax", "optax", "keras", "torch", "rhino", "functools", "builtins")
_MOST = 2000  # functions and values that are looked through


def _library(value: Any) -> str:
    """The library that a value is an object of: "keras", "torch" or nothing."""
    roots = (base.__module__.partition(".")[0] for base in type(value).__mro__)
    return next((_ROOTS[root] for root in roots if root in _ROOTS), "")


def check_arguments(call: UserCall) -> None:
    """Raise RhinoError, with its name, for an argument that is no array, number or pytree of these."""
    for path, leaf in tree_flatten_with_path((call.traced_args, call.traced_kwargs))[0]:
        library = "ref" if isinstance(leaf, jax.Ref) else _library(leaf)
        if library or (leaf_key(leaf) is None and not hasattr(leaf, "__jax_array__")):
            argument = path[1].key if path[0].idx == 1 else call.names[path[1].idx]
            objects = object_paths((call.traced_args, call.traced_kwargs))
            raise RhinoError(
                f"{argument}{path_name(path, objects, 2)} is a {type(leaf).__name__}, which is no array that JAX knows",
                _ARGUMENTS.get(library)
                or "make it static (static_argnames), or leave it out, as eqx.filter(x, eqx.is_array) does",
            )


@contextmanager
def held_unchanged(fn: Callable[..., Any]) -> Iterator[None]:
    """Around the tracing of a function: it must assign to no variable of Keras or torchax that it does not create.

    Such an assignment leaves a value of the trace behind, which nothing can compute with, and the update is lost.

    Raises:
      RhinoError: it does; the variables have their values again.
    """
    if not any(root in sys.modules for root in ("keras", "torchax")):
        yield
        return
    before = [(owner, variable, slot, getattr(variable, slot)) for owner, variable, slot in _variables(fn)]
    changed = []
    try:
        yield
    finally:
        for owner, variable, slot, value in before:
            if isinstance(getattr(variable, slot), jax.core.Tracer) and not isinstance(value, jax.core.Tracer):
                changed.append((owner, variable))
                setattr(variable, slot, value)
    if changed:
        owner, variable = changed[0]
        name = getattr(variable, "path", "") or getattr(variable, "name", None) or "a tensor"
        raise RhinoError(
            f"the step assigns to {name} of a {type(owner).__name__} it was not given, and that would be lost",
            _HELD[_library(variable)],
        )


def _variables(fn: Callable[..., Any]) -> Iterator[tuple[Any, Any, str]]:
    """(owner, variable, the attribute that has its value) of all that a function holds."""
    for owner in _objects(fn):
        if _library(owner) == "keras":
            parts = [owner, getattr(owner, "optimizer", None)]
            found = [v for part in parts for v in getattr(part, "variables", ())]
            found += getattr(owner, "metrics_variables", ())
            yield from ((owner, v, "_value") for v in (owner, *found) if hasattr(v, "_value"))
        elif callable(getattr(kind := type(owner), "parameters", None)):
            # Of the class: a JittableModule of torchax has a dictionary called buffers.
            tensors = [*kind.parameters(owner), *kind.buffers(owner)]
            yield from ((owner, tensor, "_elem") for tensor in tensors if hasattr(tensor, "_elem"))
        elif hasattr(owner, "_elem"):
            yield owner, owner, "_elem"


def _objects(fn: Any) -> Iterator[Any]:
    """Objects of the libraries that a function can reach: closed over, global, bound, or in a list of such."""
    left, seen = [fn], set[int]()
    while left and len(seen) < _MOST:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            if value.__module__ is None or value.__module__.partition(".")[0] not in _LIBRARIES:
                left += _reach(value)
        elif isinstance(value, types.MethodType):
            left += [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            left += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif not isinstance(value, type) and _library(value):
            yield value


def _reach(fn: types.FunctionType) -> list[Any]:
    found = [getattr(fn, "__wrapped__", None)]
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return found + [fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__]

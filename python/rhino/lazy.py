"""Public names of a package that are loaded on first use, so that importing the package starts neither jax nor MLIR."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`: each name is looked up in the module that has it.

    Args:
      package: its `__name__`.
      homes: by public name, the module; a module's own name is a subpackage.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})

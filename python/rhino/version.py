"""The version that pyproject.toml had when this was installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rhino-jax")
except PackageNotFoundError:  # a copy of the files that pip did not install
    __version__ = "not installed"

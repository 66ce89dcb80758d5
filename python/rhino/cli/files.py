"""Files of the `rhino` commands: input read, outputs checked before long work and written after it; `-` is a stream.

Owns their one-line errors. Knows nothing of what is in the files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rhino.errors import JAX_WRITES, RhinoError


def read(path: str) -> bytes:
    """The bytes of a file, or of standard input for `-`. Raises RhinoError when it cannot be read."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise RhinoError(
            f"{path}: cannot read: {reason}", f"give a .mlir or .mlirbc file, or -; {JAX_WRITES}"
        ) from None


def read_program(path: str, target: str = "") -> tuple[bytes, str | None]:
    """The module in a file, or in standard input for `-`: text, bytecode, or what `jax.export` wrote, as bytecode.

    Args:
      target: whose platform is kept of an export for several.

    Returns:
      The bytes, and the file that has them as they are, None where there is none.

    Raises:
      RhinoError: it cannot be read, or is an export of another kind.
    """
    data = read(path)
    from rhino.compile.exported import is_exported, read_exported

    if is_exported(data):
        return read_exported(data, shown(path), target), None
    return data, None if path == "-" else path


def shown(path: str) -> str:
    """What errors call an input."""
    return "<stdin>" if path == "-" else path


def check_writable(*paths: str | None) -> None:
    """Raise RhinoError for an output that has nowhere to go, before minutes are spent on it. None and `-` are fine."""
    for path in paths:
        if path and path != "-":
            folder = os.path.dirname(path) or "."
            if not os.path.isdir(folder) or not os.access(folder, os.W_OK) or os.path.isdir(path):
                raise RhinoError(f"{path}: cannot write there", "give a file in a folder that exists")


def write(path: str, data: bytes | str) -> None:
    """Write a file, or standard output for `-`. Raises RhinoError when it cannot be written."""
    raw = data.encode() if isinstance(data, str) else data
    if path == "-":
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        return
    try:
        Path(path).write_bytes(raw)
    except OSError as error:
        raise RhinoError(f"{path}: cannot write: {error.strerror}", "give a file in a folder that exists") from None

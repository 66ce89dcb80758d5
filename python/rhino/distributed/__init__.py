"""Jobs of several processes: joining one, agreeing on a plan, and ending together when one of them fails.

Owns `initialize`. Must not know: how plans are made, or what a step does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded on first use: `import rhino` stays light.
_EXPORTS = {
    "Job": "rhino.distributed.start",
    "current_job": "rhino.distributed.start",
    "initialize": "rhino.distributed.start",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'rhino.distributed' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])

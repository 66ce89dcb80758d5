"""Jobs of several processes: joining one, agreeing on a plan, and ending together when one of them fails.

Owns `initialize`. Must not know: how plans are made, or what a step does.
"""

from __future__ import annotations

from rhino.lazy import lazily

# Loaded on first use: `import rhino` stays light.
_EXPORTS = {
    "Job": "rhino.distributed.start",
    "current_job": "rhino.distributed.start",
    "initialize": "rhino.distributed.start",
}
__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)

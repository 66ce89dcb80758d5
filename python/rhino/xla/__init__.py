"""What XLA does that plans, predictions and rewrites rest on: per back end, and as named behaviours with their probes.

Owns the descriptions and the probes' programs, as plain data. `rhino.compile.probe` compiles them.
"""

from __future__ import annotations

from rhino.xla.backends import BACK_ENDS, BackEnd, back_end

__all__ = ["BACK_ENDS", "BackEnd", "back_end"]

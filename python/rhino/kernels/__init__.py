"""Kernels: calls whose insides nobody sees, and what is known of them: how they can be split, and what they cost.

`register` describes one that the table does not know. Passes read and write the calls (`rhino.passes.kernels`).
"""

from __future__ import annotations

from rhino.kernels.registered import register, unregister

__all__ = ["register", "unregister"]

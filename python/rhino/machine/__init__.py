"""Machines: what clusters are, from presets with sources, YAML files, local devices and calibration; seconds and bytes.

Owns what an operation and a collective take there; must not know what is searched with it. Imports neither jax nor
MLIR; `Cluster.local()` and calibration import jax when called.
"""

from __future__ import annotations

from rhino.machine.model import Cluster, Device, Efficiency, Level

__all__ = ["Cluster", "Device", "Efficiency", "Level"]

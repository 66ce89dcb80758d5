"""Clusters: what the machines are. Presets with sources, YAML files, the local devices, and calibration.

Imports neither jax nor MLIR; `Cluster.local()` and calibration import jax when called.
"""

from __future__ import annotations

from rhino.cluster.model import Cluster, Device, Efficiency, Level

__all__ = ["Cluster", "Device", "Efficiency", "Level"]

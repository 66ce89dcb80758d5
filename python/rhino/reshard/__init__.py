"""Cross-mesh resharding: from the tiles of one mesh to those of another, between hosts, at the network's bound.

Plans messages and proves bounds; running them is the runtime's. Imports neither jax nor MLIR.
"""

from __future__ import annotations

from rhino.reshard.bounds import Bounds, bounds_of
from rhino.reshard.checker import check_program, program_time
from rhino.reshard.data import Hop, MessageProgram, MessageStep, MovedTensor, Network, Phase, Slice, Tile, Unit
from rhino.reshard.networks import network_of
from rhino.reshard.plan import SCHEDULERS, ReshardPlan, plan_reshard
from rhino.reshard.strategies import STRATEGIES, unit_time
from rhino.reshard.tiles import parse_spec, spec_tiles
from rhino.reshard.units import units_of

__all__ = [
    "SCHEDULERS",
    "STRATEGIES",
    "Bounds",
    "Hop",
    "MessageProgram",
    "MessageStep",
    "MovedTensor",
    "Network",
    "Phase",
    "ReshardPlan",
    "Slice",
    "Tile",
    "Unit",
    "bounds_of",
    "check_program",
    "network_of",
    "parse_spec",
    "plan_reshard",
    "program_time",
    "spec_tiles",
    "unit_time",
    "units_of",
]

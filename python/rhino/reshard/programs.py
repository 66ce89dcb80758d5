"""Programs from phases.

Owns which hosts take part. Knows nothing about how phases are found.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.reshard.data import MessageProgram, Phase, Unit


def made_program(
    units: tuple[Unit, ...], bundles: tuple[tuple[int, ...], ...], phases: Sequence[Phase]
) -> MessageProgram:
    """The program of phases, with the hosts that they name."""
    hosts = {host for phase in phases for step in phase.steps for hop in step.hops for host in (hop.source, hop.target)}
    return MessageProgram(tuple(sorted(hosts)), units, bundles, tuple(phases))

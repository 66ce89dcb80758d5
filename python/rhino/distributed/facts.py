"""What every process of a job must have in common before its first step, and the message where one differs.

Owns the comparison. Reads jax's versions and devices; starts nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib

import rhino
from rhino.distributed.link import Group, Member

_VERSIONS = ("jax", "jaxlib", "rhino")


def introduction() -> dict[str, Any]:
    """Where this process runs, and with which versions."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "rhino": rhino.__version__,
    }


def different_versions(members: Sequence[Member]) -> str:
    """What differs, of which processes; empty if nothing does."""
    for name in _VERSIONS:
        found: dict[str, list[int]] = {}
        for member in members:
            found.setdefault(str(member.about[name]), []).append(member.number)
        if len(found) > 1:
            listed = ", ".join(f"{name} {version} in {_named(members, who)}" for version, who in found.items())
            return f"the processes have different versions of {name}: {listed}"
    return ""


def devices() -> dict[str, Any]:
    """This process's devices. The first use of them: every process must come here."""
    local = jax.local_devices()
    return {"kind": str(local[0].device_kind), "platform": str(local[0].platform), "count": len(local)}


def different_devices(groups: Sequence[Group], members: Sequence[Member]) -> str:
    """What differs in the processes' devices; empty if nothing does."""
    if len(groups) == 1:
        return ""
    listed = ", ".join(
        f"{group.value['count']} {group.value['kind']} in {_named(members, group.processes)}" for group in groups
    )
    kinds = list(dict.fromkeys((group.value["platform"], group.value["kind"]) for group in groups))
    what = "numbers" if len(kinds) == 1 else "kinds"
    return f"the processes have different {what} of devices: {listed}"


def _named(members: Sequence[Member], numbers: Sequence[int]) -> str:
    """Processes by number; with host and pid where they are few."""
    if len(numbers) <= 2:
        return " and ".join(str(members[number]) for number in numbers)
    shown = ", ".join(map(str, numbers[:8]))
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"processes {shown}{more}"

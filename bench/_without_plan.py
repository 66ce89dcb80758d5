"""One plan of bench.without, a process of its own: `python -m bench._without_plan PART MODULE CLUSTER OUT RECORD`.

PART is what the search has not: local-sums, recomputation, state-apart, distributed-optimizer or nothing. MODULE is
planned as one program, but for a PART of pipelines; "any" is nothing there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from rhino.cli.main import main

# What stands in for a part of the search, by where it is.
PARTS: dict[str, tuple[tuple[str, Callable[..., Any]], ...]] = {
    "nothing": (),
    "local-sums": (("rhino.sharding.parts._FormSearch._local_counts", lambda self: []),),
    "recomputation": (),
    "state-apart": (("rhino.sharding.planner.parted_share", lambda graph: 0.0),),
    "distributed-optimizer": (("rhino.pipeline.search.sharded.elementwise_updates", lambda step: []),),
    "any": (),
}

# Parts whose cases may be pipelines: that one, and all of the search.
PIPELINED = ("distributed-optimizer", "any")


def plan(part: str, source: str, cluster: str, out: str, record: str) -> int:
    """Plans one program without a part; the exit status of `rhino plan`."""
    for name, instead in PARTS[part]:
        patch(name, instead).start()
    remat = ["--remat", "keep"] if part == "recomputation" else []
    stages = [] if part in PIPELINED else ["--stages", "1"]
    return main(["plan", source, "--cluster", cluster, *stages, *remat, "-o", out, "--json", record, "-q"])


if __name__ == "__main__":
    sys.exit(plan(*sys.argv[1:]))

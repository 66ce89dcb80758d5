"""One plan of bench.without, a process: `python -m bench._without_plan SEARCH PART MODULE CLUSTER OUT RECORD`.

SEARCH is `with` or `without` PART: local-sums, recomputation, state-apart or distributed-optimizer. MODULE is planned
as one program, but for a PART of pipelines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from rhino.cli.main import main

# What stands in for a part of the search, by where it is.
PARTS: dict[str, tuple[tuple[str, Callable[..., Any]], ...]] = {
    "local-sums": (("rhino.sharding.parts._FormSearch._local_counts", lambda self: []),),
    "recomputation": (),
    "state-apart": (("rhino.sharding.planner.parted_share", lambda graph: 0.0),),
    "distributed-optimizer": (("rhino.pipeline.search.sharded.elementwise_updates", lambda step: []),),
}


def plan(search: str, part: str, source: str, cluster: str, out: str, record: str) -> int:
    """Plans one program with or without a part; the exit status of `rhino plan`."""
    without = search == "without"
    for name, instead in PARTS[part] if without else ():
        patch(name, instead).start()
    remat = ["--remat", "keep"] if without and part == "recomputation" else []
    stages = [] if part == "distributed-optimizer" else ["--stages", "1"]
    return main(["plan", source, "--cluster", cluster, *stages, *remat, "-o", out, "--json", record, "-q"])


if __name__ == "__main__":
    sys.exit(plan(*sys.argv[1:]))

"""One plan of bench.without, a process: `python -m bench._without_plan SEARCH PART MODULE CLUSTER OUT RECORD`.

SEARCH is `with` or `without` PART: local-sums, recomputation, state-apart, distributed-optimizer or offload. MODULE is
planned as one program, but for a PART of pipelines, or where these are looked for first. Without what the hosts keep,
it is planned for devices with as little memory as there is a plan for.
"""

from __future__ import annotations

import re
import subprocess
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
    "offload": (),
    "distributed-optimizer": (("rhino.pipeline.search.sharded.elementwise_updates", lambda step: []),),
}
# Flags that leave a part out.
FLAGS = {"recomputation": ["--remat", "keep"], "offload": ["--offload", "none"]}


def plan(search: str, part: str, source: str, cluster: str, out: str, record: str) -> int:
    """Plans one program with or without a part; the exit status of `rhino plan`."""
    without = search == "without"
    for name, instead in PARTS[part] if without else ():
        patch(name, instead).start()
    stages = [] if part in ("distributed-optimizer", "offload") else ["--stages", "1"]
    flags = FLAGS.get(part, []) if without else []
    asked = ["plan", source, "--cluster", cluster, *stages, *flags, "-o", out, "--json", record, "-q"]
    return main([*asked, "--memory-limit", least_memory(asked)] if without and part == "offload" else asked)


def least_memory(asked: list[str]) -> str:
    """The memory limit that `rhino plan` says would do, as it refuses what was asked."""
    refused = subprocess.run([sys.executable, "-m", "rhino.cli.main", *asked], capture_output=True, text=True)
    return re.findall(r"raise the limit to (\d+) bytes", refused.stderr)[0]


if __name__ == "__main__":
    sys.exit(plan(*sys.argv[1:]))

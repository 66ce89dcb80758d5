"""Named pipelines: lists of passes that users run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rhino.passes.registry import Pass, Pipeline, build, option, register


@register
class Auto(Pipeline):
    """Plan a module for a cluster, from the program as jax lowers it to one annotated with its sharding.

    Runs rhino-inline, symbol-dce, canonicalize, rhino-classify-args, rhino-expose-strided-dims and rhino-plan-sharding
    with the options given here.

    Requires: a function @main with static shapes.

    Ensures: parameters that are cut into chunks are stored split (`rhino.strided`); an `sdy.mesh`, an `sdy.sharding` on
    the arguments, results and operations of @main, `rhino.plan` and `rhino.cluster` on the module.

    Example:
      ```sh
      rhino-opt step.mlir --rhino-auto="topology=dgx-h100:1 level=O1"
      ```
    """

    name: ClassVar[str] = "rhino-auto"

    topology: str = option("local", "cluster: a preset with the number of hosts (dgx-h100:4), or a YAML file")
    level: str = option("O1", "how hard to search, as rhino-plan-sharding")
    mesh: str = option("", "shape of the mesh, such as 2x4; by default the search chooses")
    budget: float = option(0.0, "seconds after which the best plan so far is taken; 0 for no limit")
    memory_limit: int = option(0, "bytes per device that a plan may use; 0 for nine tenths of the device's memory")

    def expand(self) -> Sequence[Pass | str]:
        """The passes in order."""
        options = [("topology", self.topology), ("level", self.level), ("memory-limit", str(self.memory_limit))]
        if self.budget:
            options.append(("budget", str(self.budget)))
        if self.mesh:
            options.append(("mesh", self.mesh))
        plan = build("rhino-plan-sharding", options)
        before = ("rhino-classify-args", "rhino-expose-strided-dims")
        return [build("rhino-inline", []), "symbol-dce", "canonicalize", *before, plan]

"""Named pipelines: lists of passes that users run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rhino.errors import RhinoError
from rhino.passes.registry import Pass, PassPipeline, build, option, register


@register
class Auto(PassPipeline):
    """Plan a module for a cluster, from the program as jax lowers it to one annotated with its sharding.

    Runs rhino-inline, symbol-dce, rhino-forward-copies, canonicalize, rhino-batch-lookups, rhino-neutral-starts,
    rhino-delay-random, rhino-adopt-mesh, rhino-describe-kernels, rhino-classify-args and rhino-plan-parallelism with
    the options given here; for a given number of stages or micro-batches rhino-plan-pipeline; with stages=1 only
    rhino-expose-strided-dims and rhino-plan-sharding. In the end rhino-partition-kernels.

    Requires: a function @main with static shapes.

    Ensures: parameters that are cut into chunks are stored split (`rhino.strided`); an `sdy.mesh`, an `sdy.sharding` on
    the arguments, results and operations of @main, `rhino.plan` and `rhino.cluster` on the module; or @main in
    fragments with `rhino.schedule`, if a pipeline was asked for, or nothing else fits.

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

    stages: int = option(0, "pipeline stages; 0 makes a pipeline only if nothing else fits, -1 if it is faster")
    microbatches: int = option(0, "micro-batches of a pipeline; 0 leaves them to the search")
    fewer: bool = option(False, "as of rhino-plan-pipeline: whether fewer micro-batches will do")
    schedule: str = option("", "schedule of a pipeline; searched when empty")
    statistics: str = option("batch", "as of rhino-split-microbatch", ("batch", "micro-batch"))
    annotations: str = option(
        "keep",
        "of the user, as of rhino-adopt-mesh; planned: of another plan, on its mesh",
        ("keep", "ignore", "planned"),
    )

    def expand(self) -> Sequence[Pass | str]:
        """The passes in order. Raises RhinoError for options that contradict each other."""
        options = [("topology", self.topology), ("level", self.level), ("memory-limit", str(self.memory_limit))]
        if self.budget:
            options.append(("budget", str(self.budget)))
        if self.mesh:
            options.append(("mesh", self.mesh))
        return [
            build("rhino-inline", []),
            "symbol-dce",
            build("rhino-forward-copies", []),
            "canonicalize",
            build("rhino-batch-lookups", []),
            build("rhino-neutral-starts", []),
            build("rhino-delay-random", []),
            *self._adopted(),
            build("rhino-describe-kernels", []),
            build("rhino-classify-args", []),
            *self._plan(options),
            build("rhino-partition-kernels", []),
        ]

    def _adopted(self) -> Sequence[Pass]:
        """The step's own mesh put aside, unless the module has that of a plan already."""
        if self.annotations == "planned":
            return []
        options = [("annotations", self.annotations), ("topology", self.topology)]
        options += [("stages", str(self.stages))] if self.stages > 1 else []
        given = self.mesh and "+" not in self.mesh  # those of stages of several widths are not one mesh
        return [build("rhino-adopt-mesh", [*options, ("mesh", self.mesh)] if given else options)]

    def _plan(self, options: list[tuple[str, str]]) -> Sequence[Pass | str]:
        """The passes that plan."""
        if self.stages < -1 or self.microbatches < 0:
            raise RhinoError(
                f"stages {self.stages} and microbatches {self.microbatches} are not counts", "give 0 to leave them open"
            )
        if self.stages > 1 or self.microbatches > 1 or self.schedule:
            if self.level == "O0":
                raise RhinoError("level O0 makes no pipelines", "plan at O1, or without stages")
            given = [("stages", str(max(0, self.stages))), ("microbatches", str(self.microbatches))]
            given += [("schedule", self.schedule)] if self.schedule else []
            given += [("statistics", self.statistics)] + [("fewer", "true")] * self.fewer
            return [build("rhino-plan-pipeline", [*options, *given])]
        if self.stages == 1 or self.microbatches == 1:
            return [build("rhino-expose-strided-dims", []), build("rhino-plan-sharding", options)]
        when = "compare" if self.stages < 0 else "if-needed"
        return [build("rhino-plan-parallelism", [*options, ("pipelines", when), ("statistics", self.statistics)])]

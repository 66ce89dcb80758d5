"""Named pipelines: lists of passes that users run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rhino.errors import RhinoError
from rhino.passes.registry import Pass, PassPipeline, asked, build, load, option, options_of, register


@register
class Auto(PassPipeline):
    """Plan a module for a cluster, from the program as jax lowers it to one annotated with its sharding.

    Runs rhino-inline, symbol-dce, rhino-forward-copies, rhino-sink-constants, canonicalize, rhino-batch-lookups,
    rhino-neutral-starts, rhino-convert-operands, rhino-delay-random, rhino-adopt-mesh, rhino-describe-kernels,
    rhino-classify-args, rhino-order-products and rhino-plan-parallelism with the options given here; for a given
    number of stages, or a schedule, rhino-plan-pipeline; with stages=1 only rhino-expose-strided-dims and
    rhino-plan-sharding. In the end rhino-partition-kernels.

    Requires: a function @main with static shapes.

    Ensures: parameters that are cut into chunks are stored split (`rhino.strided`); an `sdy.mesh`, an `sdy.sharding` on
    the arguments, results and operations of @main, `rhino.plan` and `rhino.cluster` on the module; or @main in
    fragments with `rhino.schedule`, if a pipeline was asked for, nothing else fits, or memory makes it the faster one.

    Example:
      ```sh
      rhino-opt step.mlir --rhino-auto="topology=dgx-h100:1 level=O1"
      ```
    """

    name: ClassVar[str] = "rhino-auto"

    topology: str = option("local", "cluster: a preset with the number of hosts (dgx-h100:4), or a YAML file")
    level: str = asked("level")
    mesh: str = asked("mesh")
    memory_limit: int = asked("memory_limit")
    budget: float = asked("budget")
    stages: int = asked("stages")
    microbatches: int = asked("microbatches")
    fewer: bool = asked("fewer")
    groups: int = asked("groups")
    schedule: str = asked("schedule")
    statistics: str = asked("statistics")
    remat: str = asked("remat")
    offload: str = asked("offload")
    annotations: str = asked("annotations", "as of rhino-adopt-mesh; planned: of another plan, on its mesh")

    def expand(self) -> Sequence[Pass | str]:
        """The passes in order. Raises RhinoError for options that contradict each other."""
        return [
            build("rhino-inline", []),
            "symbol-dce",
            build("rhino-forward-copies", []),
            build("rhino-sink-constants", []),
            "canonicalize",
            build("rhino-batch-lookups", []),
            build("rhino-neutral-starts", []),
            build("rhino-convert-operands", []),
            build("rhino-delay-random", []),
            *self._adopted(),
            build("rhino-describe-kernels", []),
            build("rhino-classify-args", []),
            *([self._made("rhino-recompute", policy="none")] if self.remat == "none" else []),
            build("rhino-order-products", []),
            *self._plan(),
            build("rhino-partition-kernels", []),
        ]

    def _adopted(self) -> Sequence[Pass]:
        """The step's own mesh put aside, unless the module has that of a plan already."""
        if self.annotations == "planned":
            return []
        # Those of stages of several widths are not one mesh.
        mesh = "" if "+" in self.mesh else self.mesh
        return [self._made("rhino-adopt-mesh", stages=max(0, self.stages), mesh=mesh)]

    def _plan(self) -> Sequence[Pass | str]:
        """The passes that plan."""
        if self.stages < -1 or self.microbatches < 0:
            raise RhinoError(
                f"stages {self.stages} and microbatches {self.microbatches} are not counts", "give 0 to leave them open"
            )
        if self.level == "O0" and (self.stages > 1 or self.microbatches > 1 or self.schedule):
            raise RhinoError("level O0 makes no pipelines and no micro-batches", "plan at O1, or without them")
        if self.stages > 1 or self.schedule:
            return [self._made("rhino-plan-pipeline", stages=max(0, self.stages))]
        if self.stages == 1 or self.microbatches == 1:
            return [build("rhino-expose-strided-dims", []), self._made("rhino-plan-sharding")]
        return [self._made("rhino-plan-parallelism", pipelines="compare" if self.stages < 0 else "if-needed")]

    def _made(self, name: str, **other: Any) -> Pass:
        """A pass with what it shares of these options, and with others."""
        made = load(name)
        shared = {spec.field: getattr(self, spec.field) for spec in options_of(made) if hasattr(self, spec.field)}
        return made(**{**shared, **other})

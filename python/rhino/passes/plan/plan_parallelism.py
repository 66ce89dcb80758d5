"""`rhino-plan-parallelism`: one sharding over all devices, or a pipeline of stages: whichever fits and is faster."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.deadline import Deadline
from rhino.dialect.attributes import RhinoPlan
from rhino.dialect.context import replace_contents, to_bytecode
from rhino.errors import NoPlan, NothingFits, first_line
from rhino.ir.diagnostics import Diagnostic, PassError, PassLog
from rhino.ir.meshes import given_mesh
from rhino.passes.plan.plan_pipeline import PlanPipeline
from rhino.passes.plan.plan_sharding import PlanSharding
from rhino.passes.registry import Pass, asked, option, register


@register
class PlanParallelism(Pass):
    """Plan one program over all devices if that fits, else a pipeline; or search both, and take the faster.

    Has rhino-expose-strided-dims and rhino-plan-sharding run, and rhino-plan-pipeline where pipelines are looked for.

    Requires: as rhino-plan-sharding, before rhino-expose-strided-dims.

    Ensures: what rhino-plan-sharding or rhino-plan-pipeline ensures. A module that has a mesh is not made a pipeline.
    What lost is among the plan's alternatives, also where there is no such plan: nothing fits, or the step cannot be
    pipelined; any other error of either search is one of this pass.

    Options:
      pipelines: "if-needed" looks for pipelines where nothing fits without, "compare" always.
      topology, level, mesh, memory-limit, budget: as of rhino-plan-sharding. With a mesh pipelines are not looked for.
        Half of the budget is for one program, where pipelines may follow.

    Example:
      ```mlir
      // rhino-opt --rhino-plan-parallelism='topology=p3.16xlarge:8 pipelines=compare'
      func.func @main(%w: tensor<64x64xf32> {rhino.role = "param"}, ...
      // becomes what `rhino-plan-sharding` or `rhino-plan-pipeline` makes of it
      ```
    """

    name: ClassVar[str] = "rhino-plan-parallelism"
    runs: ClassVar[tuple[str, ...]] = ("rhino-expose-strided-dims", "rhino-plan-sharding", "rhino-plan-pipeline")

    topology: str = option("", "cluster: preset[:hosts], a YAML file, or `local`")
    level: str = asked("level")
    mesh: str = asked("mesh")
    memory_limit: int = asked("memory_limit")
    budget: float = asked("budget")
    pipelines: str = option("if-needed", "when pipelines are looked for", ("if-needed", "compare"))
    microbatches: int = asked("microbatches")
    statistics: str = asked("statistics")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Plan and rewrite. Raises PassError where neither is possible; what the first said, if both fail."""
        pipelines = not (self.mesh or self.level == "O0" or given_mesh(module))
        deadline = log.session.deadline.sooner(self.budget)
        kept = to_bytecode(module) if pipelines else b""
        try:
            one = deadline.half(self.pipelines == "compare") if pipelines else deadline
            self.run_pipeline(
                ["rhino-expose-strided-dims", self._sharding()], module, log, replace(log.session, deadline=one)
            )
            if not pipelines or self.pipelines == "if-needed":
                return
        except PassError as error:
            if not pipelines or not isinstance(error.__cause__, NothingFits):
                raise
            self._instead(module, kept, log, deadline, error)
            return
        self._compare(module, kept, log, deadline.with_plan())

    def _instead(self, module: ir.Module, kept: bytes, log: PassLog, deadline: Deadline, error: PassError) -> None:
        """A pipeline where nothing fits without; the first error if there is none, with what was found besides."""
        replace_contents(module, kept)
        try:
            self.run_pipeline([self._pipeline()], module, log, replace(log.session, deadline=deadline))
        except PassError as other:
            if not isinstance(other.__cause__, NoPlan):
                raise
            said = error.diagnostic
            note = Diagnostic("note", f"nor is there a pipeline: {first_line(other.message)}", said.position)
            error.diagnostic = replace(said, notes=(*said.notes, note))
            raise error from error.__cause__
        # The message goes on with the largest tensors.
        _attach(module, {"name": "one program", "why": error.message.partition("; largest")[0]})

    def _compare(self, module: ir.Module, kept: bytes, log: PassLog, deadline: Deadline) -> None:
        found = RhinoPlan.of(module)
        assert found is not None
        sharded = to_bytecode(module)
        replace_contents(module, kept)
        try:
            self.run_pipeline([self._pipeline()], module, log, replace(log.session, deadline=deadline))
        except PassError as error:
            if not isinstance(error.__cause__, NoPlan):
                raise
            replace_contents(module, sharded)
            why = first_line(error.message)
            fits = isinstance(error.__cause__, NothingFits)
            _attach(module, {"name": "pipeline", "why": why if fits else f"cannot be pipelined, because {why}"})
            return
        other = RhinoPlan.of(module)
        assert other is not None
        best, lost = (found, other) if _step_s(found) <= _step_s(other) else (other, found)
        if best is found:
            replace_contents(module, sharded)
        _attach(module, _as_alternative(lost, best))

    def _sharding(self) -> PlanSharding:
        return PlanSharding(
            topology=self.topology,
            level=self.level,
            mesh=self.mesh,
            memory_limit=self.memory_limit,
            microbatches=self.microbatches,
            statistics=self.statistics,
        )

    def _pipeline(self) -> PlanPipeline:
        return PlanPipeline(
            topology=self.topology,
            level=self.level,
            memory_limit=self.memory_limit,
            microbatches=self.microbatches,
            statistics=self.statistics,
        )


def _attach(module: ir.Module, alternative: dict[str, object]) -> None:
    """Adds what lost to the alternatives of the plan that is in the module."""
    plan = RhinoPlan.of(module)
    assert plan is not None
    RhinoPlan.attach(module, {**plan, "alternatives": [*plan.get("alternatives", []), alternative]})


def _step_s(plan: dict[str, object]) -> float:
    predicted = plan["predicted"]
    assert isinstance(predicted, dict)
    return float(predicted["step_time_s"])


def _as_alternative(lost: dict[str, object], best: dict[str, object]) -> dict[str, object]:
    mesh, predicted = lost["mesh"], lost["predicted"]
    assert isinstance(mesh, list) and isinstance(predicted, dict)
    shape = "x".join(str(size) for _, size in mesh) or "1"
    groups = lost.get("meshes")
    if isinstance(groups, list):
        shape = "+".join(str(prod(size for _, size in group)) for group in groups)
    stages = int(str(lost["stages"]))
    parts = int(str(lost["microbatches"]))
    name = f"{stages} stages of {shape}" if stages > 1 else f"mesh {shape}" + f", {parts} micro-batches" * (parts > 1)
    slower = _step_s(lost) / _step_s(best) - 1 if _step_s(best) > 0 else 0.0
    return {
        "name": name,
        "step_time_s": _step_s(lost),
        "peak_bytes": predicted["peak_bytes"],
        "why": f"{slower:.1%} slower",
    }

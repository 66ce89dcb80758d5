"""`rhino-plan-parallelism`: one sharding over all devices, or a pipeline of stages: whichever fits and is faster."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.deadline import Deadline
from rhino.dialect.attributes import RhinoPlan
from rhino.dialect.context import replace_contents, to_bytecode
from rhino.errors import Costly, NoPlan, NotFaster, NothingFits, first_line
from rhino.ir.diagnostics import Diagnostic, PassError, PassLog
from rhino.ir.meshes import given_mesh
from rhino.ir.session import Session
from rhino.passes.entry import topology_cluster
from rhino.passes.plan.plan_pipeline import PlanPipeline
from rhino.passes.plan.plan_sharding import PlanSharding
from rhino.passes.registry import Pass, asked, option, register
from rhino.sharding.begun import BegunSearches


@register
class PlanParallelism(Pass):
    """Plan one program over all devices if that fits, else a pipeline; or search both, and take the faster.

    Has rhino-expose-strided-dims and rhino-plan-sharding run, and rhino-plan-pipeline where pipelines are looked for.

    Requires: as rhino-plan-sharding, before rhino-expose-strided-dims.

    Ensures: what rhino-plan-sharding or rhino-plan-pipeline ensures. A module that has a mesh is not made a pipeline.
    What lost is among the plan's alternatives, also where there is no such plan: nothing fits, or the step cannot be
    pipelined; any other error of either search is one of this pass. Where plans that merely hold their arguments lose
    more than a third of a step already, the pipeline is looked for first, and one program has to be faster.

    Options:
      pipelines: "if-needed" looks for pipelines where one program does not fit, or memory makes it lose more than a
        third of its time; "compare" always.
      topology, level, mesh, memory-limit, budget, remat: as of rhino-plan-sharding. With a mesh pipelines are not
        looked for. Half of the budget is for one program, where pipelines may follow.
      offload: as of rhino-plan-sharding; "auto" where there is no pipeline either.

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
    remat: str = asked("remat")
    offload: str = asked("offload")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Plan and rewrite. Raises PassError where neither is possible; what the first said, if both fail."""
        deadline = log.session.deadline.sooner(self.budget)
        if self.mesh or self.level == "O0" or given_mesh(module):
            self._one_program(module, log, deadline, self._sharding(self.offload))
            return
        kept = to_bytecode(module)
        half, begun = deadline.half(self.pipelines == "compare"), BegunSearches()
        try:
            self._one_program(module, log, half, self._sharding("none", costly="refuse"), begun)
        except PassError as error:
            replace_contents(module, kept)
            if isinstance(error.__cause__, Costly):
                self._pipeline_first(module, kept, log, deadline, begun)
            elif isinstance(error.__cause__, NothingFits):
                self._instead(module, kept, log, deadline, error)
            else:
                raise
            return
        if self.pipelines == "compare" or _is_costly(module):
            self._compare(module, kept, log, deadline.with_plan())

    def _one_program(
        self,
        module: ir.Module,
        log: PassLog,
        deadline: Deadline,
        planned: PlanSharding,
        begun: BegunSearches | None = None,
    ) -> None:
        session = replace(log.session, deadline=deadline, begun=begun)
        self.run_pipeline(["rhino-expose-strided-dims", planned], module, log, session)

    def _pipeline_first(
        self, module: ir.Module, kept: bytes, log: PassLog, deadline: Deadline, begun: BegunSearches
    ) -> None:
        """A pipeline where memory costs one program much, and one program if that is faster, or there is no other."""
        try:
            self.run_pipeline([self._pipeline()], module, log, replace(log.session, deadline=deadline.half(True)))
        except PassError as none:
            if not isinstance(none.__cause__, NoPlan):
                raise
            replace_contents(module, kept)
            try:
                self._one_program(module, log, deadline, self._sharding("none"), begun)
            except PassError as error:
                if not isinstance(error.__cause__, NothingFits):
                    raise
                self._on_hosts(module, kept, log, deadline, error, none)
                return
            _attach(module, _lost(none))
            return
        found, pipeline = RhinoPlan.of(module), to_bytecode(module)
        assert found is not None
        replace_contents(module, kept)
        try:
            self._one_program(module, log, deadline.with_plan(), self._sharding("none", _step_s(found)), begun)
        except PassError as error:
            if not isinstance(error.__cause__, NoPlan):
                raise
            replace_contents(module, pipeline)
            _attach(module, {"name": "one program", "why": _in_short(error)})
            return
        best = RhinoPlan.of(module)
        assert best is not None
        _attach(module, _as_alternative(_named(found), _step_s(found), _peak_bytes(found), best))

    def _instead(self, module: ir.Module, kept: bytes, log: PassLog, deadline: Deadline, error: PassError) -> None:
        """A pipeline where nothing fits without, or state on the hosts where there is none."""
        try:
            self.run_pipeline([self._pipeline()], module, log, replace(log.session, deadline=deadline))
        except PassError as none:
            if not isinstance(none.__cause__, NoPlan):
                raise
            self._on_hosts(module, kept, log, deadline, error, none)
            return
        _attach(module, {"name": "one program", "why": _in_short(error)})

    def _on_hosts(
        self, module: ir.Module, kept: bytes, log: PassLog, deadline: Deadline, error: PassError, none: PassError
    ) -> None:
        """State on the hosts where nothing fits without, nor is there a pipeline.

        The error of one program if that is not possible either, with what was found besides.
        """
        _add_note(error, f"nor is there a pipeline: {first_line(none.message)}")
        if not self._hosted(module, kept, log, replace(log.session, deadline=deadline), error):
            raise error from error.__cause__
        for name, lost in (("one program", error), ("pipeline", none)):
            _attach(module, {"name": name, "why": _in_short(lost)})

    def _hosted(self, module: ir.Module, kept: bytes, log: PassLog, session: Session, error: PassError) -> bool:
        """Whether one program fits with state on the hosts: then it is planned, else a note of the error says why."""
        cluster = topology_cluster(self.topology, log, self.name)
        if self.offload == "none" or not cluster.device.host_bandwidth_bytes_s:
            return False
        replace_contents(module, kept)
        try:
            self.run_pipeline(["rhino-expose-strided-dims", self._sharding("needed")], module, log, session)
        except PassError as least:
            if not isinstance(least.__cause__, NothingFits):
                raise
            _add_note(error, f"nor does it fit so: {_in_short(least)}")
            return False
        return True

    def _compare(self, module: ir.Module, kept: bytes, log: PassLog, deadline: Deadline) -> None:
        found = RhinoPlan.of(module)
        assert found is not None
        sharded = to_bytecode(module)
        replace_contents(module, kept)
        try:
            self.run_pipeline([self._pipeline(_step_s(found))], module, log, replace(log.session, deadline=deadline))
        except PassError as error:
            if not isinstance(error.__cause__, NoPlan):
                raise
            replace_contents(module, sharded)
            if isinstance(slow := error.__cause__, NotFaster):
                _attach(module, _as_alternative(slow.name, slow.step_time_s, slow.peak_bytes, found))
                return
            _attach(module, _lost(error))
            return
        other = RhinoPlan.of(module)
        assert other is not None
        best, lost = (found, other) if _step_s(found) <= _step_s(other) else (other, found)
        if best is found:
            replace_contents(module, sharded)
        _attach(module, _as_alternative(_named(lost), _step_s(lost), _peak_bytes(lost), best))

    def _sharding(self, offload: str, rival_s: float = 0.0, costly: str = "plan") -> PlanSharding:
        return PlanSharding(
            rival=rival_s,
            costly=costly,
            topology=self.topology,
            level=self.level,
            mesh=self.mesh,
            memory_limit=self.memory_limit,
            microbatches=self.microbatches,
            statistics=self.statistics,
            remat=self.remat,
            offload=offload,
        )

    def _pipeline(self, rival_s: float = 0.0) -> PlanPipeline:
        return PlanPipeline(
            rival=rival_s,
            topology=self.topology,
            level=self.level,
            memory_limit=self.memory_limit,
            microbatches=self.microbatches,
            statistics=self.statistics,
            remat=self.remat,
        )


def _is_costly(module: ir.Module) -> bool:
    """Whether memory makes the plan of one program in the module lose much."""
    plan = RhinoPlan.of(module)
    assert plan is not None
    return bool(plan["search"].get("costly"))


def _lost(error: PassError) -> dict[str, object]:
    """Why there is no pipeline, as an alternative."""
    why = first_line(error.message)
    fits = isinstance(error.__cause__, NothingFits)
    return {"name": "pipeline", "why": why if fits else f"cannot be pipelined, because {why}"}


def _add_note(error: PassError, text: str) -> None:
    said = error.diagnostic
    error.diagnostic = replace(said, notes=(*said.notes, Diagnostic("note", text, said.position)))


def _in_short(error: PassError) -> str:
    """The message without the largest tensors, with which it goes on."""
    return first_line(error.message).partition("; largest")[0]


def _attach(module: ir.Module, alternative: dict[str, object]) -> None:
    """Adds what lost to the alternatives of the plan that is in the module."""
    plan = RhinoPlan.of(module)
    assert plan is not None
    RhinoPlan.attach(module, {**plan, "alternatives": [*plan.get("alternatives", []), alternative]})


def _step_s(plan: dict[str, object]) -> float:
    predicted = plan["predicted"]
    assert isinstance(predicted, dict)
    return float(predicted["step_time_s"])


def _named(plan: dict[str, object]) -> str:
    """A plan for people."""
    mesh = plan["mesh"]
    assert isinstance(mesh, list)
    shape = "x".join(str(size) for _, size in mesh) or "1"
    groups = plan.get("meshes")
    if isinstance(groups, list):
        shape = "+".join(str(prod(size for _, size in group)) for group in groups)
    stages, parts = int(str(plan["stages"])), int(str(plan["microbatches"]))
    if stages > 1:
        return f"{stages} stages of {shape}"
    return f"{'mesh' if plan['schedule'] == 'none' else '1 stage of'} {shape}" + f", {parts} micro-batches" * (
        parts > 1
    )


def _peak_bytes(plan: dict[str, object]) -> int:
    predicted = plan["predicted"]
    assert isinstance(predicted, dict)
    return int(predicted["peak_bytes"])


def _as_alternative(name: str, step_time_s: float, peak_bytes: int, best: dict[str, object]) -> dict[str, object]:
    slower = step_time_s / _step_s(best) - 1 if _step_s(best) > 0 else 0.0
    return {"name": name, "step_time_s": step_time_s, "peak_bytes": peak_bytes, "why": f"{slower:.1%} slower"}

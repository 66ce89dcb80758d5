"""`rhino.experts.plan`: an expert's plan of a module or a function, with the module annotated like a found plan's.

Owns the way from what users have to a `Graph`, and back. Decides nothing. Imports MLIR; jax only for functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir

from rhino.api.plan import Plan
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.errors import RhinoError, RhinoWarning
from rhino.experts.facts import ProgramFacts, read
from rhino.experts.outside import OutsidePlan, plan_by_hand
from rhino.experts.solve import ExpertOutcome, consult
from rhino.experts.spec_file import load_specs
from rhino.experts.specs import Specs
from rhino.ir.import_graph import import_graph
from rhino.ir.session import Session
from rhino.ir.summary import summarise
from rhino.ir.write_layouts import annotate
from rhino.kernels.bodies import given
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.passes.registry import Pass, PassPipeline, build
from rhino.plan import PlanData, is_pipeline
from rhino.plan.meshes import put_aside, put_back
from rhino.plan.module import parse_module, read_plan
from rhino.program.alternative import Alternative
from rhino.program.data import Graph
from rhino.request import memory_bytes
from rhino.sharding import Solution

if TYPE_CHECKING:
    from rhino.api.signature import UserCall
    from rhino.api.trace import Trace


@dataclass(frozen=True, eq=False)
class ExpertProgram:
    """A step as the planner sees it: its module before shardings, as bytecode, its graph and the facts of it."""

    bytecode: bytes
    graph: Graph
    facts: ProgramFacts

    @classmethod
    def of(cls, module: ir.Module, cluster: Cluster | str) -> ExpertProgram:
        """Runs what comes before planning in `rhino-auto`, in place, and reads the program.

        Args:
          cluster: a `Cluster`, or what `Cluster.load` takes.

        Raises:
          RhinoError: a pass failed, or the module has shardings of its own.
        """
        aside = put_aside(module)
        manager = PassManager(module.context)
        auto = build("rhino-auto", [("topology", ""), ("stages", "1")])
        assert isinstance(auto, PassPipeline)
        for part in auto.expand():
            if isinstance(part, Pass) and part.name == "rhino-plan-sharding":
                break
            manager.add(part)
        where = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
        manager.run(module, session=Session(where))
        graph = import_graph(module)
        put_back(module, aside)
        return cls(to_bytecode(module), graph, read(graph))

    def annotated(self, cluster: Cluster, solution: Solution) -> ir.Module:
        """The module with a solution of its graph written into it."""
        module = parse_bytes(self.bytecode, make_context())
        aside = put_aside(module)
        annotate(module, self.graph, solution)
        summarise(module, cluster, solution)
        manager = PassManager(module.context)
        manager.add(build("rhino-partition-kernels", []))
        manager.run(module)
        put_back(module, aside)
        return module


def plan(
    expert: str | PathLike[str] | Specs,
    step: str | PathLike[str] | ir.Module | Callable[..., Any],
    cluster: Cluster | str,
    *args: Any,
    level: str = "O1",
    memory_limit: int | float | str | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Plan:
    """The cheapest plan of one expert that fits, as `rhino plan` would return it; its others are the alternatives.

    Args:
      expert: one of `rhino.experts.names()`; or a plan by hand: `Specs`, or a JSON file of them. That is priced as it
        is, whether it fits or not, with what Shardy propagates where it pins nothing.
      step: a StableHLO file, text or module (left as it is), or a training step written for one device.
      cluster: a `Cluster`, or what `Cluster.load` takes.
      args: for a function, its arguments: arrays or `jax.ShapeDtypeStruct`s. The plan is then bound to their pytrees
        and can be given to `rhino.parallelize(step, plan=...)`.
      level: how hard to search for what the expert leaves open; specs leave nothing to a search.
      memory_limit: bytes per device, 40e9 or "40GiB"; nine tenths of the device's by default.
      donate_argnums, static_argnums: for a function, as for `jax.jit`.

    Warns:
      RhinoWarning: of specs: rules of no argument, arguments without a spec, constraints that cannot be kept.

    Raises:
      RhinoError: there is no such expert, it does not apply to the program, or none of its plans fits; says why. Specs
        do not fit their arguments or the cluster.
    """
    where = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    found = StepProgram.of(step, where, args, donate_argnums, static_argnums)
    told = plan_of(expert, found, where, level, memory_bytes(memory_limit) or None)
    for note in told.notes:
        warnings.warn(note, RhinoWarning, stacklevel=2)
    return found.bound(told.plan)


@dataclass(frozen=True, eq=False)
class StepProgram:
    """A step to plan, perhaps several times.

    Attributes:
      bytecode: its module.
      call: its arguments where it is a function, and `trace` what jax made of it.
      cluster: that it is traced for.
    """

    bytecode: bytes
    cluster: Cluster
    call: UserCall | None = None
    trace: Trace | None = None

    @classmethod
    def of(
        cls,
        step: str | PathLike[str] | ir.Module | Callable[..., Any],
        cluster: Cluster,
        args: tuple[Any, ...] = (),
        donated: int | Sequence[int] = (),
        static: int | Sequence[int] = (),
    ) -> StepProgram:
        """Of what users have. Raises RhinoError for a file that cannot be read, or a module with arguments."""
        if not callable(step):
            if args:
                raise RhinoError(
                    f"a module takes no arguments to plan, got {len(args)}", "give them with a function only"
                )
            return cls(to_bytecode(_module(step)), cluster)
        from rhino.api.objects import over_values
        from rhino.api.signature import Signature
        from rhino.api.trace import import_module, trace

        signature = Signature(step, static, donated)
        with over_values(step, signature, signature.bind(args, {}), object()) as (values_fn, call):
            traced = trace(values_fn, signature, call, cluster.device.xla_target)
        return cls(to_bytecode(import_module(traced)), cluster, call, traced)

    def module(self) -> ir.Module:
        """A module of one's own."""
        return parse_bytes(self.bytecode, make_context())

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Within it the bodies of the step's kernels are known."""
        with given(self.trace.kernels.bodies) if self.trace is not None else nullcontext():
            yield

    def bound(self, plan: PlanData) -> Plan:
        """A plan of it for users."""
        if self.trace is None:
            return Plan.of(plan)
        from rhino.api.binding import bind
        from rhino.api.devices import local_devices
        from rhino.api.pipeline import bind_pipeline

        if is_pipeline(plan):
            there: Any = bind_pipeline(self.cluster)
            return Plan.of(plan, there)
        return Plan.of(plan, bind(plan, self.trace, local_devices(self.cluster)))


def plan_of(
    expert: str | PathLike[str] | Specs,
    step: StepProgram,
    cluster: Cluster,
    level: str = "O1",
    limit: int | None = None,
) -> OutsidePlan:
    """As `plan`, with what is to be said of it, not yet bound."""
    specs = expert
    if isinstance(expert, PathLike) or (isinstance(expert, str) and expert.endswith(".json")):
        specs = load_specs(Path(expert))
    module = step.module()
    with step.planning():
        if isinstance(specs, Specs):
            of_tree = None
            if step.call is not None:
                from rhino.experts.spec_trees import specs_of

                specs, of_tree = specs_of(specs, step.call.traced_args)
            return plan_by_hand(specs, module, cluster, of_tree=of_tree)
        return OutsidePlan(_plan_module(str(expert), module, cluster, level, limit, "")[0])


def _plan_module(
    name: str, module: ir.Module, cluster: Cluster, level: str, limit: int | None, program: str
) -> tuple[PlanData, ExpertOutcome]:
    from rhino.plan.module import fingerprint

    program = program or fingerprint(module)
    read_in = ExpertProgram.of(module, cluster)
    outcome = consult(name, read_in.facts, cluster, level=level, memory_limit=limit)
    if outcome.best is None or outcome.best.solution is None:
        raise RhinoError(
            f"{outcome.expert.title} has no plan of the step on {cluster.name}: {outcome.why}",
            "ask another expert, or let rhino plan search",
        )
    solution = replace(outcome.best.solution, alternatives=_alternatives(outcome), candidates=len(outcome.trials))
    found = read_plan(read_in.annotated(cluster, solution))
    return replace(found, program=program), outcome


def _alternatives(outcome: ExpertOutcome) -> tuple[Alternative, ...]:
    """The expert's other plans, the fastest first."""
    assert outcome.best is not None
    best_s = outcome.best.step_time_s
    rows = []
    for trial in outcome.trials:
        if trial is not outcome.best and trial.solution is not None:
            why = trial.why or f"{trial.step_time_s / best_s - 1:.1%} slower"
            peak_bytes = trial.solution.predicted.memory.peak_bytes
            rows.append(Alternative(f"{trial.expert} {trial.variant}", why, trial.step_time_s, peak_bytes))
    return tuple(sorted(rows, key=lambda row: row.rank))


def _module(step: str | PathLike[str] | ir.Module) -> ir.Module:
    """A module of our own: what the caller gave is not changed."""
    if isinstance(step, ir.Module):
        return parse_bytes(to_bytecode(step), make_context())
    if isinstance(step, str) and "\n" in step:
        return parse_module(step, "module")
    file = Path(step)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RhinoError(f"{file}: {error.strerror}", "give a StableHLO file, its text, or a function") from None
    return parse_module(data, str(file), str(file))

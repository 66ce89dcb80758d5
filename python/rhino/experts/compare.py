"""`rhino.compare`: plans that others wrote against the one that Rhino finds, in time, bytes and memory, explained.

Owns the comparison as data. How it is shown is `rhino.report.comparison`'s; how plans are made, others'.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from jaxlib.mlir import ir

from rhino.api.plan import Plan
from rhino.dialect.attributes import RhinoPlan
from rhino.dialect.context import to_bytecode
from rhino.errors import RhinoError
from rhino.experts.attribution import Attributed, attribute
from rhino.experts.outside import plan_as_it_is
from rhino.experts.planning import StepProgram, plan_of
from rhino.experts.rules import ALIASES, EXPERTS
from rhino.experts.spec_file import is_specs
from rhino.experts.specs import Specs
from rhino.machine import Cluster
from rhino.plan import is_pipeline
from rhino.plan.module import parse_module, plan_module, read_plan
from rhino.report.comparison import ComparedPlan, Comparison
from rhino.request import PlanRequest, requests
from rhino.sharding.outcome import Progress

# What another plan may be given as: an expert's name, a file, specs, a plan.
Other: TypeAlias = "str | PathLike[str] | Specs | Plan"


def compare(
    others: Other | Sequence[Other],
    step: str | PathLike[str] | ir.Module | Callable[..., Any],
    cluster: Cluster | str,
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    measure: bool = False,
    **options: Any,
) -> Comparison:
    """Others' plans of a step against the one that Rhino finds for it.

    Args:
      others: one or several: `rhino.experts.Specs` or a JSON file of them, an expert's name, a `rhino.Plan` or its
        file, a .mlir file of the same step with shardings on its arguments or a plan.
      step: a StableHLO file, text or module, or a training step written for one device.
      cluster: a `Cluster`, or what `Cluster.load` takes.
      args: for a function, its arguments: arrays or `jax.ShapeDtypeStruct`s.
      donate_argnums, static_argnums: for a function, as for `jax.jit`.
      measure: whether XLA compiles all plans for the cluster's devices, and what it measures is shown.
      options: of planning, as of `rhino.parallelize`.

    Raises:
      RhinoError: nothing fits, or one of the others is no plan of the step; says why.
    """
    where = cluster if isinstance(cluster, Cluster) else Cluster.load(cluster)
    program = StepProgram.of(step, where, args, donate_argnums, static_argnums)
    given = [others] if isinstance(others, str | PathLike | Specs | Plan) else list(others)
    request = replace(requests(options)[0], cluster=where)
    return compare_plans(given, program, request, where.device.xla_target if measure else "")


def compare_plans(
    others: Sequence[Other], step: StepProgram, request: PlanRequest, target: str = "", progress: Progress | None = None
) -> Comparison:
    """As `compare`.

    Args:
      request: for Rhino's own plan, with its cluster; its memory limit is what all are held against.
      target: what XLA compiles the plans for; empty to compile none.
      progress: of the search for that.
    """
    cluster = request.cluster
    assert cluster is not None
    limit = request.memory_limit or cluster.device.plan_bytes
    if not others:
        raise RhinoError("there is no plan to compare with", "give specs, an expert's name or a file")
    # Others' mistakes are said before minutes are spent on a search.
    found = [_other(other, step, cluster, limit) for other in others]
    with step.planning():
        ours = plan_module(step.module(), request, progress)
    mine = _compared("Rhino", step.bound(ours.plan), cluster)
    if target:
        mine, *found = [_measured(one, target) for one in (mine, *found)]
    return Comparison(cluster.name, limit, mine, tuple(found))


def _other(other: Other, step: StepProgram, cluster: Cluster, limit: int) -> ComparedPlan:
    name = other if isinstance(other, str) else "specs" if isinstance(other, Specs) else "plan"
    if isinstance(other, PathLike) or (isinstance(other, str) and not _is_expert(other)):
        return _of_file(Path(other), step, cluster, limit)
    if isinstance(other, Plan):
        return _compared(name, _checked(other, name, cluster), cluster)
    return _planned(name, other, step, cluster, limit)


def _planned(name: str, expert: Any, step: StepProgram, cluster: Cluster, limit: int) -> ComparedPlan:
    told = plan_of(expert, step, cluster, limit=limit)
    made = _compared(name, step.bound(told.plan), cluster)
    return replace(made, notes=told.notes, source=told.pinned)


def _is_expert(name: str) -> bool:
    return name in ALIASES or name in [expert.name for expert in EXPERTS]


def _of_file(path: Path, step: StepProgram, cluster: Cluster, limit: int) -> ComparedPlan:
    name = path.stem
    if not path.exists():
        known = ", ".join(expert.name for expert in EXPERTS)
        raise RhinoError(f"{path} is neither a file nor an expert", f"give a file, or one of {known}")
    if path.suffix == ".json":
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError):
            data = {}  # whoever reads it says what is wrong
        if is_specs(data):
            return _planned(name, path, step, cluster, limit)
        return _compared(name, _checked(Plan.load(path), str(path), cluster), cluster)
    try:
        module = parse_module(path.read_bytes(), str(path), str(path))
    except OSError as error:
        raise RhinoError(f"{path}: cannot read: {error.strerror}", "give a .mlir or .json file") from None
    if RhinoPlan.of(module) is not None:
        return _compared(name, _checked(Plan.of(read_plan(module)), str(path), cluster), cluster)
    told = plan_as_it_is(module, cluster)
    return replace(_compared(name, Plan.of(told.plan), cluster), notes=told.notes, source=told.pinned)


def _checked(plan: Plan, name: str, cluster: Cluster) -> Plan:
    if plan.devices != cluster.num_devices:
        raise RhinoError(
            f"{name} is a plan for {plan.devices} devices, and cluster {cluster.name} has {cluster.num_devices}",
            "compare plans for one cluster",
        )
    return plan


def _compared(name: str, plan: Plan, cluster: Cluster) -> ComparedPlan:
    found: Attributed | None = attribute(plan, cluster)
    if found is None:
        return ComparedPlan(name, plan)
    sent = {i: (share.sent_bytes, share.seconds) for i, share in found.arguments.items()}
    kinds = {kind: (share.sent_bytes, share.seconds) for kind, share in found.kinds.items()}
    return ComparedPlan(name, plan, sent=sent, kinds=kinds, rest=(found.rest.sent_bytes, found.rest.seconds))


def _measured(one: ComparedPlan, target: str) -> ComparedPlan:
    from rhino.compile.executable import compile_as
    from rhino.report.measured import measure
    from rhino.request import PLAIN

    if is_pipeline(one.plan):
        return replace(one, notes=(*one.notes, "a pipeline is many programs: rhino compile measures them"))
    source: Any = one.source or one.plan.source
    if source is None:
        raise RhinoError(f"{one.name} has no module to compile", "save the plan with its module")
    if isinstance(source, ir.Module):
        source = to_bytecode(source)
    return replace(one, measured=measure(compile_as(source, PLAIN, target)))

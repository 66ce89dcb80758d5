"""One plan for all processes of a job: process 0 makes it, and each compares what it is for before it takes it.

Owns the comparison and its messages, and the way of the plan. Knows nothing of how plans are made.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from rhino.api.binding import Binding
from rhino.api.objects import Updated
from rhino.api.trace import Trace, import_module
from rhino.distributed import Job
from rhino.distributed.link import Group
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.plan import PlanData
from rhino.plan.file import dumps, loads
from rhino.plan.module import fingerprint
from rhino.program import SMALL_RESULT_BYTES
from rhino.program.element_types import type_text


def digest(text: str) -> str:
    """SHA-256 (hex) of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def agreed_plan(
    job: Job, trace: Trace, cluster: Cluster, given: dict[str, Any], search: Callable[[], PlanData]
) -> PlanData:
    """The plan that process 0 makes by `search`, in every process, each of which must have traced the same program.

    Args:
      given: the options of `parallelize`, as plain data.

    Raises:
      RhinoError: programs, options or plans given differ, or process 0 finds no plan. Every process raises it.
    """
    module = import_module(trace)
    types = [f"{leaf.name} as {type_text(leaf.aval.dtype, leaf.aval.shape)}" for leaf in trace.leaves]
    ours = {
        "step": trace.name,
        "arguments": digest("\n".join(types)),
        "program": fingerprint(module),
        "donated": list(trace.donated),
        # Hosts may differ by some bytes of memory: process 0's description of what is here counts.
        "cluster": cluster.name if cluster.base_name == "local" else repr(cluster),
        **given,
    }
    groups = job.link.ask({name: _short(value) for name, value in ours.items()}, job.timeout_s)
    if len(groups) > 1:
        raise job.link.refuse(_difference(job, groups, ours, types, str(module)))
    text = _made(job, search) if job.process == 0 else _received(job)
    # Process 0, too, takes the plan that was sent: all compile the very same text.
    return loads(text, "the plan of process 0")


def agree_compiled(job: Job, trace: Trace, plan: PlanData) -> None:
    """Wait until every process has compiled the step, so that none waits in its first communication.

    Raises:
      RhinoError: another process has compiled another step. Every process raises it.
    """
    record = {"step": trace.name, "plan": digest(dumps(plan))}
    groups = job.link.ask(record, job.timeout_s)
    if len(groups) > 1:
        text = " and ".join(f"{_named(group.processes)} {group.value['step']}" for group in groups)
        raise job.link.refuse(RhinoError(f"the processes are about to run different plans: {text}", _REMEDY))


def agreed_most(job: Job, count: int) -> int:
    """The largest of the counts that all processes have."""
    return max(int(group.value) for group in job.link.ask(count, job.timeout_s))


def read_results(trace: Trace, binding: Binding) -> tuple[int, ...]:
    """The flat results that are no state, small, and split over devices: no process could read them as they are."""
    out = jax.tree.unflatten(trace.out_tree, trace.jaxpr.out_avals)
    if isinstance(out, Updated):
        avals = trace.jaxpr.out_avals
        return tuple(i for i in range(out.states, len(avals)) if _is_split(binding, i, avals[i]))
    args, _ = jax.tree.unflatten(trace.in_tree, [leaf.aval for leaf in trace.leaves])
    parts = out if type(out) is tuple else (out,)
    found, start = [], 0
    for part in parts:
        stop = start + len(jax.tree.leaves(part))
        if not any(_alike(part, arg) for arg in args):
            found += [i for i in range(start, stop) if _is_split(binding, i, trace.jaxpr.out_avals[i])]
        start = stop
    return tuple(found)


def _alike(one: Any, other: Any) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)


def _is_split(binding: Binding, i: int, aval: Any) -> bool:
    strided = bool(binding.layouts_out) and binding.layouts_out[i] is not None
    sharding = binding.flat_out[i]
    if strided or not hasattr(sharding, "is_fully_replicated") or sharding.is_fully_replicated:
        return False
    return bool(aval.size * aval.dtype.itemsize <= SMALL_RESULT_BYTES)


# --- the plan's way -------------------------------------------------------------------------------------------------


def _made(job: Job, search: Callable[[], PlanData]) -> str:
    try:
        text = dumps(search())
    except RhinoError as error:
        job.link.share({"error": error.message, "remedy": error.remedy}, b"")
        raise job.link.refuse(error) from error.__cause__
    job.link.share({"sha256": digest(text)}, zlib.compress(text.encode(), 1))
    return text


def _received(job: Job) -> str:
    data, payload = job.link.receive()
    if "error" in data:
        raise job.link.refuse(RhinoError(f"process 0 cannot plan: {data['error']}", data["remedy"]))
    text = zlib.decompress(payload).decode()
    if digest(text) != data["sha256"]:
        raise RhinoError("the plan that arrived is not the one that process 0 sent")
    return text


# --- what differs ---------------------------------------------------------------------------------------------------

_REMEDY = "every process must run the same script, with the same options and files"


def _short(value: Any) -> Any:
    """Long texts by their hash: all that is compared is sent."""
    return digest(value) if isinstance(value, str) and len(value) > 100 else value


def _difference(
    job: Job, groups: Sequence[Group], ours: dict[str, Any], types: Sequence[str], module: str
) -> RhinoError:
    """The message for the first thing that differs. Every process comes here, and asks the same questions."""
    key = next(k for k in ours if len({str(group.value.get(k)) for group in groups}) > 1)
    if key == "arguments":
        return _error("call the step with different arguments", _first(job, types))
    if key == "program":
        return _error("have traced different programs", _first(job, module.splitlines()))
    values = [Group(str(group.value.get(key))[:80], group.processes) for group in groups]
    if key == "step":
        return _error("are about to plan different steps", values)
    return _error("were given different plans" if key == "plan" else f"differ in {key}", values)


def _first(job: Job, lines: Sequence[str]) -> tuple[Group, ...]:
    """The first line in which not all processes agree, as each has it."""
    hashed = job.link.ask([digest(line)[:12] for line in lines], job.timeout_s)
    texts = [group.value for group in hashed]
    at = next((i for i, row in enumerate(zip(*texts, strict=False)) if len(set(row)) > 1), min(map(len, texts)))
    return job.link.ask(lines[at].strip()[:120] if at < len(lines) else "nothing", job.timeout_s)


def _error(what: str, groups: Sequence[Group]) -> RhinoError:
    found: dict[str, tuple[int, ...]] = {}
    for group in groups:
        found[str(group.value)] = (*found.get(str(group.value), ()), *group.processes)
    listed = ", ".join(f"{value} in {_named(sorted(processes))}" for value, processes in found.items())
    return RhinoError(f"the processes {what}: {listed}", _REMEDY)


def _named(processes: Sequence[int]) -> str:
    shown = ", ".join(map(str, processes[:8])) + (", ..." if len(processes) > 8 else "")
    return ("process " if len(processes) == 1 else "processes ") + shown

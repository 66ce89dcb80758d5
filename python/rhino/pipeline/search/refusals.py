"""Why there is no pipeline: what nothing fits, and what cannot be meant.

Owns these messages, each with what to ask for instead. Searches nothing.
"""

from __future__ import annotations

from math import prod

from rhino.errors import NoPlan, NothingFits, NotPipelined
from rhino.machine.units import nbytes
from rhino.pipeline.search.placement import Placement
from rhino.pipeline.search.planned import Planner
from rhino.sharding.meshes import axes_text


def nothing(planner: Planner, least_bytes: int) -> NoPlan:
    """Why no pipeline is worth a search.

    Args:
      least_bytes: per device, of what every pipeline keeps, where that alone is too much; else 0.
    """
    options, cluster, programs = planner.options, planner.cluster, planner.programs
    if least_bytes:
        return NothingFits(
            f"no pipeline fits in {nbytes(planner.limit)} per device on {cluster.name}: parameters, "
            f"optimizer state and gradients alone take {nbytes(least_bytes)} of each device",
            "use more devices, or raise the limit",
        )
    batch, count = programs.batch, options.microbatches
    used = options.stages * prod(options.mesh[0]) if len(options.mesh) == 1 else 0
    if options.stages <= cluster.num_devices < used:
        size, most = prod(options.mesh[0]), cluster.num_devices // options.stages
        return NotPipelined(
            f"{options.stages} stages of {size} devices need {used}, and cluster {cluster.name} has "
            f"{cluster.num_devices}",
            f"give a mesh of {most} devices, or leave it to the search",
        )
    replicas = max(1, cluster.num_devices // used) if used else 1
    if count and options.fewer and batch % replicas:
        return NotPipelined(
            f"a batch of {batch} examples cannot be shared out among {replicas} replicas of each stage",
            f"pad or drop it, or give batches that {replicas} divides",
        )
    if count and not options.fewer and batch % (count * replicas):
        each = f" for each of {replicas} replicas" if replicas > 1 else ""
        return NotPipelined(
            f"a batch of {batch} examples cannot be cut into {count} equal micro-batches{each}",
            "ask for a number that divides the batch, or take another batch",
        )
    for _, parts, *_ in planner.laid_out:
        refusal = programs.refusal(parts)
        if refusal is not None:
            return NotPipelined(f"the step cannot be cut into {parts} parts: {refusal.message}", refusal.remedy)
    own = programs.example.graph.axes
    if (taken := prod(n for _, n in own)) > 1:
        these = f"of {options.stages} stages" if options.stages else "of two stages or more"
        return NotPipelined(
            f"no pipeline {these} on the {cluster.num_devices} devices of cluster {cluster.name} has stages that "
            f"hold the mesh {axes_text(own)} of the step's manual computations",
            f"ask for stages of {taken} devices or a multiple, or write the step for a smaller mesh",
        )
    if not options.shares:
        return NotPipelined(
            f"{options.stages} stages cannot be interleaved: each of several groups of devices has several of them",
            "ask for 4, 6 or another number that can be divided so, or for another schedule",
        )
    if options.stages:
        # Says why there are no such stages.
        dealt = Placement.of(cluster, options.stages).widths
        if len(options.mesh) == 1 and len(set(dealt)) > 1:
            return NotPipelined(
                f"{options.stages} stages on the {cluster.num_devices} devices of cluster {cluster.name} have "
                f"{'+'.join(map(str, dealt))} of them, which no one mesh fits",
                "leave the mesh to the search, or give a number of stages that divides the devices",
            )
    sizes = "+".join("x".join(map(str, mesh)) for mesh in options.mesh)
    asked = [f"mesh {sizes}"] * bool(sizes) + [f"{options.stages} stages"] * bool(options.stages)
    asked += [f"{options.microbatches} micro-batches"] * bool(options.microbatches)
    given = f" of {' and '.join(asked)}" if asked else ""
    return NotPipelined(
        f"no pipeline{given} uses the {cluster.num_devices} devices of cluster {cluster.name} for a batch of {batch}",
        "ask for another number of stages or micro-batches, or leave them to the search",
    )


def out_of_time(planner: Planner) -> NotPipelined:
    """That the budget ended the search before it had one."""
    return NotPipelined(
        f"no pipeline was found on {planner.cluster.name} in the time budget, which ended the search",
        "allow more time, or ask for a number of stages",
    )


def too_large(planner: Planner) -> NoPlan:
    """Why none of those that were planned will do: of those that are too large, by the smallest."""
    needed = [(a.peak_bytes, a.name) for a in planner.losers if a.peak_bytes]
    if planner.losers and not needed:
        refused = planner.losers[0]
        return NotPipelined(
            f"no pipeline is possible on {planner.cluster.name}: {refused.name}: {refused.why}",
            "ask for another number of stages or micro-batches, or plan it as one program (stages=1)",
        )
    tight = min(needed, key=lambda entry: entry[0], default=None)
    needs = f": {tight[1]} needs {nbytes(tight[0])}" if tight else ""
    return NothingFits(
        f"no pipeline fits in {nbytes(planner.limit)} per device on {planner.cluster.name}{needs}",
        "use more devices, or make the batch smaller"
        if planner.programs.again
        else "use more devices, recompute activations (jax.checkpoint), or make the batch smaller",
    )

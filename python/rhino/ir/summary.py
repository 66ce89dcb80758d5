"""`rhino.plan` and `rhino.cluster` of a plan over one mesh: what was chosen, what it is predicted to take, what lost.

Owns making these of a solution. What the attribute may say is told in `rhino.plan.data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoPlan
from rhino.ir.meshes import attach_cluster
from rhino.machine import Cluster
from rhino.machine.padding import Unsplit
from rhino.program.alternative import Alternative
from rhino.program.recomputation import Recomputation
from rhino.schema.records import write
from rhino.sharding import Solution
from rhino.sharding.evaluate import Prediction
from rhino.sharding.kernels import kernel_uses


@dataclass(frozen=True, slots=True)
class Propagated:
    """What level O0 comes to, with the fields a `Solution` has for the report."""

    level: str
    mesh: tuple[tuple[str, int], ...]
    predicted: Prediction
    alternatives: tuple[Alternative, ...] = ()
    candidates: int = 1
    gap: float = 0.0
    costly: bool = False


def summarise(
    module: ir.Module,
    cluster: Cluster,
    solution: Solution | Propagated,
    missed: Sequence[Unsplit] = (),
    microbatches: int = 1,
    statistics: str = "batch",
    again: Recomputation | None = None,
    sums: int = 1,
) -> None:
    """Writes `rhino.plan` and `rhino.cluster`.

    Args:
      missed: dimensions that would be split if their sizes divided.
      microbatches: into how many the step was cut, and `statistics` of which examples its sums are.
      again: what the planner has it compute again.
      sums: local ones of each value that micro-batches add up.
    """
    kernels = [write(use) for use in kernel_uses(solution)] if isinstance(solution, Solution) else []
    predicted = solution.predicted
    memory = predicted.memory
    RhinoPlan.attach(
        module,
        {
            "schema": 1,
            "level": solution.level,
            "cluster": cluster.name,
            "mesh": [[axis, size] for axis, size in solution.mesh],
            "stages": 1,
            "microbatches": microbatches,
            **({"local_sums": sums} if sums > 1 else {}),
            "schedule": "none",
            "predicted": {
                "step_time_s": predicted.step_time_s,
                "compute_s": predicted.compute_s,
                "comm_s": predicted.comm_s,
                "bubble_s": 0.0,
                "peak_bytes": memory.peak_bytes,
                "comm_bytes": predicted.comm_bytes,
                "collectives": predicted.collectives,
                "memory": {
                    "argument_bytes": memory.argument_bytes,
                    "output_bytes": memory.output_bytes,
                    "temp_bytes": memory.temp_bytes,
                    **({"host_bytes": memory.host_bytes} if memory.host_bytes else {}),
                },
                **({"host_s": predicted.host_s} if predicted.host_s else {}),
            },
            "search": {
                "candidates": solution.candidates,
                "gap": solution.gap,
                **({"costly": True} if solution.costly else {}),
            },
            "alternatives": [write(lost) for lost in solution.alternatives],
            **({"kernels": kernels} if kernels else {}),
            **({"unsplit": [write(one) for one in missed]} if missed else {}),
            **({"recomputation": write(again)} if again else {}),
            **({"statistics": statistics} if statistics != "batch" else {}),
        },
    )
    attach_cluster(module, cluster)

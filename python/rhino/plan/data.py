"""A plan: what was chosen for a program on a cluster, what it should cost, what lost, and the annotated module.

Owns the data. Knows nothing of tracing or searching, nor of its forms: module, file, text, page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from rhino.errors import RhinoError
from rhino.machine.padding import Unsplit
from rhino.program.kernel_use import KernelUse

if TYPE_CHECKING:
    from jaxlib.mlir import ir


SCHEMA = 1

Sharding = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One argument or result of the step.

    Attributes:
      name: the user's name for it, `state.params['h_0']['mlp']['kernel']`.
      role: "param", "opt_state", "batch" or "other" for arguments; empty for results.
      shape: as the user sees it.
      dtype: MLIR element type, "f32".
      sharding: for each dimension of `stored_shape` the mesh axes that split it, major first.
      stored_shape: the shape the module has it in: `shape` with some dimensions cut into factors (row-major, so a
        reshape), such that an axis can split a factor. `shape` itself by default.
      stages: in a pipeline, the groups of devices that hold it, each all of it or, of stacked layers, its own; empty
        without one.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding
    stored_shape: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.stored_shape:
            object.__setattr__(self, "stored_shape", self.shape)

    @property
    def is_strided(self) -> bool:
        """Whether it is stored in another shape than the user's."""
        return self.stored_shape != self.shape


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the cost model expects of one step, per device.

    Attributes:
      step_time_s: seconds of a step: computing, communication that is not hidden, and idling.
      compute_s, comm_s, bubble_s: seconds of computing, of communication, and of waiting in a pipeline.
      peak_bytes: the most memory in use at once.
      comm_bytes: bytes sent by each device, by kind of collective, under ring formulas.
      collectives: executions by kind of collective.
      memory: `argument_bytes`, `output_bytes` and `temp_bytes`.
    """

    step_time_s: float = 0.0
    compute_s: float = 0.0
    comm_s: float = 0.0
    bubble_s: float = 0.0
    peak_bytes: int = 0
    comm_bytes: Mapping[str, int] = field(default_factory=dict)
    collectives: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Search:
    """How the plan was found: candidates compared, and how far above the proved bound it is (0.1: a tenth)."""

    candidates: int = 0
    gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate that lost, and why; its predictions where they were made."""

    name: str
    why: str
    step_time_s: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What a plan's cluster is made of, whatever it is called: a kind of device ("h100"), and how many where."""

    device: str
    hosts: int
    devices_per_host: int

    def __str__(self) -> str:
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{hosts} of {self.devices_per_host} {self.device}"


@dataclass(frozen=True, slots=True)
class PlanData:
    """The plan of one program on one cluster; what users hold is a `rhino.api.plan.Plan`.

    Attributes:
      level: the optimization level of the search, "O0" to "O2".
      cluster: name of the cluster, "dgx-h100:4".
      mesh: (axis, size) pairs from the outermost (slowest links) to the innermost.
      stages, microbatches, schedule: the pipeline; 1, 1 and "none" without one. `mesh` is then that of one group.
      statistics: "micro-batch" if sums that examples need are of their micro-batch alone (asked for), so that results
        are not those of one device; else "batch".
      groups: groups of devices that the stages run on, stage s on group s mod `groups`.
      meshes: of each group, where they differ; `mesh` is then the first one's.
      arguments, outputs: every tensor that the step takes and returns, in the flat order of the module.
      kernels: the calls whose insides XLA does not see, as the plan has them.
      unsplit: dimensions that are stored whole, or in few parts, because devices do not divide them, and what padding
        would give; only the largest are looked at, and none of a pipeline.
      program: fingerprint of the module before planning: another program needs its own annotations.
      machine: what the cluster is made of; None in plans of earlier versions, which have its name alone.
    """

    level: str
    cluster: str
    mesh: tuple[tuple[str, int], ...]
    stages: int
    microbatches: int
    schedule: str
    arguments: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    predicted: Predicted
    search: Search = Search()
    alternatives: tuple[Alternative, ...] = ()
    groups: int = 1
    meshes: tuple[tuple[tuple[str, int], ...], ...] = ()
    program: str = ""
    statistics: str = "batch"
    kernels: tuple[KernelUse, ...] = ()
    machine: Machine | None = None
    unsplit: tuple[Unsplit, ...] = ()
    source: str | ir.Module | None = field(default=None, compare=False, repr=False)

    @property
    def devices(self) -> int:
        """The number of devices, of all groups."""
        return sum(self.group_devices)

    @property
    def group_devices(self) -> tuple[int, ...]:
        """The number of devices of each group."""
        return tuple(prod(size for _, size in mesh) for mesh in self.meshes or (self.mesh,) * self.groups)

    @property
    def shape_name(self) -> str:
        """For people: "mesh 2x4", "4 stages of 2x4", "3 stages of 3+3+2" where they have different devices."""
        from rhino.sharding.meshes import mesh_name

        if self.stages == 1:
            return f"mesh {mesh_name(self.mesh)}"
        sizes = self.group_devices if self.meshes else [size for _, size in self.mesh] or [1]
        return f"{self.stages} stages of {('+' if self.meshes else 'x').join(map(str, sizes))}"

    @property
    def module(self) -> str:
        """The annotated module as MLIR text. Raises RhinoError when the plan was loaded without one."""
        if self.source is None:
            raise RhinoError("the plan has no module", "write the plan with Plan.save, which stores its module")
        return self.source if isinstance(self.source, str) else str(self.source)


def is_pipeline(plan: PlanData) -> bool:
    """Whether the module of a plan is in fragments, which the groups of devices of stages run."""
    return any(tensor.stages for tensor in plan.arguments)

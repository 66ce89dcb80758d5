"""A plan: what was chosen for a program on a cluster, what it should cost, what lost, and the annotated module.

Owns the data, and with it the one description of a plan: what is told of a field here is how its attribute and its file
are checked, read and written. Knows nothing of tracing or searching, nor of text, page and module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

from rhino.errors import RhinoError
from rhino.machine.padding import Unsplit
from rhino.machine.units import counted
from rhino.pipeline.schedule import SCHEDULES
from rhino.program.alternative import Alternative
from rhino.program.kernel_use import KernelUse
from rhino.program.operations import COLLECTIVES
from rhino.program.recomputation import Recomputation
from rhino.schema.kinds import Bool, Fault, Faults, Field, Float, Int, ListOf, MapOf, Record, String, TupleOf, Version
from rhino.schema.records import described, record, told

if TYPE_CHECKING:
    from jaxlib.mlir import ir


SCHEMA = 1

Sharding = tuple[tuple[str, ...], ...]

_MESH = ListOf(TupleOf((String(), Int(1))))
_SHAPE = ListOf(Int(0))


@described
class Tensor:
    """One argument or result of the step. It is stored in `shape`, unless that has dimensions that are cut."""

    name: str = told(String(), "the user's name for it, `state.params['h_0']['mlp']['kernel']`")
    role: str = told(String(), '"param", "opt_state", "batch" or "other"; none of a result', when="role", optional=True)
    shape: tuple[int, ...] = told(_SHAPE, "its shape as the user sees it")
    dtype: str = told(String(), 'its MLIR element type, "f32"')
    stored_shape: tuple[int, ...] = told(
        _SHAPE,
        "its shape in the module, where that has dimensions cut into factors (row-major, so a reshape), such that an "
        "axis can split a factor",
        when="is_strided",
        default=(),
        kw_only=True,
    )
    sharding: Sharding = told(
        ListOf(ListOf(String())), "for each dimension of the stored shape the mesh axes that split it, major first"
    )
    stages: tuple[int, ...] = told(
        ListOf(Int(0)),
        "in a pipeline, the groups of devices that hold it, each all of it or, of stacked layers, its own",
        when="stages",
        default=(),
        kw_only=True,
    )

    memory: str = told(
        String(),
        "jax's kind of the memory it is kept in, where that is not the device's: \"pinned_host\"",
        when="memory",
        default="",
        kw_only=True,
    )

    def __post_init__(self) -> None:
        if not self.stored_shape:
            object.__setattr__(self, "stored_shape", self.shape)

    @property
    def is_strided(self) -> bool:
        """Whether it is stored in another shape than the user's."""
        return self.stored_shape != self.shape


@described
class Predicted:
    """What the cost model expects of one step, per device."""

    step_time_s: float = told(Float(0), "seconds of a step: computing, communication that is not hidden, and idling")
    compute_s: float = told(Float(0), "seconds of arithmetic and memory traffic")
    comm_s: float = told(Float(0), "seconds of communication")
    bubble_s: float = told(Float(0), "seconds a pipeline idles")
    peak_bytes: int = told(Int(0), "the most memory in use at once")
    comm_bytes: Mapping[str, int] = told(
        MapOf(Int(0), COLLECTIVES), "bytes each device sends, by kind of collective, under ring formulas"
    )
    collectives: Mapping[str, int] = told(MapOf(Int(0), COLLECTIVES), "executions by kind", default_factory=dict)
    memory: Mapping[str, int] = told(
        MapOf(Int(0)),
        "parts of the peak: `argument_bytes`, `output_bytes` and `temp_bytes`; apart from it `host_bytes`, what of the "
        "arguments is in the memory of the host",
        default_factory=dict,
    )
    host_s: float = told(
        Float(0),
        "seconds in which a host starts the step's work on one device, beside it: no step takes less",
        default=0.0,
    )

    @property
    def period_s(self) -> float:
        """Seconds from one step to the next: those of the devices, or of their hosts where these take longer."""
        return max(self.step_time_s, self.host_s)


@described
class Search:
    """How the plan was found."""

    candidates: int = told(Int(0), "the number of plans compared")
    gap: float = told(Float(0), "how far above the proved bound the step time is, relatively (0.1: a tenth)")
    costly: bool = told(
        Bool(),
        "whether memory makes the step lose more than a third of its time to other than computing divided perfectly",
        default=False,
    )
    searched_s: float | None = told(
        Float(0), "of a pipeline, the step time by which it was chosen, before its transfers were planned", default=None
    )


@described
class Machine:
    """What a plan's cluster is made of, whatever it is called."""

    device: str = told(String(), 'the kind of device, "h100"')
    hosts: int = told(Int(1), "the number of hosts")
    devices_per_host: int = told(Int(1), "the number of devices on each host")

    def __str__(self) -> str:
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"{hosts} of {self.devices_per_host} {self.device}"


@described(kw_only=True)
class PlanData:
    """The plan of one program on one cluster; what users hold is a `rhino.api.plan.Plan`."""

    level: str = told(String(("O0", "O1", "O2")), "the optimization level of the search")
    cluster: str = told(String(), 'the name of the cluster, "dgx-h100:4"')
    machine: Machine | None = told(
        record(Machine, extensible=True),
        "what the cluster is made of; plans of earlier versions have its name alone",
        default=None,
    )
    mesh: tuple[tuple[str, int], ...] = told(
        _MESH, "axes and sizes from the outermost (slowest links) to the innermost; in a pipeline, of one group"
    )
    meshes: tuple[tuple[tuple[str, int], ...], ...] = told(
        ListOf(_MESH),
        "those of each group of devices, where they differ; `mesh` is the first",
        when="meshes",
        default=(),
    )
    stages: int = told(Int(1), "the number of pipeline stages")
    groups: int = told(Int(1), "groups of devices that stages run on, stage s on group s mod `groups`", default=1)
    microbatches: int = told(Int(1), "the number of micro-batches per step")
    local_sums: int = told(
        Int(1), "as how many local sums one program keeps what its micro-batches add up", when="local_sums", default=1
    )
    schedule: str = told(String(("none", *SCHEDULES)), "the pipeline schedule")
    # Of "micro-batch", which was asked for, results are not those of one device.
    statistics: str = told(
        String(("batch", "micro-batch")), "of which examples are sums that examples need", default="batch"
    )
    recomputation: Recomputation | None = told(
        record(Recomputation, extensible=True),
        "what the planner has the backward pass compute again; none of a step that keeps what it kept",
        when="recomputation",
        default=None,
    )
    program: str = told(
        String(), "the fingerprint of the module before planning: another program needs its own annotations", default=""
    )
    predicted: Predicted = told(record(Predicted, extensible=True), "the predictions for one step")
    search: Search = told(record(Search, extensible=True), "how the search went", default=Search(0, 0.0))
    alternatives: tuple[Alternative, ...] = told(
        ListOf(record(Alternative, extensible=True)), "the best plans that lost", default=()
    )
    kernels: tuple[KernelUse, ...] = told(
        ListOf(record(KernelUse, extensible=True)),
        "calls whose insides XLA does not see, those that are split alike together",
        when="kernels",
        default=(),
    )
    unsplit: tuple[Unsplit, ...] = told(
        ListOf(record(Unsplit, extensible=True)),
        "the largest dimensions that are stored whole, or in few parts, because devices do not divide them",
        when="unsplit",
        default=(),
    )
    arguments: tuple[Tensor, ...] = told(
        ListOf(record(Tensor, extensible=True)), "what the step takes, in the flat order of the module"
    )
    outputs: tuple[Tensor, ...] = told(
        ListOf(record(Tensor, extensible=True)), "what the step returns, in the flat order of the module"
    )
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
        """For people: "mesh 2x4", "4 stages of 2x4", "8 stages on 4 groups of 2x4", "3 stages of 3+3+2"."""
        from rhino.sharding.meshes import mesh_name

        if self.schedule == "none":
            return f"mesh {mesh_name(self.mesh)}"
        sizes = self.group_devices if self.meshes else [size for _, size in self.mesh] or [1]
        on = f" on {self.groups} groups" if self.groups < self.stages else ""
        return f"{counted(self.stages, 'stage')}{on} of {('+' if self.meshes else 'x').join(map(str, sizes))}"

    @property
    def module(self) -> str:
        """The annotated module as MLIR text. Raises RhinoError when the plan was loaded without one."""
        if self.source is None:
            raise RhinoError("the plan has no module", "write the plan with Plan.save, which stores its module")
        return self.source if isinstance(self.source, str) else str(self.source)


def is_pipeline(plan: PlanData) -> bool:
    """Whether the module of a plan is in fragments, which the groups of devices of stages run."""
    return any(tensor.stages for tensor in plan.arguments)


def mesh_problems(data: Mapping[str, Any]) -> Faults:
    """What is wrong with the mesh of a plan, as plain data, whose fields are valid by themselves."""
    axes = [axis for axis, _ in data["mesh"]]
    for axis in dict.fromkeys(axis for axis in axes if axes.count(axis) > 1):
        yield Fault(("mesh",), f"lists axis '{axis}' twice", "give each axis its own name")


VERSION = Field(Version(SCHEMA), "the version of this schema")
_IN_MODULE = record(PlanData, without=("machine", "arguments", "outputs")).fields
# The attribute `rhino.plan`: what else a plan has, its module says otherwise. It is read as fields by name.
SUMMARY = Record({"schema": VERSION, **_IN_MODULE}, extensible=True, rules=mesh_problems)

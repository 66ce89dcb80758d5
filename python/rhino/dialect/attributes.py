"""The rhino dialect: discardable attributes with builtin values, one class each.

Owns every `rhino.*` name: its meaning, where it may stand, the schema of its value, and what its verifier checks beyond
the schema; those of pipelines stand in `pipeline_attributes`. jaxlib cannot register a dialect from Python, so
structure stays in sdy and mpmd ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from rhino.dialect.base import RhinoAttribute, Scene, shape_of
from rhino.dialect.multicast import RhinoMulticast
from rhino.dialect.pipeline_attributes import (
    SCHEDULES,
    RhinoArgument,
    RhinoLayouts,
    RhinoMicrobatches,
    RhinoPin,
    RhinoPlacement,
    RhinoSchedule,
    RhinoStage,
)
from rhino.dialect.schema import Field, Float, Int, ListOf, MapOf, Record, String, TupleOf, from_attr, to_attr

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
ROLES = ("param", "opt_state", "batch", "other")


class RhinoRole(RhinoAttribute):
    """What an argument is to training: a parameter, state of the optimizer, part of the batch, or something else."""

    name = "rhino.role"
    places = ("argument",)
    schema = String(ROLES)
    example = 'rhino.role = "param"'


class RhinoName(RhinoAttribute):
    """The name of an argument or result in the user's program; it wins over the name in the location."""

    name = "rhino.name"
    places = ("argument", "result")
    schema = String()
    example = "rhino.name = \"state['params']['wte']\""

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        if not data:
            yield f"{cls.name} must not be empty"


class RhinoReturned(RhinoAttribute):
    """Where an argument stands in the user's pytrees, and the results in the same place of trees just like its own."""

    name = "rhino.returned"
    places = ("argument",)
    schema = Record(
        {
            "block": Field(Int(0), "number of the tree that it is a leaf of"),
            "results": Field(ListOf(Int(0)), "results in its place of trees like that one, none without such a tree"),
        }
    )
    example = "rhino.returned = {block = 0 : i64, results = [2]}"

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        count = len(scene.op.attributes["function_type"].value.results)
        for result in data["results"]:
            if result >= count:
                yield f"{cls.name} names result {result}, but the function has {count}"


class RhinoCluster(RhinoAttribute):
    """The cluster the module was planned for."""

    name = "rhino.cluster"
    places = ("module",)
    schema = Record(
        {
            "name": Field(String(), "preset and hosts (`dgx-h100:1`), or the name in the cluster's file"),
            "hosts": Field(Int(1), "number of hosts"),
            "devices_per_host": Field(Int(1), "devices on each host"),
            "device": Field(String(), "kind of device"),
        },
        extensible=True,
    )
    example = 'rhino.cluster = {device = "h100", devices_per_host = 8 : i64, hosts = 1 : i64, name = "dgx-h100:1"}'


class RhinoCost(RhinoAttribute):
    """What one execution of an operation costs on one device, as the cost model predicts it."""

    name = "rhino.cost"
    places = ("op",)
    schema = Record(
        {
            "time_s": Field(Float(0), "seconds, the larger of arithmetic and memory traffic"),
            "flops": Field(Int(0), "floating-point operations", optional=True),
            "bytes": Field(Int(0), "bytes read and written", optional=True),
            "comm_s": Field(Float(0), "seconds of communication the op causes", optional=True),
            "trips": Field(Int(1), "executions in one step", optional=True),
        },
        extensible=True,
    )
    example = "rhino.cost = {bytes = 3145728 : i64, flops = 1073741824 : i64, time_s = 1.100000e-06 : f64}"


class RhinoConstraint(RhinoAttribute):
    """What a constraint of a planned module is, where its place does not say so.

    Of "given" ones the program had before it was planned. The plan added the others: those at once after an operation
    whose result they alone read lay it out, all others, and "copy" ones, convert a value for a reader.
    """

    name = "rhino.constraint"
    places = ("op",)
    schema = String(("given", "copy"))
    example = 'rhino.constraint = "given"'

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        if not scene.op.name.startswith("sdy."):
            yield f"{cls.name} is on '{scene.op.name}', which is no constraint"


class RhinoKernel(RhinoAttribute):
    """What is known of a call whose insides nobody sees: which kernel it is, and what one execution of it costs.

    Beside it stands an `sdy.sharding_rule`, unless the call cannot be split at all; then `replicated` says why.
    """

    name = "rhino.kernel"
    places = ("op",)
    schema = Record(
        {
            "name": Field(String(), "entry of the table of kernels, or the call's target"),
            "flops": Field(Int(0), "floating-point operations with whole operands"),
            "bytes": Field(Int(0), "bytes read and written with whole operands"),
            "type": Field(String(), "element type whose rate its arithmetic has"),
            "rate": Field(String(), "what limits its arithmetic: tensor, vector, attention, .."),
            "sums": Field(
                ListOf(Int(0)), "factors that some results have, and that are summed in the others", optional=True
            ),
            "split": Field(ListOf(ListOf(String())), "axes that split each factor, as a plan has it", optional=True),
            "maxima": Field(ListOf(Int(0)), "results that are the largest value over everything", optional=True),
            "ordered": Field(
                ListOf(Int(0)), "factors of which a device has to know where its part begins", optional=True
            ),
            "held": Field(
                ListOf(
                    Record(
                        {
                            "bytes": Field(Int(0), "bytes besides operands and results, undivided"),
                            "factors": Field(ListOf(Int(0)), "the factors that divide them"),
                        }
                    )
                ),
                "memory that it takes while it runs",
                optional=True,
            ),
            "replicated": Field(String(), "why every device computes all of it", optional=True),
        }
    )
    example = (
        'rhino.kernel = {bytes = 67108864 : i64, flops = 17179869184 : i64, name = "cudnn-attention", '
        'rate = "attention", type = "bf16"}'
    )


class RhinoStrided(RhinoAttribute):
    """How a stored argument maps to its original layout: dimensions that were split into explicit factors, major first.

    Checkpoints keep the original layout; collapsing each listed dimension's factors gives it back, without moving data.
    """

    name = "rhino.strided"
    places = ("argument", "result")
    schema = Record(
        {
            "shape": Field(ListOf(Int(0)), "original shape"),
            "dims": Field(
                ListOf(
                    Record(
                        {
                            "dim": Field(Int(0), "dimension of the original shape"),
                            "factors": Field(ListOf(Int(1)), "its factors in the stored shape"),
                        }
                    )
                ),
                "the split dimensions",
            ),
        }
    )
    example = "rhino.strided = {dims = [{dim = 1 : i64, factors = [3, 16, 64]}], shape = [1024, 3072]}"

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        shape = data["shape"]
        factors: dict[int, list[int]] = {}
        for entry in data["dims"]:
            dim = entry["dim"]
            if dim >= len(shape):
                yield f"{cls.name} splits dim {dim}, but the original shape {shape} has rank {len(shape)}"
            elif dim in factors:
                yield f"{cls.name} splits dim {dim} twice"
            elif prod(entry["factors"]) != shape[dim]:
                yield (
                    f"{cls.name} splits dim {dim} with size {shape[dim]} into {entry['factors']}, "
                    f"whose product is {prod(entry['factors'])}"
                )
            factors[dim] = entry["factors"]
        stored = [size for dim, whole in enumerate(shape) for size in factors.get(dim, [whole])]
        actual = shape_of(scene.type)
        if actual is not None and actual != stored:
            yield f"{cls.name} says the stored shape is {stored}, but the type {scene.type} has {actual}"


_ALTERNATIVE = Record(
    {
        "name": Field(String(), "what was tried"),
        "step_time_s": Field(Float(0), "its predicted seconds per step", optional=True),
        "peak_bytes": Field(Int(0), "its predicted peak memory per device", optional=True),
        "why": Field(String(), "why it lost"),
    },
    extensible=True,
)
_PREDICTED = Record(
    {
        "step_time_s": Field(Float(0), "seconds per step"),
        "compute_s": Field(Float(0), "seconds of arithmetic and memory traffic"),
        "comm_s": Field(Float(0), "seconds of communication"),
        "bubble_s": Field(Float(0), "seconds a pipeline idles"),
        "peak_bytes": Field(Int(0), "peak memory per device"),
        "comm_bytes": Field(MapOf(Int(0), COLLECTIVES), "bytes each device sends, by kind of collective"),
        "collectives": Field(MapOf(Int(0), COLLECTIVES), "executions per step, by kind", optional=True),
        "memory": Field(MapOf(Int(0)), "parts of the peak", optional=True),
    },
    extensible=True,
)


_MESH = ListOf(TupleOf((String(), Int(1))))
_KERNEL = Record(
    {
        "name": Field(String(), "entry of the table of kernels, or the calls' target"),
        "count": Field(Int(1), "executions per step"),
        "dims": Field(ListOf(ListOf(String())), "axes per dimension of the first operand"),
        "flops": Field(Int(0), "arithmetic of one device and step"),
        "time_s": Field(Float(0), "its seconds"),
        "sent_bytes": Field(Int(0), "bytes sent to change layouts around the calls"),
        "sent_s": Field(Float(0), "seconds of that"),
        "where": Field(String(), "source line of the first call"),
        "replicated": Field(String(), "why every device computes all of it; empty if it can be split"),
    },
    extensible=True,
)
_UNSPLIT = Record(
    {
        "name": Field(String(), "an argument"),
        "dim": Field(Int(0), "one of its dimensions"),
        "size": Field(Int(1), "the size of that"),
        "parts": Field(Int(1), "into how many parts it is stored"),
        "padded": Field(Int(1), "the next size that all devices divide"),
        "step_time_s": Field(Float(0), "what a step would take with that size"),
        "peak_bytes": Field(Int(0), "the memory it would take on one device"),
    },
    extensible=True,
)


class RhinoPlan(RhinoAttribute):
    """The summary of a plan: what was chosen, what it is predicted to cost, and what lost to it."""

    name = "rhino.plan"
    places = ("module",)
    schema = Record(
        {
            "schema": Field(Int(1), "version of this schema"),
            "level": Field(String(("O0", "O1", "O2")), "optimization level of the search"),
            "cluster": Field(String(), "name of the cluster"),
            "mesh": Field(_MESH, "axes and sizes, outermost first"),
            "meshes": Field(ListOf(_MESH), "those of each group of devices, where they differ", optional=True),
            "stages": Field(Int(1), "pipeline stages"),
            "microbatches": Field(Int(1), "micro-batches per step"),
            "schedule": Field(String(SCHEDULES), "pipeline schedule"),
            "statistics": Field(
                String(("batch", "micro-batch")), "of which examples are sums that examples need", optional=True
            ),
            "predicted": Field(_PREDICTED, "predictions for one step"),
            "search": Field(
                Record(
                    {
                        "candidates": Field(Int(0), "plans evaluated"),
                        "gap": Field(Float(0), "how far above the proved bound the step time is, relatively"),
                    },
                    extensible=True,
                ),
                "how the search went",
                optional=True,
            ),
            "alternatives": Field(ListOf(_ALTERNATIVE), "the best plans that lost", optional=True),
            "kernels": Field(ListOf(_KERNEL), "calls of kernels, those that are split alike together", optional=True),
            "unsplit": Field(ListOf(_UNSPLIT), "dimensions whose sizes the devices do not divide", optional=True),
        },
        extensible=True,
    )
    example = (
        'rhino.plan = {cluster = "dgx-h100:1", level = "O1", mesh = [["x", 2 : i64], ["y", 4 : i64]], '
        'microbatches = 1 : i64, predicted = {bubble_s = 0.0 : f64, comm_bytes = {"all-reduce" = 1024 : i64}, '
        "comm_s = 1.0e-4 : f64, compute_s = 1.0e-3 : f64, peak_bytes = 4096 : i64, step_time_s = 1.1e-3 : f64}, "
        'schedule = "none", schema = 1 : i64, stages = 1 : i64}'
    )

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        if data["schema"] != 1:
            yield f"{cls.name}.schema is {data['schema']}, but this version of rhino reads 1"
        axes = [axis for axis, _ in data["mesh"]]
        for axis in dict.fromkeys(a for a in axes if axes.count(a) > 1):
            yield f"{cls.name}.mesh lists axis '{axis}' twice"


ATTRIBUTES: Mapping[str, type[RhinoAttribute]] = {
    cls.name: cls
    for cls in (
        RhinoRole, RhinoName, RhinoReturned, RhinoStage, RhinoLayouts, RhinoMicrobatches, RhinoArgument, RhinoPin,
        RhinoCluster, RhinoPlacement, RhinoConstraint, RhinoCost, RhinoKernel, RhinoStrided, RhinoMulticast,
        RhinoSchedule, RhinoPlan,
    )
}  # fmt: skip

__all__ = [
    "ATTRIBUTES",
    "COLLECTIVES",
    "ROLES",
    "RhinoArgument",
    "RhinoAttribute",
    "RhinoCluster",
    "RhinoConstraint",
    "RhinoCost",
    "RhinoKernel",
    "RhinoLayouts",
    "RhinoMicrobatches",
    "RhinoMulticast",
    "RhinoName",
    "RhinoPin",
    "RhinoPlacement",
    "RhinoPlan",
    "RhinoReturned",
    "RhinoRole",
    "RhinoSchedule",
    "RhinoStage",
    "RhinoStrided",
    "from_attr",
    "to_attr",
]

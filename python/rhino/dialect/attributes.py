"""The rhino dialect: discardable attributes with builtin values, one class each.

Owns every `rhino.*` name: its meaning, where it may stand, the schema of its value, and what its verifier checks beyond
the schema; those of pipelines stand in `pipeline_attributes`. jaxlib cannot register a dialect from Python, so
structure stays in sdy and mpmd ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from rhino.dialect.base import RhinoAttribute, Scene, from_attr, shape_of, to_attr
from rhino.dialect.multicast import RhinoMulticast
from rhino.dialect.pipeline_attributes import (
    RhinoArgument,
    RhinoDistributed,
    RhinoLayouts,
    RhinoMemory,
    RhinoMicrobatches,
    RhinoPin,
    RhinoPlacement,
    RhinoSchedule,
    RhinoStage,
    RhinoSums,
)
from rhino.plan.data import SUMMARY, Machine
from rhino.program.data import Kernel
from rhino.schema.kinds import Bool, Field, Float, Int, ListOf, Record, String
from rhino.schema.records import record

ROLES = ("param", "opt_state", "batch", "other")


class RhinoRole(RhinoAttribute):
    """What an argument is to training: a parameter, state of the optimizer, part of the batch, or something else."""

    name = "rhino.role"
    places = ("argument",)
    schema = String(ROLES)
    example = 'rhino.role = "param"'


class RhinoHosted(RhinoAttribute):
    """Another program keeps the argument in the memory of the hosts: rhino-offload has this one take it from there."""

    name = "rhino.hosted"
    places = ("argument",)
    schema = Bool()
    example = "rhino.hosted = true"


class RhinoName(RhinoAttribute):
    """The name of an argument or result in the user's program; it wins over the name in the location."""

    name = "rhino.name"
    places = ("argument", "result")
    schema = String(filled=True)
    example = "rhino.name = \"state['params']['wte']\""


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
            **record(Machine).fields,
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
    schema = record(Kernel)
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


class RhinoPlan(RhinoAttribute):
    """The summary of a plan: what was chosen, what it is predicted to cost, and what lost to it."""

    name = "rhino.plan"
    places = ("module",)
    schema = SUMMARY
    example = (
        'rhino.plan = {cluster = "dgx-h100:1", level = "O1", mesh = [["x", 2 : i64], ["y", 4 : i64]], '
        'microbatches = 1 : i64, predicted = {bubble_s = 0.0 : f64, comm_bytes = {"all-reduce" = 1024 : i64}, '
        "comm_s = 1.0e-4 : f64, compute_s = 1.0e-3 : f64, peak_bytes = 4096 : i64, step_time_s = 1.1e-3 : f64}, "
        'schedule = "none", schema = 1 : i64, stages = 1 : i64}'
    )


ATTRIBUTES: Mapping[str, type[RhinoAttribute]] = {
    cls.name: cls
    for cls in (
        RhinoRole, RhinoName, RhinoReturned, RhinoHosted, RhinoStage, RhinoLayouts, RhinoMicrobatches,
        RhinoSums, RhinoDistributed, RhinoArgument, RhinoPin,
        RhinoCluster, RhinoPlacement, RhinoConstraint, RhinoCost, RhinoKernel, RhinoStrided, RhinoMulticast,
        RhinoMemory, RhinoSchedule, RhinoPlan,
    )
}  # fmt: skip

__all__ = [
    "ATTRIBUTES",
    "ROLES",
    "RhinoArgument",
    "RhinoAttribute",
    "RhinoCluster",
    "RhinoConstraint",
    "RhinoCost",
    "RhinoDistributed",
    "RhinoHosted",
    "RhinoKernel",
    "RhinoLayouts",
    "RhinoMemory",
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
    "RhinoSums",
    "from_attr",
    "to_attr",
]

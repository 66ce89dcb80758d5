"""The attributes of pipelines: stages, the micro-batch loop, what fragments and transfers are, schedules.

Owns these classes. `rhino.dialect.attributes` has the others, and the list of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rhino.dialect import mpmd
from rhino.dialect.base import RhinoAttribute, Scene, shape_of
from rhino.pipeline.program.stage_memory import ROW
from rhino.pipeline.schedule.tasks import STEP
from rhino.schema.kinds import Field, Int, ListOf, MapOf, Record, String, TupleOf


class RhinoStage(RhinoAttribute):
    """The pipeline stage of an operation, before fragments exist. Backward and update run where their forward does."""

    name = "rhino.stage"
    places = ("op",)
    schema = Record(
        {
            "stage": Field(Int(0), "index of the stage"),
            "phase": Field(
                String(("prepare", "forward", "backward", "update")),
                "which part of the step the op belongs to; prepare and update run once, around the micro-batches",
            ),
        }
    )
    example = 'rhino.stage = {phase = "forward", stage = 1 : i64}'


class RhinoLayouts(RhinoAttribute):
    """How a value is split where stages have meshes of different shapes: on those that its `sdy.sharding` is not over.

    By mesh, for each result of an operation, or for the one argument or result of a function, the axes per dimension.
    """

    name = "rhino.layouts"
    places = ("op", "argument", "result")
    schema = MapOf(ListOf(ListOf(ListOf(String()))))
    example = 'rhino.layouts = {mesh_1 = [[["x"], []]]}'

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        for mesh in data:
            if mesh not in scene.mesh_devices:
                known = ", ".join(scene.mesh_devices) or "none"
                yield f"{cls.name} names mesh '{mesh}', which the module does not define; it defines {known}"


class RhinoMicrobatches(RhinoAttribute):
    """The loop over the micro-batches of a step: `count` of them, one per trip, and whether some sums are estimated."""

    name = "rhino.microbatches"
    places = ("op",)
    schema = Record(
        {
            "count": Field(Int(1), "number of micro-batches"),
            "statistics": Field(
                String(("micro-batch",)), "sums that examples need are of their micro-batch alone", optional=True
            ),
            "sums": Field(Int(2), "local sums of each value that it adds up; 1 where it is not there", optional=True),
        }
    )
    example = "rhino.microbatches = {count = 8 : i64}"

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        if scene.op.name != "stablehlo.while":
            yield f"{cls.name} belongs on 'stablehlo.while', not on '{scene.op.name}'"


class RhinoSums(RhinoAttribute):
    """Of an operation that sums a micro-batch's examples: how many local sums it makes, a dimension of its result.

    The operands with examples are reshapes that give a dimension to the local sums. A plan puts the first axis of its
    mesh, which has as many devices, on it.
    """

    name = "rhino.sums"
    places = ("op",)
    schema = Int(2)
    example = "rhino.sums = 8 : i64"

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        if scene.op.name not in ("stablehlo.dot_general", "stablehlo.reduce", "stablehlo.scatter"):
            yield f"{cls.name} belongs on a product, a reduction or a scatter, not on '{scene.op.name}'"
        elif all(data not in result.type.shape for result in scene.op.results):
            yield f"{cls.name} is {data}, and no dimension of the result has that size"


class RhinoDistributed(RhinoAttribute):
    """Which dimension of what an operation of an update makes the replicas of its stage share out.

    Each makes, and keeps, a part of it: rhino-replicate-fragments lays optimizer state out so that this needs nothing
    of the others, and gathers the parameters that are made so.
    """

    name = "rhino.distributed"
    places = ("op",)
    schema = Int(0)
    example = "rhino.distributed = 0 : i64"

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        if len(scene.op.results) != 1:
            yield f"{cls.name} is of an operation with one result, not of '{scene.op.name}'"
        elif (shape := shape_of(scene.op.results[0].type)) is not None and data >= len(shape):
            yield f"{cls.name} is dimension {data}, but the result has {len(shape)}"


class RhinoArgument(RhinoAttribute):
    """What an argument or result of a step in fragments was in the original signature: one of its, or rows of it."""

    name = "rhino.argument"
    places = ("argument", "result")
    schema = Record(
        {
            "index": Field(Int(0), "position in the original signature"),
            "slice": Field(
                ListOf(TupleOf((Int(0), Int(0)))), "[start, stop) per leading dimension; missing for all", optional=True
            ),
        }
    )
    example = "rhino.argument = {index = 3 : i64, slice = [[0, 6]]}"

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        carried = None if scene.type is None else mpmd.mesh_tensor(scene.type)
        shape = shape_of(scene.type if carried is None else carried.tensor)
        bounds = data.get("slice", [])
        if shape is not None and len(bounds) > len(shape):
            yield f"{cls.name}.slice {bounds} has more dimensions than the shape {shape}"
        elif shape is not None and any(
            stop - start != size for (start, stop), size in zip(bounds, shape, strict=False)
        ):
            yield f"{cls.name}.slice {bounds} is not as large as the shape {shape}"


class RhinoPin(RhinoAttribute):
    """Where state is, and a pipeline leaves it: the stage that keeps an argument or result, and how it is split.

    One entry for all of it, or one for the rows that each stage keeps.
    """

    name = "rhino.pin"
    places = ("argument", "result")
    schema = ListOf(
        Record(
            {
                "stage": Field(Int(0), "index of the stage"),
                "sharding": Field(
                    ListOf(ListOf(String())), "per dimension, axes of the mesh of one replica of the stage"
                ),
                "slice": Field(
                    ListOf(TupleOf((Int(0), Int(0)))), "[start, stop) per leading dimension; missing for all", True
                ),
            }
        )
    )
    example = 'rhino.pin = [{sharding = [["x"], []], slice = [[0, 6]], stage = 1 : i64}]'

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        shape = shape_of(scene.type)
        if shape is None:
            return
        for n, entry in enumerate(data):
            sharding, bounds = entry["sharding"], entry.get("slice", [])
            if len(sharding) != len(shape):
                yield f"{cls.name}[{n}].sharding has {len(sharding)} dimensions, but the type has {len(shape)}"
            outside = any(not start < stop <= size for (start, stop), size in zip(bounds, shape, strict=False))
            if len(bounds) > len(shape) or outside:
                yield f"{cls.name}[{n}].slice {bounds} is no part of the shape {shape}"
            if not bounds and len(data) > 1:
                yield f"{cls.name}[{n}] is of all of it, and there are {len(data)} entries"


class RhinoPlacement(RhinoAttribute):
    """The real devices of each mesh, row-major: a mesh's own `device_ids` can only permute 0 to n-1.

    Device d of the cluster is device d mod `devices_per_host` of host d div `devices_per_host`. Meshes share no device.
    """

    name = "rhino.placement"
    places = ("module",)
    schema = MapOf(ListOf(Int(0)))
    example = "rhino.placement = {m0 = [0, 1, 2, 3], m1 = [4, 5, 6, 7]}"

    @classmethod
    def check(cls, data: Any, scene: Scene) -> Iterator[str]:
        owner: dict[int, str] = {}
        for mesh, devices in data.items():
            if mesh not in scene.mesh_devices:
                known = ", ".join(scene.mesh_devices) or "none"
                yield f"{cls.name} names mesh '{mesh}', which the module does not define; it defines {known}"
            elif len(devices) != scene.mesh_devices[mesh]:
                yield f"{cls.name}.{mesh} lists {len(devices)} devices, but the mesh has {scene.mesh_devices[mesh]}"
            for device in devices:
                if device in owner:
                    both = f"mesh '{owner[device]}' and mesh '{mesh}'"
                    yield (
                        f"{cls.name} places device {device} in {both}"
                        if owner[device] != mesh
                        else (f"{cls.name}.{mesh} lists device {device} twice")
                    )
                elif scene.cluster_devices is not None and device >= scene.cluster_devices:
                    yield f"{cls.name}.{mesh} lists device {device}, but the cluster has {scene.cluster_devices}"
                owner.setdefault(device, mesh)


class RhinoMemory(RhinoAttribute):
    """Bytes on a device of each pipeline stage, by stage; with the task lists its peak follows.

    With f micro-batches in flight that is `argument + max(kept + (f - 1) saved + loop, update)`.
    """

    name = "rhino.memory"
    places = ("module",)
    schema = ListOf(ROW)
    example = (
        "rhino.memory = [{argument_bytes = 4096 : i64, kept_bytes = 4096 : i64, loop_bytes = 3072 : i64, "
        "saved_bytes = 1024 : i64, update_bytes = 8192 : i64}]"
    )


class RhinoSchedule(RhinoAttribute):
    """The task lists of a pipeline: per device group, in execution order. The runtime executes exactly these."""

    name = "rhino.schedule"
    places = ("module",)
    schema = STEP
    example = (
        'rhino.schedule = {microbatches = 1 : i64, schedule = "gpipe", stages = 1 : i64, tasks = [['
        '{microbatch = 0 : i64, stage = 0 : i64, task = "forward"}, '
        '{microbatch = 0 : i64, stage = 0 : i64, task = "backward"}]]}'
    )

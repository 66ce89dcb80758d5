"""The dataflow of a pipelined step: values on device groups, the fragments that compute them, the transfers between.

Owns the data and a few look-ups. Knows neither MLIR nor jax, nor when anything runs: that is the schedule's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rhino.pipeline.program.stage_memory import StageMemory
from rhino.pipeline.schedule.tasks import IN_LOOP
from rhino.program.element_types import dtype_bytes

FRAGMENT_KINDS = ("prepare", *IN_LOOP, "update")
# The kind of task that runs a fragment is the fragment's kind, except for this one.
TASKS = {"update": "apply"}


@dataclass(frozen=True, slots=True)
class GroupMesh:
    """The devices of one group. Stage s runs on group s mod the number of groups.

    `axes` are (name, size) from outermost to innermost; `devices` are the cluster's, row-major over the axes.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupValue:
    """One tensor on one group. `index` is its position in `PipelineProgram.values`.

    `shape` is global, `dtype` as MLIR writes it (`f32`, `bf16`, `i1`, `ui32`), `sharding` has the axis texts of each
    dimension (`x`, or `x:(1)2` for a part of an axis). A value of scope "step" exists once per step, one of scope
    "microbatch" once per micro-batch.
    """

    index: int
    group: int
    shape: tuple[int, ...]
    dtype: str
    sharding: tuple[tuple[str, ...], ...]
    scope: str

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor, over all devices of the group once."""
        return int(prod(self.shape) * dtype_bytes(self.dtype))


@dataclass(frozen=True, slots=True)
class Fragment:
    """A program for one group, with one executable.

    `index` is its position in `PipelineProgram.fragments`, which is also that of its module in
    `rhino.ir.pipeline.outline.outline`. Operands and results are values, in the order of that module's signature.
    A "prepare" or "update" fragment runs once per step and has a `level`: it needs values of other stages only from
    lower levels, and no other fragment has its kind, stage and level. The others (level 0) run once per micro-batch;
    their operands of scope "step" are the same each time.
    """

    index: int
    kind: str
    stage: int
    group: int
    level: int
    operands: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def task(self) -> str:
        """The kind of task that runs it."""
        return TASKS.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value copied from its group to another one, for the fragments of one stage, with the sharding kept.

    `of` and `level` say what it waits for, as in `rhino.schedule`: within a micro-batch `of` is "forward" if it goes to
    a later stage and "backward" if to an earlier one; once per step it is "prepare" or "apply", with the level of the
    fragment that makes the source, or, for what the loop over micro-batches leaves, the kind of the fragment that makes
    `StageCarry.next`. An argument counts as made by prepare, level 0; no fragment need exist there.
    A send of kind `of` and `level` from `from_stage` to `to_stage` is all transfers with these four, in order.
    `strategy` and `scheduler` are those of `rhino.reshard.plan.plan_reshard`, the same for all of these.
    """

    index: int
    source: int
    target: int
    of: str
    level: int
    from_stage: int
    to_stage: int
    strategy: str = "broadcast"
    scheduler: str = "optimal"


@dataclass(frozen=True, slots=True)
class StageArgument:
    """An argument of the step on one group: `index` in the original signature, or rows of it.

    An original argument has several entries if several groups read it (each holds all of it), or if it is stored in
    pieces; `slice` is then [start, stop) of the piece per leading dimension, and empty for a whole argument.
    `result` is the position in `PipelineProgram.results` of the result that takes its buffer, -1 for none; `donated`
    says that the caller gives the buffer away. `name` is the user's, `state.params['w']`, empty where none is known.
    `strategy` and `scheduler` are as in `Transfer`, where it is sent (`rhino.pipeline.program.edges.SignatureEdge`).
    """

    value: int
    index: int
    slice: tuple[tuple[int, int], ...]
    result: int
    donated: bool
    name: str = ""
    strategy: str = "broadcast"
    scheduler: str = "optimal"


@dataclass(frozen=True, slots=True)
class Result:
    """A result of the step: `index` in the original signature, or the rows `slice` of it; else as `StageArgument`."""

    value: int
    index: int
    slice: tuple[tuple[int, int], ...]
    strategy: str = "broadcast"
    scheduler: str = "optimal"


@dataclass(frozen=True, slots=True)
class StageCarry:
    """A value that each micro-batch updates, such as an accumulator; all of it on the group of `stage`.

    `initial` (scope "step") is its value in the first micro-batch, `argument` (scope "microbatch") its value in each,
    `next` (scope "microbatch") what a micro-batch makes of it, `result` (scope "step") what the last one made. The
    buffer of `argument` may be reused for `next`. Micro-batches must update it in their order.
    """

    initial: int
    argument: int
    next: int
    result: int
    stage: int


@dataclass(frozen=True, slots=True)
class PipelineProgram:
    """A whole step. `before`, `body` (once per micro-batch) and `after` are in program order, which is one valid order.

    `counters` has, per group, the value (scope "microbatch", a `ui32` scalar) that holds the number of the
    micro-batch, or -1 where no fragment reads it. `memory` is by stage, () where nothing was said of it.
    """

    stages: int
    microbatches: int
    meshes: tuple[GroupMesh, ...]
    values: tuple[GroupValue, ...]
    arguments: tuple[StageArgument, ...]
    results: tuple[Result, ...]
    before: tuple[Fragment | Transfer, ...]
    body: tuple[Fragment | Transfer, ...]
    after: tuple[Fragment | Transfer, ...]
    carries: tuple[StageCarry, ...]
    counters: tuple[int, ...]
    memory: tuple[StageMemory, ...] = ()

    @property
    def operations(self) -> tuple[Fragment | Transfer, ...]:
        """All fragments and transfers in program order."""
        return self.before + self.body + self.after

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """All fragments; a fragment's `index` is its position here."""
        return tuple(op for op in self.operations if isinstance(op, Fragment))

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers; a transfer's `index` is its position here."""
        return tuple(op for op in self.operations if isinstance(op, Transfer))

    def group_of(self, stage: int) -> int:
        """The group a stage runs on."""
        return stage % len(self.meshes)

    def argument_stages(self) -> list[int]:
        """By argument, the stage that it is kept for: of those on its group the one that updates it, else reads it."""
        found: dict[int, int] = {}
        for op in self.after + self.body + self.before:
            if isinstance(op, Fragment):
                for value in op.operands:
                    found.setdefault(value, op.stage)
            else:
                found.setdefault(op.source, op.from_stage)
        return [found.get(a.value, self.values[a.value].group) for a in self.arguments]

    def find(self, kind: str, stage: int, level: int = 0) -> Fragment | None:
        """The fragment of a kind, stage and level, None if there is nothing to do there."""
        for fragment in self.fragments:
            if (fragment.kind, fragment.stage, fragment.level) == (kind, stage, level):
                return fragment
        return None

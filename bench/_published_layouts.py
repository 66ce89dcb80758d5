"""How published runs were laid out: a row's degrees of parallelism, and the pins of arguments that these are on a mesh.

Owns how the columns of layouts are read. What a rule of `rhino.experts` leaves to the search is left to it here, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from bench._published_models import NotExpressed, Row, number
from rhino.experts.facts import ProgramFacts
from rhino.experts.layouts import LayoutDraft, Mesh, Proposal
from rhino.experts.tensor_flow import residual_values, split_values, tensor_dims

# Runs, by id, of software before sequence parallelism, and baselines without it.
_WHOLE_SEQUENCES = "^sc21|^bloom|^mtnlg|^pythia|^alpa|^kor22.*-full|^vit|^t5x"
# What says that replicas share the update: ZeRO-1 and 2, and NeMo, whose default it is ("distributed optimizer").
_UPDATE_PARTS = "(?i:zero-?[12]|reduce_scatter|no reshard)|NeMo"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The degrees of a run; devices are numbered tensor first, then context, expert, data, stages last.

    Attributes:
      chunks: stages that one device group runs in turn (virtual pipeline).
      shard: devices of the data axis that parameters and state are split over, ZeRO-3; 1 where they are whole.
      slices: micro-batches of each replica; `size` examples each.
      updaters: replicas that each update a part of the parameters (ZeRO-1 and 2).
      searched: sizes of a mesh on which the layout was searched for, and so is here.
      sequence: whether activations between blocks were split over the tensor axis too (Megatron's sequence
        parallelism, arXiv 2205.05198); else every device of it has them whole.
    """

    data: int
    tensor: int = 1
    context: int = 1
    expert: int = 1
    stages: int = 1
    chunks: int = 1
    shard: int = 1
    slices: int = 1
    size: int = 1
    updaters: int = 1
    searched: tuple[int, ...] = ()
    sequence: bool = True
    notes: tuple[str, ...] = ()

    @property
    def examples(self) -> int:
        """Examples of a step."""
        return self.data * self.slices * self.size

    @property
    def pipelined(self) -> bool:
        """Whether its replicas add up their gradients once a step, behind the loop over micro-batches."""
        return self.stages > 1 or (self.slices > 1 and self.shard == 1 and not self.searched)

    @property
    def family(self) -> str:
        """What the run is counted under: "dp", "fsdp", "tp", "fsdp+tp", "pp+tp", ..."""
        names = [
            ("pp", self.stages > 1), ("fsdp", self.shard > 1), ("ep", self.expert > 1), ("cp", self.context > 1),
            ("tp", self.tensor > 1),
        ]  # fmt: skip
        found = [name for name, used in names if used]
        if self.searched and prod(self.searched) > 1:
            return "searched"
        return "+".join(found) or ("dp" if self.data > 1 else "one device")


def layout_of(row: Row) -> RunLayout:
    """The layout of a row.

    Raises:
      NotExpressed: degrees contradict each other, or devices and batch; says how.
    """
    devices, batch = number(row, "gpus"), number(row, "global_batch")
    if "device mesh" in row["notes"] or row["zero_fsdp"].startswith("auto-sharded"):
        return _searched(row, devices, batch)
    tensor, context, stages = (number(row, name, 1) for name in ("tp", "cp", "pp"))
    data = number(row, "dp")
    if not data or data * tensor * context * stages != devices:
        raise NotExpressed(
            f"dp {row['dp'] or '?'} x tp {row['tp'] or '?'} x cp {context} x pp {stages} are not {devices} GPUs"
        )
    notes: list[str] = []
    shard = _shard(row, data, context, stages, notes)
    size = number(row, "microbatch")
    if not size:
        size = 1 if stages > 1 else max(1, batch // data)
        notes.append(f"micro-batches of {size}: not stated")
    if batch % (data * size):
        raise NotExpressed(f"a batch of {batch} is not made of micro-batches of {size} on {data} replicas")
    chunks = number(row, "vpp", 1) if stages > 1 else 1
    if stages > 1 and chunks == 1 and re.search("interleaved|model_table", row["id"] + row["notes"] + row["source"]):
        chunks = 2
        notes.append("2 virtual stages: not stated")
    expert = number(row, "ep", 1)
    if expert > data * tensor or (data * tensor) % expert:
        raise NotExpressed(f"ep {expert} does not divide the {data * tensor} devices of a stage")
    return RunLayout(
        data, tensor, context, expert, stages, chunks, shard, batch // (data * size), size,
        updaters=data if shard == 1 and re.search(_UPDATE_PARTS, row["zero_fsdp"] + row["source"]) else 1,
        sequence=not re.search(_WHOLE_SEQUENCES, row["id"]), notes=tuple(notes),
    )  # fmt: skip


def _searched(row: Row, devices: int, batch: int) -> RunLayout:
    if number(row, "pp", 1) > 1:
        raise NotExpressed("stages of different widths, each laid out by a search")
    found = re.search(r"device mesh (\d+)x(\d+)", row["notes"])
    mesh = tuple(int(n) for n in found.groups() if int(n) > 1) if found else (devices,)
    # The column is of all devices together there.
    micro = number(row, "microbatch") if found else batch
    return RunLayout(1, slices=batch // micro, size=micro, searched=mesh or (1,))


def _shard(row: Row, data: int, context: int, stages: int, notes: list[str]) -> int:
    """Over how many devices of the data axis parameters and state are split."""
    text = row["zero_fsdp"]
    if not re.search("fsdp|hsdp|zero-?3", text, re.IGNORECASE) or "page: FSDP=0" in text:
        if re.search("zero-?[12]|reduce_scatter", text, re.IGNORECASE):
            notes.append("ZeRO-1 or 2: gradients are all-reduced, and state whole in memory")
        return 1
    if re.search("zero-?2|no reshard", text, re.IGNORECASE):
        notes.append("ZeRO-2: gradients are all-reduced, and state whole in memory")
        return 1
    if stages > 1:
        notes.append("parameters whole within a stage, not FSDP")
        return 1
    told = re.search(r"(?:groups of |FSDP\d?\()(\d+)", text, re.IGNORECASE)
    group = int(told[1]) if told else data
    if "HSDP" in text:
        group = number(row, "gpus_per_host", 8)
        notes.append(f"shards within a host of {group}")
    return min(group, data) * context


def mesh_of(layout: RunLayout, inside: bool) -> Mesh:
    """The mesh of the whole run, or (`inside`) of what one replica of a stage has; outermost first."""
    across = 1 if inside else layout.data // min(layout.expert, layout.data)
    among = max(1, layout.shard // layout.context)
    split = min(across, among)
    axes = [("replica", across // split), ("data", split)]
    if layout.expert > 1:
        axes.append(("expert", min(layout.expert, layout.data)))
    axes += [("context", layout.context), ("model", layout.tensor)]
    return tuple((name, size) for name, size in axes if size > 1)


def pins(facts: ProgramFacts, layout: RunLayout, mesh: Mesh) -> Proposal:
    """The arguments of the step as the run had them on a mesh; optimizer state follows its parameter.

    Raises:
      NotApplicable: the batch or a sequence does not divide.
      NotExpressed: nothing is split that was said to be.
    """
    draft = LayoutDraft(facts, mesh)
    there = [axis for axis, _ in mesh]
    batch = [axis for axis in ("replica", "data", "expert") if axis in there]
    draft.split_batch(batch)
    if "expert" in there:
        _split_experts(draft, layout)
    if "model" in there:
        dims = tensor_dims(facts, layout.tensor)
        done = [draft.split(facts.leaves[index], d, ["model"]) for index, d in dims.items()]
        if not any(done):
            raise NotExpressed(f"no weight can be split {layout.tensor} ways by columns and rows in turn")
    if "context" in there or "model" in there:
        split = tuple(axis for axis in ("context", "model") if axis in there and (axis != "model" or layout.sequence))
        for v in residual_values(facts):
            rank = len(facts.graph.values[v].shape)
            draft.inner[v] = (tuple(batch), split, *((),) * (rank - 2))
            for leaf in facts.params:  # positions, where they are added to one example
                d = facts.dim_of(leaf.value, v, 1)
                if d >= 0:
                    draft.split(leaf, d, split)
    if "model" in there:
        for v, d in split_values(facts, layout.tensor).items():
            lie: list[tuple[str, ...]] = [() for _ in facts.graph.values[v].shape]
            lie[0] = tuple(batch)
            if "context" in there and facts.graph.values[v].shape[1] > 1:
                lie[1] = ("context",)
            if d > 1:
                lie[d] = ("model",)
                draft.inner[v] = tuple(lie)
    if layout.shard > 1:
        axes = [axis for axis in ("data", "expert", "context") if axis in there]
        for leaf in facts.params:
            if not draft.split_largest(leaf, axes):
                draft.split_largest(leaf, axes[:1])
    draft.follow()
    return draft.proposal()


def _split_experts(draft: LayoutDraft, layout: RunLayout) -> None:
    routed = [(leaf, leaf.use.shared[0]) for leaf in draft.facts.params if leaf.use is not None and leaf.use.shared]
    axes = ["expert"] if layout.expert <= layout.data else ["expert", "model"]
    done = [draft.split(leaf, d, axes) for leaf, d in routed]
    if not any(done):
        raise NotExpressed(f"no weights of experts can be split {layout.expert} ways")

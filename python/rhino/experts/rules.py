"""The rules of the experts: each turns the facts of a program and a cluster into meshes and layouts of its arguments.

Owns what each published strategy says about parameters, optimizer state and batch. Knows nothing of costs: the search
completes every proposal, and the cheapest that fits speaks for its expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from rhino.errors import RhinoError
from rhino.experts.facts import ProgramFacts, ProgramLeaf
from rhino.experts.layouts import LayoutDraft, Mesh, NotApplicable, Proposal
from rhino.experts.tensor_flow import residual_values, tensor_dims, vocabularies
from rhino.machine import Cluster

# Tensor parallelism of less than this part of the weights is no plan anybody would call so.
_MOST = 0.5
# The last layers that hold this part of the weights are late ones.
_LATE = 0.8
# Tables with fewer rows than this part of the largest one's are whole on each device.
_TABLE_SHARE = 0.01

Rule = Callable[[ProgramFacts, Cluster], Iterator[Proposal]]


@dataclass(frozen=True, slots=True)
class Expert:
    """A strategy: its short name, what it does, who published it, and its rule."""

    name: str
    title: str
    source: str
    rule: Rule


def _mesh(*axes: tuple[str, int]) -> Mesh:
    """Axes of one device are left out."""
    return tuple((name, size) for name, size in axes if size > 1)


def _inner_sizes(cluster: Cluster) -> list[int]:
    """Sizes of an axis within a host, the other axis having at least two."""
    n, host = cluster.num_devices, cluster.devices_per_host
    return [t for t in range(2, host + 1) if host % t == 0 and t < n]


def _several(cluster: Cluster) -> int:
    if cluster.num_devices < 2:
        raise NotApplicable("one device holds everything")
    return cluster.num_devices


def data(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """The batch is split over all devices; all state is whole on each."""
    meshes = [_mesh(("data", _several(cluster)))]
    if cluster.hosts > 1 and cluster.devices_per_host > 1:
        meshes.append(_mesh(("host", cluster.hosts), ("data", cluster.devices_per_host)))
    for mesh in meshes:
        draft = LayoutDraft(facts, mesh)
        draft.split_batch([axis for axis, _ in mesh])
        yield draft.proposal()


def _zero_meshes(cluster: Cluster) -> list[tuple[str, Mesh, list[str], list[str]]]:
    """(variant, mesh, axes of the batch, axes of the state): the whole cluster, or each host for itself."""
    n, host = _several(cluster), cluster.devices_per_host
    found = [("whole cluster", _mesh(("data", n)), ["data"], ["data"])]
    if cluster.hosts > 1 and host > 1:
        mesh = _mesh(("host", cluster.hosts), ("data", host))
        found.append(("within hosts", mesh, ["host", "data"], ["data"]))
        found.append(("hosts in turn", mesh, ["host", "data"], ["host", "data"]))
    return found


def _check_state_apart(facts: ProgramFacts) -> None:
    """ZeRO-1 and 2 keep a parameter whole and its optimizer state split: the search must be able to."""
    node_of = facts.problem.node_of
    owned = [leaf for leaf in facts.state if leaf.owner >= 0]
    if not owned:
        raise NotApplicable("no optimizer state belongs to a parameter")
    if all(node_of[leaf.value] == node_of[facts.leaves[leaf.owner].value] for leaf in owned):
        raise NotApplicable("the search lays a parameter and its optimizer state out alike")


def _split_state(draft: LayoutDraft, axes: list[str]) -> None:
    """Optimizer state of a parameter: as the parameter, and split further over `axes`."""
    draft.follow()
    for leaf in draft.facts.state:
        draft.split_largest(leaf, axes)


def zero1(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """Parameters are whole, optimizer state is split; gradients are reduced to where their state is."""
    _check_state_apart(facts)
    for variant, mesh, batch, state in _zero_meshes(cluster):
        draft = LayoutDraft(facts, mesh)
        draft.split_batch(batch)
        _split_state(draft, state)
        yield draft.proposal(variant)


def zero3(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """Parameters and optimizer state are split alike, gathered for each use."""
    for variant, mesh, batch, state in _zero_meshes(cluster):
        draft = LayoutDraft(facts, mesh)
        draft.split_batch(batch)
        for leaf in facts.params:
            draft.split_largest(leaf, state)
        _split_state(draft, state)
        yield draft.proposal(variant)


def _split_tensors(draft: LayoutDraft, axis: str) -> None:
    """Megatron's layout of the parameters. Raises NotApplicable when too few of the weights take part."""
    facts, parts = draft.facts, draft.size([axis])
    dims = tensor_dims(facts, parts)
    weights = [leaf for leaf in facts.params if leaf.use is not None and leaf.use.kind != "gather"]
    total = sum(leaf.nbytes for leaf in weights)
    taken = sum(leaf.nbytes for leaf in weights if leaf.index in dims)
    if not weights or taken < _MOST * total:
        share = taken / total if total else 0.0
        raise NotApplicable(f"only {share:.0%} of the weights can be split {parts} ways by columns and rows in turn")
    for leaf in facts.params:
        if leaf.index in dims:
            draft.split(leaf, dims[leaf.index], [axis])


def megatron(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """Weights are split by columns and rows in turn over all devices; the batch is whole on each."""
    draft = LayoutDraft(facts, _mesh(("model", _several(cluster))))
    _split_tensors(draft, "model")
    draft.follow()
    yield draft.proposal()


def _each(make: Callable[..., Proposal], choices: Iterable[tuple[Any, ...]]) -> Iterator[Proposal]:
    """What can be made of the choices. Raises the last reason when nothing can."""
    reason = NotApplicable("the cluster has no mesh for it")
    empty = True
    for choice in choices:
        try:
            proposal = make(*choice)
        except NotApplicable as why:
            reason = why
        else:
            empty = False
            yield proposal
    if empty:
        raise reason


def _two_dimensional(facts: ProgramFacts, cluster: Cluster, state: str) -> Iterator[Proposal]:
    """Megatron within groups of a host, data parallel across; the state that is left split over data or not."""

    def one(parts: int) -> Proposal:
        draft = LayoutDraft(facts, _mesh(("data", cluster.num_devices // parts), ("model", parts)))
        draft.split_batch(["data"])
        _split_tensors(draft, "model")
        if state == "zero3":
            for leaf in facts.params:
                draft.split_largest(leaf, ["data"])
        if state:
            _split_state(draft, ["data"])
        else:
            draft.follow()
        text = " ".join(f"{axis}={size}" for axis, size in draft.mesh)
        return draft.proposal(f"{text} {state}".strip())

    yield from _each(one, ((parts,) for parts in _inner_sizes(cluster)))


def megatron_data(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """Megatron over `model`, which stays within a host, and the batch over `data`."""
    yield from _two_dimensional(facts, cluster, "")


def megatron_zero(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """As megatron_data, with the optimizer state, or all state, split over `data` too."""
    try:
        _check_state_apart(facts)
        yield from _two_dimensional(facts, cluster, "zero1")
    except NotApplicable:
        pass
    yield from _two_dimensional(facts, cluster, "zero3")


def _experts_of(facts: ProgramFacts) -> list[tuple[ProgramLeaf, int]]:
    """Weights with a dimension of experts: one product per expert, each with its own tokens."""
    return [(leaf, leaf.use.shared[0]) for leaf in facts.params if leaf.use is not None and leaf.use.shared]


def expert_parallel(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """Experts are spread over the devices that share the batch; what is in an expert may be split like Megatron's."""
    n = _several(cluster)
    routed = _experts_of(facts)
    if not routed:
        raise NotApplicable("no weight has a dimension of experts")
    count = min(leaf.shape[d] for leaf, d in routed)

    def one(tensor: int, zero: bool) -> Proposal:
        rest = n // tensor
        among = max(e for e in range(1, rest + 1) if rest % e == 0 and count % e == 0)
        if among == 1:
            raise NotApplicable(f"{count} experts cannot be spread over {rest} devices")
        draft = LayoutDraft(facts, _mesh(("data", rest // among), ("expert", among), ("model", tensor)))
        batch = [axis for axis, _ in draft.mesh if axis != "model"]
        draft.split_batch(batch)
        for leaf, d in routed:
            draft.split(leaf, d, ["expert"])
        if tensor > 1:
            dims = tensor_dims(facts, tensor)
            for leaf in facts.params:
                if leaf.index in dims:
                    draft.split(leaf, dims[leaf.index], ["model"])
        if zero:
            for leaf in facts.params:
                if not draft.split_largest(leaf, batch) and "data" in batch:
                    draft.split_largest(leaf, ["data"])
        draft.follow()
        text = " ".join(f"{axis}={size}" for axis, size in draft.mesh)
        return draft.proposal(text + (" zero3" if zero else ""))

    sizes = [1, *_inner_sizes(cluster)]
    yield from _each(one, product(sizes, (False, True)))


def sequence(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """Positions of a sequence are split over `sequence`, the batch over `data`; parameters are whole, or all split."""
    n = _several(cluster)
    streams = residual_values(facts)
    if not streams:
        raise NotApplicable("no activation of shape batch x sequence x features runs through the model")

    def one(parts: int, zero: bool) -> Proposal:
        draft = LayoutDraft(facts, _mesh(("data", n // parts), ("sequence", parts)))
        batch = [axis for axis, _ in draft.mesh if axis != "sequence"]
        draft.split_batch(batch)
        for v in streams:
            shape = facts.graph.values[v].shape
            if not facts.parts(v, 1, parts):
                raise NotApplicable(f"a sequence of {shape[1]} cannot be split {parts} ways")
            draft.inner[v] = (tuple(batch), ("sequence",), *((),) * (len(shape) - 2))
        if zero:
            for leaf in facts.params:
                draft.split_largest(leaf, [axis for axis, _ in draft.mesh])
        draft.follow()
        text = " ".join(f"{axis}={size}" for axis, size in draft.mesh)
        return draft.proposal(text + (" zero3" if zero else ""))

    sizes = list(dict.fromkeys([*_inner_sizes(cluster), cluster.devices_per_host]))
    yield from _each(one, product(sizes, (False, True)))


def channel(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """The batch is split over all devices; late layers, with most of the weights, are split by output channels."""
    n = _several(cluster)
    weights = [leaf for leaf in facts.params if leaf.use is not None and leaf.use.kind != "gather" and leaf.use.outputs]
    if not any(leaf.use is not None and leaf.use.kind == "convolution" for leaf in weights):
        raise NotApplicable("no convolution has weights")
    weights.sort(key=lambda leaf: -(leaf.use.op if leaf.use else 0))
    late: dict[str, list[ProgramLeaf]] = {"dense": [w for w in weights if w.use is not None and w.use.kind == "dot"]}
    total = sum(leaf.nbytes for leaf in weights)
    taken: list[ProgramLeaf] = []
    for leaf in weights:
        if sum(w.nbytes for w in taken) < _LATE * total:
            taken.append(leaf)
    late[f"last {_LATE:.0%} of the weights"] = taken

    def one(parts: int, what: str) -> Proposal:
        draft = LayoutDraft(facts, _mesh(("data", n // parts), ("model", parts)))
        draft.split_batch([axis for axis, _ in draft.mesh])
        done = [draft.split(leaf, leaf.use.outputs[0], ["model"]) for leaf in late[what] if leaf.use is not None]
        if not any(done):
            raise NotApplicable(f"no late layer's channels can be split {parts} ways")
        draft.follow()
        text = " ".join(f"{axis}={size}" for axis, size in draft.mesh)
        return draft.proposal(f"{text}, {what}")

    sizes = dict.fromkeys([*_inner_sizes(cluster)[-2:], cluster.devices_per_host, n])
    yield from _each(one, product(sizes, late))


def embedding(facts: ProgramFacts, cluster: Cluster) -> Iterator[Proposal]:
    """Rows of the embedding tables are split over the devices that share the batch; all other state is whole."""
    tables = vocabularies(facts, _TABLE_SHARE)
    if not tables:
        raise NotApplicable("no parameter is an embedding table")
    for variant, mesh, batch, rows in _zero_meshes(cluster):
        draft = LayoutDraft(facts, mesh)
        draft.split_batch(batch)
        done = [draft.split(leaf, d, rows) for leaf, d in tables]
        if not any(done):
            raise NotApplicable(f"no table's rows can be split {draft.size(rows)} ways")
        draft.follow()
        yield draft.proposal(variant)


EXPERTS: tuple[Expert, ...] = (
    Expert("data", "data parallel", "Li et al. 2020, arXiv 2006.15704", data),
    Expert("zero1", "ZeRO-1 and ZeRO-2: optimizer state split", "Rajbhandari et al. 2019, arXiv 1910.02054", zero1),
    Expert("zero3", "ZeRO-3 (FSDP): all state split", "Zhao et al. 2023, arXiv 2304.11277", zero3),
    Expert("megatron", "Megatron tensor parallel", "Shoeybi et al. 2019, arXiv 1909.08053", megatron),
    Expert("megatron-data", "Megatron + data", "Narayanan et al. 2021, arXiv 2104.04473", megatron_data),
    Expert("megatron-zero", "Megatron + ZeRO", "Rajbhandari et al. 2019, arXiv 1910.02054", megatron_zero),
    Expert("expert", "GShard expert parallel", "Lepikhin et al. 2020, arXiv 2006.16668", expert_parallel),
    Expert("sequence", "sequence (context) parallel", "Li et al. 2021, arXiv 2105.13120", sequence),
    Expert("channel", "batch + channel convolution", "Krizhevsky 2014, arXiv 1404.5997", channel),
    Expert("embedding", "row-sharded embeddings + data", "Naumov et al. 2019, arXiv 1906.00091", embedding),
)
# ZeRO-2 splits gradients, which live for one step here: its arguments are laid out as ZeRO-1's.
ALIASES = {"zero2": "zero1", "fsdp": "zero3", "gshard": "expert", "context": "sequence", "dlrm": "embedding"}


def find(name: str) -> Expert:
    """The expert called `name`. Raises RhinoError with the names there are."""
    wanted = ALIASES.get(name, name)
    for expert in EXPERTS:
        if expert.name == wanted:
            return expert
    raise RhinoError(f"no expert is called {name!r}", f"there are {', '.join(e.name for e in EXPERTS)}")

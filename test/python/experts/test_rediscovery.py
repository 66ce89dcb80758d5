"""The search finds by cost alone what people published, on the cluster it pays on, and is never dearer than an expert.

As docs/design/search.md, "Closed forms", ends. Real widths, few layers: repeated layers are planned once anyway.
"""

from __future__ import annotations

import functools
from math import prod

import expert_programs as programs
import pytest

from rhino.experts import ExpertProgram, consult, names
from rhino.experts.facts import ProgramFacts, ProgramLeaf
from rhino.machine import Cluster
from rhino.program.data import Dims
from rhino.sharding import Options, Solution, plan_sharding

A100 = Cluster.load("dgx-a100:2")
# How much dearer than an expert a found plan may be.
_SLACK = 1.02


@functools.cache
def search(program: ExpertProgram) -> Solution:
    return plan_sharding(program.graph, A100, Options(level="O1"))


def dims(program: ExpertProgram, name: str) -> Dims:
    """The found layout of the parameter whose name ends so."""
    (leaf,) = [leaf for leaf in program.facts.params if leaf.name.endswith(name)]
    return search(program).dims(leaf.value) or ()


def roles(solution: Solution, facts: ProgramFacts, leaf: ProgramLeaf) -> set[str]:
    """What the axes split in the product that reads a weight: "batch", "contracted", "channels"."""
    use = leaf.use
    assert use is not None
    rule = facts.graph.ops[use.op].rule
    assert rule is not None
    (node,) = [n for n in solution.problem.nodes if n.kind == "op" and n.ops[0] == use.op]
    states = solution.states[solution.costs.quotient.klass[node.index]]
    found = set()
    for state in states:
        factor = node.factors[state - 1] if state else -1
        if factor in {f for dim in rule.operands[use.slot] for f in dim}:
            found.add("contracted" if factor in rule.reduction else "channels")
        elif state:
            found.add("batch")
    return found


def gpt() -> ExpertProgram:
    """Two layers of the 6.7 B model (Brown et al. 2020) and few sequences: weights are as large as activations."""
    changes = {"layers": 2, "seq_len": 1024, "vocab": 8192, "scan": True, "remat": True}
    return programs.model("gpt", "6.7b", batch=16, **changes)


def moe() -> ExpertProgram:
    """One pair of layers of Alpa's 2.4 B mixture of 16 experts."""
    return programs.model("moe", "2.4b", batch=32, layers=2, vocab=4096, scan=True)


def wide_resnet() -> ExpertProgram:
    """Alpa's 1 B Wide-ResNet with one block in each stage."""
    return programs.model("wide_resnet", "1b", blocks=(1, 1, 1, 1))


def narrow_table() -> ExpertProgram:
    """More rows than anything else, and too few columns to be shared among 16 devices."""
    return programs.lookup_tower(rows=1 << 22, width=5, hidden=256, batch=65536)


def wide_table() -> ExpertProgram:
    return programs.lookup_tower(rows=1 << 22, width=64, hidden=256, batch=65536)


@pytest.mark.long
def test_gpt_is_split_like_megatron_within_a_host_and_its_batch_across() -> None:
    program = gpt()
    mesh = dict(search(program).mesh)
    _, width, heads, _ = dims(program, "['query']['kernel']")
    assert not set(width) & set(heads)  # the width may be split too, as ZeRO does, and is gathered for use
    axes = list(mesh)
    within = axes[min(axes.index(axis) for axis in heads) :]  # from the outermost of them inwards
    assert prod(mesh[axis] for axis in within) <= A100.devices_per_host
    for name in ("['key']['kernel']", "['value']['kernel']"):
        # Of which of the three more is split, as ZeRO does, is open where computing cannot hide all traffic of weights.
        kept = set(dims(program, name)[2])
        assert kept & set(heads) and (kept <= set(heads) or set(heads) <= kept)
    assert set(heads) & set(dims(program, "['out']['kernel']")[1])  # [layers, heads, head_dim, width]
    # The hidden layer over the same axes, or over some of them; one matrix may be kept in more parts, as ZeRO does.
    up_split, down_split = set(dims(program, "['up']['kernel']")[2]), set(dims(program, "['down']['kernel']")[1])
    assert up_split <= down_split or down_split <= up_split
    assert up_split & down_split & set(heads)
    (up,) = [leaf for leaf in program.facts.params if leaf.name.endswith("['up']['kernel']")]
    assert roles(search(program), program.facts, up) == {"batch", "channels"}


@pytest.mark.long
def test_a_mixture_of_experts_is_spread_by_experts() -> None:
    program = moe()
    for name in ("['experts']['up']", "['experts']['down']"):
        assert dims(program, name)[1], name  # [layers, experts, ..]
    (tokens,) = program.facts.batch
    split = search(program).dims(tokens.value) or ()
    assert set(dims(program, "['experts']['up']")[1]) & set(split[0])


@pytest.mark.long
def test_a_wide_resnet_is_data_parallel_early_and_split_by_channels_late() -> None:
    program = wide_resnet()
    convolutions = [leaf for leaf in program.facts.params if leaf.use and leaf.use.kind == "convolution"]
    convolutions.sort(key=lambda leaf: leaf.use.op if leaf.use else 0)
    found = [roles(search(program), program.facts, leaf) for leaf in convolutions]
    early, late = found[: len(found) // 2], found[-4:]
    assert all(role == {"batch"} for role in early), found
    # Of those of the last stage the largest; others may be as cheap whole, with their updates split, as ZeRO does.
    assert sum("channels" in role or "contracted" in role for role in late) >= 2, found
    assert not found[-3] & {"batch"}, found


def test_a_large_table_is_split_by_rows_and_a_small_tower_is_not() -> None:
    program = narrow_table()
    rows, columns = dims(program, "['table']")
    mesh = dict(search(program).mesh)
    parts = 1
    for axis in rows:
        parts *= mesh[axis]
    # Within a host each row is looked up over fast links; the hosts' copies are summed once.
    assert parts >= A100.devices_per_host
    assert columns == ()
    (ids,) = [leaf for leaf in program.facts.batch if leaf.name.endswith("['ids']")]
    assert (search(program).dims(ids.value) or ())[0]


def test_a_table_of_many_columns_is_split_by_them_which_is_cheaper_than_rows() -> None:
    program = wide_table()
    assert dims(program, "['table']")[1]
    by_rows = consult("embedding", program.facts, A100).best
    assert by_rows is not None
    assert search(program).predicted.step_time_s < by_rows.step_time_s


@pytest.mark.parametrize("make", [pytest.param(narrow_table, marks=pytest.mark.long), wide_table])
def test_several_experts_have_a_plan_to_compare_with(make: functools.partial[ExpertProgram]) -> None:
    assert sum(consult(name, make().facts, A100).best is not None for name in names()) >= 3


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(
    "make",
    [
        narrow_table,
        wide_table,
        *(pytest.param(make, marks=pytest.mark.long) for make in (wide_resnet, gpt, moe)),
    ],
)
def test_no_expert_is_cheaper(name: str, make: functools.partial[ExpertProgram]) -> None:
    program = make()
    outcome = consult(name, program.facts, A100)
    if outcome.best is None:
        assert outcome.why  # an expert whose rule does not apply, or whose plans do not fit, says so
        return
    expert = outcome.best
    mine = search(program).predicted.step_time_s
    assert mine <= _SLACK * expert.step_time_s, f"{expert.variant}: {expert.step_time_s:.6f} s, found {mine:.6f} s"

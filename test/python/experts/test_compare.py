"""`rhino.compare`: what a plan sends is all told, for the parameters it is sent for; differences and their reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import expert_programs as programs
import pytest
from dense import chain
from jax.sharding import PartitionSpec as P

import rhino
from rhino import RhinoError
from rhino.dialect.context import make_context, parse_bytes
from rhino.experts import Specs
from rhino.experts.attribution import attribute
from rhino.experts.compare import compare
from rhino.machine import Cluster
from rhino.report.comparison import ComparedPlan, Comparison

H100 = Cluster.load("dgx-h100:1")
WIDE = Specs({"data": 2, "model": 4}, rules=[("0/w0|w0$", P(None, "model")), ("w1", P("model")), ("x", P("data"))])


step, ARGS = chain((512, 2048, 512), 1024)


def against(*others: Any, **options: Any) -> Comparison:
    return compare(list(others), step, H100, *ARGS, donate_argnums=0, **options)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return against(WIDE, "data", "megatron")


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_every_byte_that_is_predicted_is_told(found: Comparison, number: int) -> None:
    one = (found.ours, *found.others)[number]
    sent = {kind: round(size) for kind, (size, _) in one.kinds.items()}
    assert sent == {kind: size for kind, size in one.plan.predicted.comm_bytes.items() if size}
    told = one.rest[0] + sum(size for size, _ in one.sent.values())
    assert told == pytest.approx(sum(size for size, _ in one.kinds.values()))


@pytest.mark.parametrize("name", ["data", "zero3", "megatron-data"])
def test_every_byte_of_a_model_is_told_too(name: str) -> None:
    module = parse_bytes(programs.model("gpt", batch=16).bytecode, make_context())
    plan = rhino.experts.plan(name, module, H100)
    sent = attribute(plan, H100)
    assert sent is not None
    kinds = {kind: round(share.sent_bytes) for kind, share in sent.kinds.items()}
    assert kinds == {kind: size for kind, size in plan.predicted.comm_bytes.items() if size}


def test_gradients_are_sent_for_their_weights() -> None:
    # Of so many examples none is worth computing on every device.
    many, inputs = chain((512, 2048, 512), 1 << 16)
    data = compare(["data"], many, H100, *inputs, donate_argnums=0).others[0]
    assert sorted(data.sent) == [0, 1]
    assert data.rest[0] < 0.01 * sum(size for size, _ in data.sent.values())


def test_the_sum_after_a_row_split_product_is_sent_for_its_weight(found: Comparison) -> None:
    wide = found.others[0]
    # Forward of w1 and backward of w0 leave partial sums of 1024 x 512 activations, of which a device has half.
    activations = 2 * 3 / 4 * 512 * 512 * 4
    gradient = 2 * 1 / 2 * 512 * 512 * 4
    assert wide.sent[1][0] == pytest.approx(activations + gradient)


def test_differences_are_of_what_devices_have_not_of_what_axes_are_called(found: Comparison) -> None:
    renamed = Specs({"a": 2, "b": 4}, rules=[("w0", P(None, "b")), ("w1", P("b")), ("x", P("a"))])
    both = against(WIDE, renamed)
    assert [row.theirs for row in both.differences(both.others[0])] != []
    twin = Comparison(both.cluster, both.limit_bytes, both.others[0], (both.others[1],))
    assert twin.differences(twin.others[0]) == []
    assert twin.explanation(twin.others[0])[0].endswith("as long as Rhino's plan.")


def test_the_dearest_difference_comes_first(found: Comparison) -> None:
    for other in found.others:
        rows = found.differences(other)
        spent = [abs(row.seconds_theirs - row.seconds_ours) for row in rows]
        assert spent == sorted(spent, reverse=True)


def test_the_text_is_the_same_each_time_and_fits_a_screen(found: Comparison) -> None:
    text = str(found)
    assert text == str(against(WIDE, "data", "megatron"))
    assert max(map(len, text.splitlines())) <= 120
    assert "specs takes" in text and "data takes" in text and "megatron takes" in text


def test_a_pipeline_is_compared_without_what_its_tensors_send() -> None:
    found = compare("data", step, Cluster.load("cpu:1"), *ARGS, donate_argnums=0, stages=2, measure=True)
    assert found.ours.plan.stages == 2
    assert found.ours.kinds == {} and found.ours.measured is None
    assert "less idling between stages" in str(found)
    assert found.ours.notes == ("a pipeline is many programs: rhino compile measures them",)
    assert found.differences(found.others[0]) != []


def test_plans_are_others_too(tmp_path: Path) -> None:
    ours = rhino.parallelize(step, cluster=H100, donate_argnums=0).plan(*ARGS)
    ours.save(tmp_path / "plan.json")
    found = against(ours, tmp_path / "plan.json")
    for other in found.others:
        assert found.differences(other) == []


def test_what_is_no_plan_of_the_cluster() -> None:
    plan = rhino.parallelize(step, cluster="dgx-h100:2", donate_argnums=0).plan(*ARGS)
    with pytest.raises(RhinoError, match="plan is a plan for 16 devices, and cluster dgx-h100:1 has 8"):
        against(plan)
    with pytest.raises(RhinoError, match="there is no plan to compare with"):
        against()


def test_what_xla_measures_is_beside_what_is_predicted() -> None:
    found = compare(WIDE, step, Cluster.load("cpu:1"), *ARGS, donate_argnums=0, measure=True)
    assert isinstance(found.ours, ComparedPlan)
    assert "XLA: sent by all-reduce" in str(found)
    assert [plan["measured"]["peak_bytes"] > 0 for plan in found.to_dict()["plans"]] == [True, True]

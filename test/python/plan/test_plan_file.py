"""Plans in annotated modules and in files: what is read, what bytes are written, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rhino
from rhino.api.plan import Plan
from rhino.plan import Predicted, Tensor

MODULE = """
module @jit_step attributes {rhino.plan = {schema = 1 : i64, level = "O1", cluster = "dgx-h100:1",
  mesh = [["x", 2 : i64], ["y", 4 : i64]], stages = 1 : i64, microbatches = 1 : i64, schedule = "none", program = "abc",
  predicted = {step_time_s = 1.0e-3 : f64, compute_s = 8.0e-4 : f64, comm_s = 2.0e-4 : f64, bubble_s = 0.0 : f64,
    peak_bytes = 4096 : i64, comm_bytes = {"all-reduce" = 1024 : i64}, collectives = {"all-reduce" = 2 : i64},
    memory = {argument_bytes = 2048 : i64, output_bytes = 1024 : i64, temp_bytes = 1024 : i64}},
  search = {candidates = 3 : i64, gap = 0.25 : f64},
  alternatives = [{name = "mesh 8x1", step_time_s = 2.0e-3 : f64, peak_bytes = 0 : i64, why = "100.0% slower"}]}} {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(
      %arg0: tensor<8x16xf32> {rhino.role = "param", rhino.name = "state['w']",
                               sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
      %arg1: tensor<16x8xbf16> {rhino.role = "batch",
                                 sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>} loc("batch"),
      %arg2: tensor<i32>) -> (
          tensor<8x16xf32> {jax.result_info = "result['w']", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
    return %arg0 : tensor<8x16xf32>
  }
}
"""


@pytest.fixture
def plan() -> Plan:
    return Plan.from_module(MODULE)


def test_read_from_a_module(plan: Plan) -> None:
    assert (plan.level, plan.cluster, plan.mesh, plan.devices) == ("O1", "dgx-h100:1", (("x", 2), ("y", 4)), 8)
    assert plan.arguments == (
        Tensor("state['w']", "param", (8, 16), "f32", (("x",), ("y",))),
        Tensor("batch", "batch", (16, 8), "bf16", (("x", "y"), ())),
        Tensor("arg2", "other", (), "i32", ()),
    )
    assert plan.outputs == (Tensor("result['w']", "", (8, 16), "f32", (("x",), ("y",))),)
    assert plan.predicted == Predicted(
        1e-3, 8e-4, 2e-4, 0.0, 4096, {"all-reduce": 1024}, {"all-reduce": 2},
        {"argument_bytes": 2048, "output_bytes": 1024, "temp_bytes": 1024},
    )  # fmt: skip
    assert (plan.search.candidates, plan.search.gap) == (3, 0.25)
    assert plan.alternatives[0].why == "100.0% slower"


def test_bytecode_and_text_give_one_plan(plan: Plan) -> None:
    import io

    buffer = io.BytesIO()
    assert not isinstance(plan.source, str) and plan.source is not None
    plan.source.operation.write_bytecode(buffer)
    assert Plan.from_module(buffer.getvalue()) == plan


def test_the_file_has_the_documented_keys(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["schema"] == 1 and data["mesh"] == [["x", 2], ["y", 4]]
    assert data["arguments"][1] == {
        "name": "batch", "role": "batch", "shape": [16, 8], "dtype": "bf16", "sharding": [["x", "y"], []],
    }  # fmt: skip
    for key in ("level", "cluster", "stages", "microbatches", "schedule", "outputs", "search", "alternatives"):
        assert key in data
    assert set(data["predicted"]) >= {"step_time_s", "compute_s", "comm_s", "bubble_s", "peak_bytes", "comm_bytes"}


def test_saved_bytes_are_the_same_every_time(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "a.json")
    Plan.from_module(MODULE).save(tmp_path / "b.json")
    Plan.load(tmp_path / "a.json").save(tmp_path / "c.json")
    first = (tmp_path / "a.json").read_bytes()
    assert first == (tmp_path / "b.json").read_bytes() == (tmp_path / "c.json").read_bytes()
    assert str(tmp_path).encode() not in first


def test_loaded_plans_are_equal_and_keep_the_module(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "p.json")
    loaded = Plan.load(tmp_path / "p.json")
    assert loaded == plan and loaded.module == plan.module


def test_long_modules_are_compressed(tmp_path: Path) -> None:
    body = "".join(f"    %c{i} = stablehlo.constant dense<{i}> : tensor<i32>\n" for i in range(2000))
    plan = Plan.from_module(MODULE.replace("    return", body + "    return"))
    plan.save(tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["module"]["encoding"] == "gzip+base64"
    assert len(data["module"]["data"]) < len(plan.module) / 4
    assert Plan.load(tmp_path / "p.json").module == plan.module


def test_the_price_by_which_a_pipeline_was_chosen_is_kept(plan: Plan, tmp_path: Path) -> None:
    pipeline = Plan.from_module(MODULE.replace("gap = 0.25 : f64", "gap = 0.25 : f64, searched_s = 1.5e-3 : f64"))
    pipeline.save(tmp_path / "p.json")
    assert Plan.load(tmp_path / "p.json").search.searched_s == pipeline.search.searched_s == 1.5e-3
    assert plan.search.searched_s is None and "searched_s" not in plan.to_dict()["search"]


def edited(plan: Plan, tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "p.json"
    plan.save(path)
    data = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    path.write_text(json.dumps(data))
    return path


def test_types_that_somebody_wrote_as_numpy_does_are_read(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "p.json")
    text = (tmp_path / "p.json").read_text()
    assert '"dtype": "bf16"' in text
    (tmp_path / "p.json").write_text(text.replace('"dtype": "bf16"', '"dtype": "bfloat16"'))
    assert Plan.load(tmp_path / "p.json") == plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema is 2, but this version of rhino reads 1; use a newer rhino"),
        ({"schema": 0}, "schema is 0, but this version of rhino reads 1; make it again"),
        ({"schema": None}, ":1:1: the plan has no key 'schema'; save"),
        ({"mesh": None}, "the plan has no key 'mesh'"),
        ({"mesh": [["x"]]}, r"mesh\[0\] must be \[string, i64 >= 1\], got \['x'\]"),
        ({"stages": "two"}, 'stages must be an integer, got "two"'),
        ({"stages": -1}, "stages must be at least 1, got -1"),
        ({"predicted": {}}, "predicted has no key 'step_time_s'"),
        ({"arguments": [{"name": "w"}]}, r"arguments\[0\] has no key 'shape'"),
        (
            {"arguments": [{"name": "w", "shape": [4], "dtype": "f32", "sharding": [["q"]]}]},
            r"arguments\[0\].sharding names axis 'q', but the mesh has x, y",
        ),
        (
            {"arguments": [{"name": "w", "shape": [4], "dtype": "f32", "sharding": []}]},
            r"arguments\[0\].sharding has 0 dimensions, but the shape has 1",
        ),
        (
            {"arguments": [{"name": "w", "shape": [6], "stored_shape": [3, 3], "dtype": "f32", "sharding": [[], []]}]},
            r"arguments\[0\].stored_shape \[3, 3\] does not cut dimensions of \[6\] into factors",
        ),
        (
            {"arguments": [{"name": "w", "shape": [6], "stored_shape": [3, 2], "dtype": "f32", "sharding": [[]]}]},
            r"arguments\[0\].sharding has 1 dimensions, but the stored shape has 2",
        ),
        ({"module": {"encoding": "gzip+base64", "data": "AAAA"}}, "module.data is damaged"),
        (
            {"module": {"encoding": "zip", "data": ""}},
            'module.encoding must be one of "text", "gzip.base64", got "zip"',
        ),
    ],
)
def test_bad_files_are_refused_by_field(plan: Plan, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = edited(plan, tmp_path, **changes)
    with pytest.raises(rhino.RhinoError, match=message) as caught:
        Plan.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(rhino.RhinoError, match="cannot read: No such file"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(rhino.RhinoError, match="not JSON"):
        Plan.load(tmp_path / "text.json")
    with pytest.raises(rhino.RhinoError, match="not JSON"):
        Plan.load(tmp_path / "binary.json")


def test_modules_that_are_no_plans() -> None:
    with pytest.raises(rhino.RhinoError, match=r"no rhino\.plan; plan it first: rhino plan FILE"):
        Plan.from_module("module {}")
    with pytest.raises(rhino.RhinoError, match="the file is empty"):
        Plan.from_module("")
    with pytest.raises(rhino.RhinoError, match=r"module:1:\d+: "):
        Plan.from_module("module {")
    with pytest.raises(rhino.RhinoError, match="stages must be an integer"):
        Plan.from_module(MODULE.replace("stages = 1 : i64", 'stages = "one"'))
    with pytest.raises(rhino.RhinoError, match=r"rhino\.plan\.schema is 7, but this version of rhino reads 1"):
        Plan.from_module(MODULE.replace("schema = 1 : i64", "schema = 7 : i64"))


def test_what_an_unbound_plan_cannot_tell(plan: Plan, tmp_path: Path) -> None:
    for name in ("in_shardings", "out_shardings", "partition_specs", "keyword_shardings"):
        with pytest.raises(rhino.RhinoError, match="not bound to a function's pytrees"):
            getattr(plan, name)
    with pytest.raises(rhino.RhinoError, match="the plan has no module"):
        _ = Plan.load(edited(plan, tmp_path, module=None)).module


def test_importing_plans_imports_neither_jax_nor_mlir() -> None:
    code = (
        "import sys, rhino.plan, rhino.plan.file, rhino.report.text, rhino.report.html\n"
        "import rhino.cli.main, rhino.cli.plan\n"
        "assert 'jax' not in sys.modules and 'jaxlib' not in sys.modules, 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""How rows of published runs are read, and what must be true of their times whatever the model of time is."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import published_runs
from bench._common import BenchError
from bench._published_hardware import cluster_of, limited
from bench._published_layouts import RunLayout, layout_of, mesh_of
from bench._published_models import Model, NotExpressed, fused_attention, model_of, recomputation
from bench._published_pipelines import deal_layers
from bench._published_software import ERAS, Software, software_of
from bench._published_times import Predicted, predict
from examples.models import sparse_llama
from examples.models.bert import BERTConfig
from examples.models.convnet import ConvNetConfig
from examples.models.gpt import GPTConfig
from examples.models.llama import LlamaConfig
from examples.models.moe import MoEConfig
from examples.models.sparse_llama import SparseLlamaConfig
from examples.models.t5 import T5Config
from examples.models.vit import ViTConfig
from examples.models.wide_resnet import WideResNetConfig
from rhino.errors import RhinoError
from rhino.machine import Cluster

ROOT = Path(__file__).resolve().parents[3]
ROWS = {row["id"]: row for row in published_runs.read_rows(published_runs.ROWS)}


_OPTIONS = {"scan": True, "attention": "cudnn", "products": "f8", "remat": True, "saved": "heavy"}


def row_of(name: str, **changes: str) -> dict[str, str]:
    """A row of the table, changed."""
    return ROWS[name] | changes


def test_every_row_has_an_id_of_its_own_a_source_and_a_measured_step() -> None:
    rows = published_runs.read_rows(published_runs.ROWS)
    assert len(rows) == len(ROWS) > 300
    assert all(float(row["step_time_s"]) > 0 and row["source"] for row in rows)


def test_another_table_may_have_more_columns_but_not_fewer(tmp_path: Path) -> None:
    file = tmp_path / "kept.csv"
    row = row_of("kor22-22b-full", extra="7")
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(row))
        writer.writeheader()
        writer.writerow(row)
    assert published_runs.read_rows(file) == [row]
    file.write_text("id,gpu\na,H100-80GB\n")
    with pytest.raises(BenchError, match="no column source, arch"):
        published_runs.read_rows(file)


@pytest.mark.parametrize(
    ("name", "family", "mesh"),
    [
        ("mosaic-70b-h10080-bf16-s2048-64g", "fsdp", (("data", 64),)),
        ("fms-llama-2-13b-128a100", "fsdp", (("replica", 16), ("data", 8))),
        ("kempner-13b-16h200-tp4-fsdp4", "fsdp+tp", (("data", 4), ("model", 4))),
        ("titan-llama3-8b-8g-cp2-fp8", "fsdp+cp", (("data", 4), ("context", 2))),
        ("sc21-gpt7.5b", "tp", (("replica", 32), ("model", 4))),
        ("automodel-qwen3-30b-8-h100-bf16", "fsdp+ep", (("expert", 8),)),
        ("alpa-wresnet4b-16v100-intra", "searched", ()),
    ],
)
def test_a_layout_is_a_family_and_a_mesh(name: str, family: str, mesh: Any) -> None:
    layout = layout_of(ROWS[name])
    assert layout.family == family
    assert not mesh or mesh_of(layout, inside=False) == mesh


def test_pipelines_have_chunks_and_micro_batches_of_a_replica() -> None:
    layout = layout_of(ROWS["kor22-530b-selective"])
    assert (layout.stages, layout.chunks, layout.tensor, layout.slices, layout.examples) == (35, 3, 8, 280, 280)
    assert layout.pipelined and layout.sequence
    assert layout_of(ROWS["megascale-175b-megatron-256g"]).updaters == 4
    assert not layout_of(ROWS["sc21-gpt39.1b"]).sequence
    assert mesh_of(layout, inside=True) == (("model", 8),)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dp": "3"}, "dp 3 x tp 8 x cp 1 x pp 1 are not 8 GPUs"),
        ({"global_batch": "6"}, "a batch of 6 is not made of micro-batches of 4"),
        ({"ep": "3"}, "ep 3 does not divide"),
    ],
)
def test_degrees_that_contradict_each_other_are_told(changes: dict[str, str], why: str) -> None:
    with pytest.raises(NotExpressed, match=why):
        layout_of(row_of("kor22-22b-full", **changes))


def test_a_run_is_of_the_era_of_its_source() -> None:
    eras = {name: software_of(ROWS[name]).name for name in (
        "sc21-gpt39.1b", "mosaic-1b-a10040-bf16-s2048-8g", "alpa-gpt1.3b-4v100-megatron", "vit-b16-8a100",
        "mbr-deepseekv3-b200-fp8-256g-gbs2048-25.09", "mbr-deepseekv3-gb200-mxfp8-256g-gbs4096-26.08",
        "mbr-llama3-70b-gb200-fp8-64g-gbs128-25.09",
    )}  # fmt: skip
    assert list(eras.values()) == [
        "Megatron-LM, 2021", "PyTorch FSDP, 2023", "Alpa, 2022", "XLA", "Megatron-Bridge, experts, 2025",
        "Megatron-Bridge, experts, late 2026", "Megatron-Core",
    ]  # fmt: skip
    assert len({era.name for _, era in ERAS}) == len(ERAS) - 1  # TinyLlama is of mosaic's era but for attention


def test_an_era_and_a_power_limit_change_kernels_alone() -> None:
    run = ROWS["titan-llama3-8b-8g-compile-fp8"]
    base = cluster_of(run["gpu"], 8, 8, run["network"])
    slow = limited(base, run["gpu"])
    assert slow.efficiency.matmul == pytest.approx(base.efficiency.matmul * 5 / 7)
    old = software_of(ROWS["mosaic-7b-h10080-bf16-s2048-8g"]).on(base)
    assert base.device.kernels and slow.device.kernels and old.device.kernels
    for name, rates in base.device.kernels.attention.items():
        assert slow.device.kernels.attention[name].seconds(1e12, 1e9, 1e6) == pytest.approx(
            7 / 5 * rates.seconds(1e12, 1e9, 1e6)
        )
        assert old.device.kernels.attention[name].seconds(1e12, 1e9, 1e6) > 2 * rates.seconds(1e12, 1e9, 1e6)
    assert dataclasses.replace(old, device=base.device) == base
    with pytest.raises(RhinoError, match="a B200 whose power limit is not told"):
        cluster_of("B200", 8, 8, "", "power limited B200: not representative")


def test_what_an_era_hides_and_leaves_out_is_no_more_and_no_less() -> None:
    model, _ = FAMILIES["gpt"]
    layout = RunLayout(2, size=8, slices=2)
    plain = predicted(model, layout, per_host=2)
    slow = predicted(model, layout, per_host=2, era=Software("slow", moved=2, weights=0.5, sums=0.75, busy=0.5))
    for part, times in {"products": 1, "attention": 1, "memory": 2, "weights": 0.5, "replicas": 0.25}.items():
        assert slow.parts[part] == pytest.approx(times * plain.parts[part]), part
    assert slow.parts["idle"] == pytest.approx(slow.step_s / 2)
    shared = predicted(model, dataclasses.replace(layout, updaters=2), per_host=2)
    assert shared.parts["update"] == pytest.approx(plain.parts["update"] / 2, rel=0.05)


def test_tensor_parallelism_splits_what_is_between_its_weights() -> None:
    """Weights are not gathered instead, and every device of the tensor axis computes its part."""
    model, _ = FAMILIES["gpt"]
    alone = predicted(model, RunLayout(1, size=8))
    whole = predicted(model, RunLayout(1, tensor=4, size=8, sequence=False), per_host=4)
    split = predicted(model, RunLayout(1, tensor=4, size=8), per_host=4)
    for found in (whole, split):
        assert alone.parts["products"] / 4 <= found.parts["products"] < alone.parts["products"] / 3
        assert found.parts["collectives"] > 0
    assert split.parts["memory"] < whole.parts["memory"]


def test_layers_left_over_are_dealt_to_the_middle() -> None:
    assert deal_layers(78, 12) == [6, *[7] * 6, *[6] * 5]
    assert deal_layers(6, 1) == [6]
    with pytest.raises(NotExpressed, match="3 layers for 4 stages"):
        deal_layers(3, 4)


def test_recomputation_and_kernels_go_by_source() -> None:
    assert fused_attention(ROWS["mosaic-1b-a10040-bf16-s2048-8g"])
    assert fused_attention(ROWS["pythia-410m"])  # float16, but its paper says so
    assert not fused_attention(ROWS["sc21-gpt1.7b"])
    assert not fused_attention(ROWS["pax-gpt-126m-h100-bf16te"])  # "no flash attention"
    assert recomputation(ROWS["kor22-22b-selective"], kernel=False) == {"remat_scores": True}
    assert recomputation(ROWS["titan-a100-64g-llama3-8b-sel-layer"], kernel=True) == {"remat": True, "recomputed": 16}
    assert recomputation(ROWS["mbr-llama3-8b-h100-fp8-8g-gbs128-25.11"], True) == {"remat": True, "recomputed": 5}
    with pytest.raises(NotExpressed, match="'offload' has no policy"):
        recomputation(row_of("kor22-22b-full", recompute="offload"), kernel=True)


def test_models_are_those_of_the_zoo() -> None:
    assert model_of(ROWS["kor22-22b-full"]).module == "gpt"
    grouped = model_of(ROWS["nemo2407-nemotron-340b-h100-fp8"])
    assert (grouped.module, grouped.config.gated, grouped.config.products) == ("llama", False, "f8")
    assert model_of(ROWS["bert-large-s128-1v100-amp"]).config.predicted == 20
    sparse = model_of(ROWS["mbr-deepseekv3-h100-fp8-1024g-gbs8192-25.09"])
    assert sparse.config == dataclasses.replace(sparse_llama.PRESETS["deepseek-v3"], **_OPTIONS)
    assert round(sparse.config.num_params() / 1e9) == 671  # as published
    with pytest.raises(NotExpressed, match="examples/models has no effnetv2"):
        model_of(ROWS["effnetv2s-80a100-amp"])


def test_a_network_changes_the_links_and_nothing_else() -> None:
    run = ROWS["bloom-181b-tp8pp12-mbs4"]
    cluster = cluster_of(run["gpu"], 384, 8, run["network"])
    assert (cluster.hosts, cluster.levels[-1].nics, cluster.levels[-1].bandwidth_bytes_s) == (48, 4, 12.5e9)
    assert cluster.device == Cluster.load("dgx-a100").device
    assert cluster_of("H200-141GB", 2, 4, "").devices_per_host == 2
    with pytest.raises(RhinoError, match="no preset of TPU-v5e"):
        cluster_of("TPU-v5e", 256, 4, "ICI")


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("kor22-22b-full", True),
        ("bloom-181b-tp8pp6-mbs4-gbs1568", False),  # flagged
        ("bert-large-s512-1v100-amp", False),
        ("megascale-175b-megascale-256g", False),
        ("megascale-175b-megatron-256g", True),
    ],
)
def test_rows_that_warn_are_not_judged_by(name: str, used: bool) -> None:
    assert published_runs.calibrates(ROWS[name]) is used


# One small model of each family, on one V100, and the FLOPs of its products in a step: 3 x 2 per weight and example.
_LM: dict[str, Any] = {"layers": 2, "width": 1024, "heads": 16, "vocab": 8192, "seq_len": 512, "dtype": "float16"}
_TOKENS = 8 * 512
FAMILIES: dict[str, tuple[Model, float]] = {
    "gpt": (Model("gpt", GPTConfig(**_LM, scan=True), 2), 6 * _TOKENS * (2 * 12 * 1024**2 + 8192 * 1024)),
    "llama": (
        Model("llama", LlamaConfig(**_LM, kv_heads=4, hidden=2048, scan=True), 2),
        6 * _TOKENS * (2 * (2.5 + 6) * 1024**2 + 8192 * 1024),
    ),
    "moe": (
        Model("moe", MoEConfig(**_LM, experts=4, group=1024, scan=True), 1),
        6 * _TOKENS * ((8 + 16 + 2 * 16) * 1024**2 + 8192 * 1024),
    ),
    "sparse_llama": (
        Model(
            "sparse_llama",
            SparseLlamaConfig(
                **_LM, kv_heads=4, head=64, hidden=0, experts=8, chosen=2, expert=1024, shared=1, scan=True
            ),
            2,
        ),
        6 * _TOKENS * (2 * (2.5 + 3 * 3) * 1024**2 + 8192 * 1024),
    ),
    "bert": (
        Model("bert", BERTConfig(**_LM, predicted=16, scan=True), 2),
        6 * _TOKENS * 2 * 12 * 1024**2,
    ),
    "vit": (
        Model("vit", ViTConfig(2, 1024, 16, patch=14, dtype="float16", scan=True, hidden=2048), 2),
        6 * 8 * 257 * 2 * 8 * 1024**2,
    ),
    "t5": (
        Model("t5", T5Config(1, 1024, 16, 64, hidden=2048, target_len=128, gated=True, dtype="float16", scan=True), 1),
        6 * 8 * (512 * (4 + 6 + 2) + 128 * (4 + 2 + 6)) * 1024**2,
    ),
    "convnet": (
        Model("convnet", ConvNetConfig((1, 1), 256, 1000, 56, bottleneck=True, large_stem=False, dtype="float16"), 1),
        6 * 8 * 56**2 * (256 * 256 + 9 * 256**2 + 256 * 1024),
    ),
    "wide_resnet": (
        Model("wide_resnet", WideResNetConfig((2,), 128, 2, image=224, dtype="float16", scan=True), 1),
        6 * 8 * 56**2 * 2 * 9 * 128 * 256,
    ),
}


PLAIN = Software("XLA's fusions")


def predicted(model: Model, layout: RunLayout, hosts: int = 1, per_host: int = 1, era: Software = PLAIN) -> Predicted:
    """What is predicted on V100s."""
    cluster = cluster_of("V100-16GB", hosts * per_host, per_host, "")
    found = predict(model, layout, cluster, era)
    assert sum(found.parts.values()) == pytest.approx(found.step_s)
    return found


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, marks=[pytest.mark.long] * (f in ("t5", "sparse_llama", "bert", "wide_resnet")))
        for f in FAMILIES
    ],
)
def test_no_family_computes_faster_than_its_products_at_peak(family: str) -> None:
    model, flops = FAMILIES[family]
    found = predicted(model, RunLayout(1, size=8))
    computing_s = found.parts["products"] + found.parts["attention"]
    assert flops / 125e12 <= computing_s * 1.001
    # Nor is it slower by more than small products are: something would be computed twice.
    assert computing_s < 8 * flops / 125e12


def test_micro_batches_add_up_and_gradients_do_so_once() -> None:
    model, _ = FAMILIES["gpt"]
    one = predicted(model, RunLayout(2, size=8, slices=2), per_host=2)
    two = predicted(model, RunLayout(2, size=8, slices=4), per_host=2)
    assert two.parts["products"] == pytest.approx(2 * one.parts["products"], rel=1e-3)
    assert two.parts["replicas"] == one.parts["replicas"] > 0
    assert two.parts["update"] == pytest.approx(one.parts["update"], rel=0.05)


def test_stages_fill_and_drain_and_chunks_do_so_faster() -> None:
    config = GPTConfig(**(_LM | {"layers": 8, "vocab": 512}), scan=True)
    model = Model("gpt", config, 8)
    one = predicted(model, RunLayout(1, slices=8))
    four = predicted(model, RunLayout(1, slices=8, stages=4), per_host=4)
    chunked = predicted(model, RunLayout(1, slices=8, stages=4, chunks=2), per_host=4)
    # (m + p - 1) / m of a quarter of the time, and some more for unequal stages and what is sent.
    assert (8 + 3) / 8 * one.step_s / 4 * 0.95 < four.step_s < 1.6 * (8 + 3) / 8 * one.step_s / 4
    assert chunked.parts["bubble"] < four.parts["bubble"]
    assert chunked.parts["products"] == pytest.approx(four.parts["products"], rel=1e-6)


def test_a_middle_stage_is_priced_once_and_counts_as_often_as_there_are_any() -> None:
    config = GPTConfig(**(_LM | {"layers": 4}), scan=True)
    four = predicted(Model("gpt", config, 4), RunLayout(1, slices=4, stages=4), per_host=4)
    deep = predicted(Model("gpt", config, 4).with_layers(8), RunLayout(1, slices=4, stages=8), per_host=8)
    head = 3 * 2 * 512 * 8192 * 1024 * 4 / (0.55 * 125e12)  # what it reaches of the peak
    assert 8 * deep.parts["products"] - head == pytest.approx(2 * (4 * four.parts["products"] - head), rel=0.03)


def test_a_sample_is_expressed_and_recorded(tmp_path: Path) -> None:
    record = tmp_path / "runs.json"
    names = (*published_runs.QUICK[::2], "kempner-7b-4h200-tp4-fsdp1")
    command = [sys.executable, "-m", "bench.published_runs", "--parts", "--json", str(record), "--only", *names]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    found = json.loads(record.read_text())["results"]
    assert {row["id"] for row in found["rows"]} == set(names)
    for row in found["rows"]:
        assert row["why"] == ""
        assert row["ratio"] == pytest.approx(row["predicted_s"] / row["measured_s"])
        assert sum(row["parts"].values()) == pytest.approx(row["predicted_s"])
    assert found["summary"]["all"]["rows"] == len(names)
    assert "By layout" in ran.stdout
    assert "bubble" in ran.stdout


def test_a_row_that_cannot_be_expressed_says_why_and_is_not_counted() -> None:
    results = [published_runs.judge(ROWS[name]) for name in ("maxtext-v5e-16b-1x256", "effnetv2s-80a100-amp")]
    assert [row["why"] for row in results] == ["no preset of TPU-v5e", "examples/models has no effnetv2"]
    assert published_runs.summary(results) == {"rows": 2, "expressed": 0, "left_out": 0}


def test_rows_are_kept_and_defects_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def judge(row: dict[str, str]) -> dict[str, Any]:
        asked.append(row["id"])
        if row["id"] == "b":
            raise ValueError("a defect")
        return {"id": row["id"], "ratio": 1.0, "why": ""}

    monkeypatch.setattr(published_runs, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(published_runs, "judge", judge)
    rows = [{"id": name, "step_time_s": "1"} for name in "ab"]
    first = published_runs.judged(rows)
    assert [row["why"] for row in first] == ["", "failed: ValueError: a defect"]
    assert published_runs.judged(rows) == first
    assert asked == ["a", "b", "b"]


def test_spreads_are_of_the_distance_from_one() -> None:
    found = published_runs.spread_of([0.5, 0.9, 1.0, 1.2])
    assert found["median_error"] == pytest.approx(0.15)
    assert (found["p90_error"], found["median_ratio"], found["rows"]) == (0.5, 0.95, 4)

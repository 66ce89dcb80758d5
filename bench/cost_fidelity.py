"""How far the cost model is from the truth that exists without a cluster: what XLA made of the plan.

    python -m bench.cost_fidelity [--only CASE ...] [--quick] [--json FILE|-]

Each case is planned by `rhino plan` and compiled by `rhino compile`, for GPUs that need not be here. Compared are the
peak memory of a device and the bytes it sends, by kind of collective. Baseline of the same run: what one would say
without a model, that is the arguments and results alone for memory, and one gradient all-reduce for communication.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

from bench._common import CACHE, Table, gib, main, measure_and_publish, note, parser, run, select, tool
from bench._inputs import GPT, module
from bench._quality_cases import Model
from bench._quality_cases import module as quality_module
from rhino.program.operations import COLLECTIVES

# A kind that carries less than this part of all bytes is noise; its ratio is not reported.
NEGLIGIBLE = 0.01
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the cluster it is planned for with which flags, and the target it is compiled for."""

    model: GPT | Model
    cluster: str
    target: str
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Short and unique."""
        return f"{self.model.name}@{self.cluster}"


CASES: tuple[Case, ...] = (
    Case(GPT("10m", 16, seq=128, remat=False), "cpu:1", "cpu"),
    Case(GPT("1.3b", 64), "dgx-h100:1", "h100"),
    Case(GPT("1.3b", 1024), "dgx-h100:16", "h100"),
    # It fits no V100: kernels, and not images, are what it takes memory and traffic for.
    Case(
        Model("wide_resnet", "13b", options=("--scan", "--platform", "cuda")), "p3.16xlarge:8", "v100",
        ("--mesh", "8x8", "--stages", "1", "--microbatches", "1", "--memory-limit", str(10**11)),
    ),
)  # fmt: skip
QUICK: tuple[Case, ...] = (
    Case(GPT("10m", 16, seq=128, remat=False), "cpu:1", "cpu"),
    Case(GPT("125m", 16, layers=2), "dgx-h100:1", "h100"),
)


def by_kind(collectives: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes that one device sends, by kind."""
    found: dict[str, int] = {}
    for entry in collectives:
        found[entry["kind"]] = found.get(entry["kind"], 0) + entry["bytes"]
    return found


def ratios(predicted: dict[str, int], measured: dict[str, int]) -> dict[str, float | None]:
    """Predicted over measured by kind, for kinds that matter on either side; None where XLA has none."""
    total = max(sum(measured.values()), sum(predicted.values()), 1)
    found: dict[str, float | None] = {}
    for kind in dict.fromkeys((*COLLECTIVES, *predicted, *measured)):
        ours, theirs = predicted.get(kind, 0), measured.get(kind, 0)
        if max(ours, theirs) >= NEGLIGIBLE * total:
            found[kind] = ours / theirs if theirs else None
    return found


def naive_comm_bytes(arguments: list[dict[str, Any]], devices: int) -> int:
    """Bytes a device sends in one ring all-reduce of a float32 gradient as large as all parameters."""
    scalars = sum(prod(argument["shape"]) for argument in arguments if argument["role"] == "param")
    return round(2 * scalars * _FLOAT32_BYTES * (devices - 1) / devices)


def measure(case: Case) -> dict[str, Any]:
    """Plan, compile, compare."""
    source = module(case.model) if isinstance(case.model, GPT) else quality_module(case.model)
    stem = CACHE / case.name.replace("@", "-on-").replace(":", "x")
    planned, plan_file, compiled_file = (
        stem.with_name(stem.name + end) for end in (".mlir", ".plan.json", ".xla.json")
    )
    note(f"{case.name}: planning")
    run([*tool("rhino"), "plan", source, "--cluster", case.cluster, *case.flags, "-o", planned, "--json", plan_file])
    note(f"{case.name}: compiling for {case.target}")
    run([*tool("rhino"), "compile", planned, "--target", case.target, "--json", compiled_file])
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    xla = json.loads(compiled_file.read_text(encoding="utf-8"))
    predicted, measured = plan["predicted"]["comm_bytes"], by_kind(xla["collectives"])
    state_bytes = xla["argument_bytes"] + xla["output_bytes"] - xla["alias_bytes"]
    return {
        "case": case.name,
        "target": case.target,
        "devices": xla["devices"],
        "mesh": plan["mesh"],
        "predicted_peak_bytes": plan["predicted"]["peak_bytes"],
        "xla_peak_bytes": xla["peak_bytes"],
        "peak_ratio": plan["predicted"]["peak_bytes"] / xla["peak_bytes"],
        "baseline_peak_ratio": state_bytes / xla["peak_bytes"],
        "predicted_comm_bytes": predicted,
        "xla_comm_bytes": measured,
        "comm_ratios": ratios(predicted, measured),
        "comm_ratio": sum(predicted.values()) / max(sum(measured.values()), 1),
        "baseline_comm_ratio": naive_comm_bytes(plan["arguments"], xla["devices"]) / max(sum(measured.values()), 1),
        "compile_s": xla["seconds"],
    }


def tables(results: list[dict[str, Any]]) -> list[Table]:
    """Memory, and bytes by kind."""
    memory = tuple(
        (
            r["case"],
            "x".join(str(size) for _, size in r["mesh"]),
            gib(r["predicted_peak_bytes"]),
            gib(r["xla_peak_bytes"]),
            f"{r['peak_ratio']:.2f}",
            f"{r['baseline_peak_ratio']:.2f}",
            f"{r['compile_s']:.1f}",
        )
        for r in results
    )
    comm = []
    for r in results:
        for kind, ratio in r["comm_ratios"].items():
            ours, theirs = r["predicted_comm_bytes"].get(kind, 0), r["xla_comm_bytes"].get(kind, 0)
            comm.append(
                (
                    r["case"],
                    kind,
                    f"{ours / 1e6:,.1f}",
                    f"{theirs / 1e6:,.1f}",
                    "-" if ratio is None else f"{ratio:.2f}",
                    "",
                )
            )
        ours, theirs = sum(r["predicted_comm_bytes"].values()), sum(r["xla_comm_bytes"].values())
        ratio, naive = f"{r['comm_ratio']:.2f}", f"{r['baseline_comm_ratio']:.2f}"
        comm.append((r["case"], "all", f"{ours / 1e6:,.1f}", f"{theirs / 1e6:,.1f}", ratio, naive))
    return [
        Table(
            "Peak memory of a device, predicted over XLA's buffer assignment",
            ("case", "mesh", "predicted GiB", "XLA GiB", "ratio", "without a model", "compile s"),
            memory,
        ),
        Table(
            "Bytes a device sends in a step, predicted over counted in the optimized HLO",
            ("case", "kind", "predicted MB", "XLA MB", "ratio", "without a model"),
            tuple(comm),
        ),
    ]


def body() -> None:
    """Measure and print."""
    p = parser("bench.cost_fidelity", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases whose name contains one of these")
    args = p.parse_args()
    cases = select(QUICK if args.quick else CASES, args.only)
    measure_and_publish("cost_fidelity", args, cases, measure, tables)


if __name__ == "__main__":
    main(body)

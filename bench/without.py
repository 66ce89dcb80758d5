"""What each part of the search is worth: the plan that is found, and the one of the same search without that part.

    python -m bench.without [--only CASE ...] [--quick] [--json FILE|-]

Parts that are left out: local sums of gradients; recomputation but what `jax.checkpoint` says; layouts of optimizer
state apart from its parameter (ZeRO-1 and 2), in programs of one mesh; and, where pipelines are open, too, optimizer
state that the replicas of a stage share out, or that the hosts keep. Without the latter nothing fits: that plan is for
devices with as much memory as it takes. Both plans are priced alike, and the one that is found is compiled by XLA for
H100s: its peak memory and bytes stand beside what was predicted of it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._common import CACHE, Table, gib, main, measure_and_publish, note, parser, run, select, tool
from bench._quality_cases import Model, module
from rhino.machine import Cluster

_LOOP = ("--scan", "--remat")
# One GPU a host: there is no fast link over which parameters are gathered in every micro-batch.
ETHERNET = "v100_ethernet.yaml"
_F16 = ("--platform", "cuda", "--set", "dtype=float16")
_WIDE = ("--set", "layers=8", "--set", "width=6144", "--set", "heads=48")


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a cluster, and what the other search has not: a name of `bench._without_plan`."""

    part: str
    model: Model
    cluster: str

    @property
    def name(self) -> str:
        """Short and unique."""
        plain = "-plain" if self.plain else ""
        sizes = "".join(f"-{name}={size}" for name, size in self.model.sizes.items())
        return f"{self.part}/{self.model.name}{sizes}{plain}@{self.cluster}"

    @property
    def plain(self) -> bool:
        """Whether the step itself computes nothing again."""
        return "--remat" not in self.model.options


CASES: tuple[Case, ...] = (
    Case("local-sums", Model("llama", "llama2-7b", 1024, _LOOP), "p3.16xlarge:8"),
    Case("local-sums", Model("gpt", "1.3b", 1024, _LOOP), "p3.16xlarge:8"),
    Case("local-sums", Model("gpt", "6.7b", 1024, (*_LOOP, *_F16)), "p3.16xlarge:8"),
    Case("local-sums", Model("gpt", "1.3b", 1024, _LOOP), "dgx-h100:1"),
    Case("recomputation", Model("gpt", "39b", 1536, _LOOP), "dgx-h100:16"),
    Case("recomputation", Model("gpt", "39b", 1536, ("--scan",)), "dgx-h100:16"),
    Case("recomputation", Model("llama", "llama2-7b", 1024, _LOOP), "dgx-h100:1"),
    Case("state-apart", Model("llama", "llama2-7b", 1024, _LOOP), "dgx-a100:8"),
    Case("state-apart", Model("gpt", "1.3b", 1024, _LOOP), ETHERNET),
    Case("offload", Model("llama", "llama2-70b", 8, _LOOP), "dgx-h100:1"),
    # A stage is one layer, and two replicas have no room for all of its optimizer state each.
    Case("distributed-optimizer", Model("gpt", "6.7b", 256, (*_LOOP, *_F16, *_WIDE)), ETHERNET),
)
QUICK: tuple[Case, ...] = (Case("local-sums", Model("gpt", "tiny", options=_LOOP), "dgx-h100:1"),)


def _ethernet() -> Path:
    """A file of 16 hosts that have one V100 each: the preset p3.8xlarge without what is between its GPUs."""
    data = Cluster.load("p3.8xlarge:16").to_dict()
    gone = ("devices_per_host", "levels.intra-host")
    given = {name: source for name, source in data["sources"].items() if not name.startswith(gone)}
    levels = [level for level in data["levels"] if level["name"] != "intra-host"]
    alone = {"name": "v100-ethernet", "devices_per_host": 1, "levels": levels, "sources": given}
    CACHE.mkdir(parents=True, exist_ok=True)
    Cluster.from_dict({**data, **alone}).save(CACHE / ETHERNET)
    return CACHE / ETHERNET


def measure(case: Case) -> dict[str, Any]:
    """Both plans of a case, and XLA's account of the one that is found."""
    source, found = module(case.model), {}
    cluster = _ethernet() if case.cluster == ETHERNET else case.cluster
    note(case.name)
    for name in ("with", "without"):
        out = CACHE / f"without-{name}.mlir"
        record = out.with_suffix(".json")
        ran = run(
            [sys.executable, "-m", "bench._without_plan", name, case.part, source, cluster, out, record],
            env={"JAX_PLATFORMS": "cpu"},
        )
        plan = json.loads(record.read_text(encoding="utf-8"))
        found[name] = {
            "mesh": plan["mesh"],
            "microbatches": plan["microbatches"],
            "local_sums": plan.get("local_sums", 1),
            "recomputation": (plan.get("recomputation") or {}).get("policy"),
            "predicted": plan["predicted"],
            "plan_s": ran.wall_s,
        }
    compiled = CACHE / "without-compiled.json"
    run([*tool("rhino"), "compile", CACHE / "without-with.mlir", "--target", "h100", "--json", compiled])
    measured = json.loads(compiled.read_text(encoding="utf-8"))
    steps = [found[name]["predicted"]["step_time_s"] for name in ("with", "without")]
    peaks = [found[name]["predicted"]["peak_bytes"] for name in ("with", "without")]
    sent: dict[str, int] = {}
    for one in measured["collectives"]:
        sent[one["kind"]] = sent.get(one["kind"], 0) + one["bytes"]
    return {
        "case": case.name,
        **found,
        "time": steps[0] / steps[1],
        "memory": peaks[0] / peaks[1],
        "measured": {"peak_bytes": measured["peak_bytes"], "comm_bytes": sent},
        "peak_ratio": peaks[0] / measured["peak_bytes"],
    }


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """A line for each case."""
    lines = []
    for r in rows:
        ours, other = r["with"], r["without"]
        lines.append((
            r["case"], f"{ours['predicted']['step_time_s']:.3g}", f"{other['predicted']['step_time_s']:.3g}",
            f"{r['time']:.2f}", gib(ours["predicted"]["peak_bytes"]), gib(r["measured"]["peak_bytes"]),
            f"{r['peak_ratio']:.2f}", f"{ours['plan_s']:.0f}", f"{other['plan_s']:.0f}",
        ))  # fmt: skip
    columns = ("case", "step s", "without", "ratio", "peak GiB", "XLA's", "ratio", "plan s", "without")
    return [Table("What each part of the search is worth", columns, tuple(lines))]


def body() -> None:
    """Measure and print."""
    p = parser("bench.without", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases whose name contains one of these")
    args = p.parse_args()
    measure_and_publish("without", args, select(QUICK if args.quick else CASES, args.only), measure, tables)


if __name__ == "__main__":
    main(body)

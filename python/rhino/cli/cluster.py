"""`rhino cluster list|show|calibrate`: the presets, one cluster in full, and a file measured on this machine.

Owns the tables and the JSON of these commands. Knows nothing of how clusters are read, validated or measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhino.cli import files
from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.catalog import preset_names
from rhino.schema.yaml_text import to_yaml

if TYPE_CHECKING:
    from rich.table import Table

_SPEC = "preset[:hosts], a YAML file[:hosts], or local"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the `cluster` command and its three actions to the subparsers of `rhino`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "cluster",
        help="list, show or measure clusters",
        description="List, show or measure clusters.",
        epilog="try rhino cluster list",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the presets", description="The clusters that ship with rhino.")
    show = actions.add_parser(
        "show",
        help="one cluster, with the source of every value",
        description="One cluster, with sources.",
        epilog="try rhino cluster show dgx-h100; rhino cluster list shows the others",
    )
    show.add_argument("spec", metavar="CLUSTER", help=_SPEC)
    show.add_argument("--yaml", action="store_true", help="print it as a cluster file, to edit and load")
    measure = actions.add_parser(
        "calibrate",
        help="measure this machine, or the hosts of a job",
        description="Measure the devices of this machine, or of all hosts of a job, all busy at once, and write a "
        "cluster file.",
    )
    measure.add_argument("-o", "--output", metavar="FILE", help="the YAML file to write (default: NAME.yaml)")
    measure.add_argument("--name", default="measured", help="the cluster's name (default: measured)")
    measure.add_argument(
        "--devices", type=int, default=8, metavar="N", help="virtual CPU devices where there is no GPU (default: 8)"
    )
    measure.add_argument(
        "--job",
        action="store_true",
        help="measure all hosts of a job and the links between them: every process runs this command, process 0 writes",
    )
    measure.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 of the job is, if not detected")
    measure.add_argument("--processes", type=int, metavar="N", help="how many processes the job has")
    measure.add_argument("--process", type=int, metavar="I", help="which of them this is, from 0")
    for action in (listing, show, measure):
        action.add_argument("--json", metavar="FILE", help="write JSON to FILE, or - for standard output")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the action chosen on the command line. RhinoError on bad input, for the caller to print."""
    actions = {"list": _list, "show": _show, "calibrate": _calibrate}
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> int:
    clusters = [Cluster.load(name) for name in preset_names()]
    entries = [
        {
            "name": cluster.base_name,
            "device": cluster.device.kind,
            "devices_per_host": cluster.devices_per_host,
            "memory_bytes": cluster.device.memory_bytes,
            "description": cluster.description,
        }
        for cluster in clusters
    ]
    if _write_json(args.json, {"schema": 1, "clusters": entries}):
        return 0
    table = _table("cluster", "device", "per host", "memory", "bf16", "links (one way, per device or host)")
    for cluster in clusters:
        links = ", ".join(f"{level.name} {level.nics} x {_rate(level.bandwidth_bytes_s)}" for level in cluster.levels)
        memory = f"{cluster.device.memory_bytes / 2**30:.1f} GiB"
        peak = _flops(cluster.device.peak("bf16"))
        table.add_row(cluster.base_name, cluster.device.kind, str(cluster.devices_per_host), memory, peak, links)
    _print(table)
    print("Write NAME:HOSTS for several hosts, dgx-h100:4.")
    return 0


def _show(args: argparse.Namespace) -> int:
    cluster = Cluster.load(args.spec)
    if _write_json(args.json, _full(cluster)):
        return 0
    if args.yaml:
        print(to_yaml(cluster.to_dict()), end="")
        return 0
    _print(_values(cluster))
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    if args.devices < 1:
        raise RhinoError(f"--devices {args.devices} is not a positive integer", "give 1 or more")
    output = Path(args.output or f"{args.name}.yaml")
    if not output.parent.is_dir():
        raise RhinoError(f"{output}: no folder {output.parent}", "make it, or give another -o FILE")
    if ":" in args.name or not args.name.strip():
        raise RhinoError(f"--name {args.name!r} is empty or contains a colon", "give a plain name")
    given = (args.coordinator, args.processes, args.process)
    if any(value is not None for value in given) and None in given:
        raise RhinoError(
            "--coordinator, --processes and --process are given together, or not at all", "give all three of them"
        )
    _virtual_devices(args.devices)
    writes = _join(*given) if args.job or args.coordinator else True
    cluster = _measure(args.name)
    if not writes:
        return 0
    cluster.save(output)
    if not _write_json(args.json, _full(cluster)):
        _print(_values(cluster))
    print(f"wrote {output}; use it as --cluster {output}", file=sys.stderr)
    return 0


def _virtual_devices(count: int) -> None:
    """Asks jax for CPU devices, before its backend starts; the user's own XLA_FLAGS win. GPUs are not affected."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise RhinoError(f"--devices {count}: {error}", "start the command in a process of its own") from None


def _join(coordinator: str | None, processes: int | None, process: int | None) -> bool:
    """Becomes a process of a job, and says whether it is the one that writes."""
    import jax

    import rhino

    try:
        rhino.distributed.initialize(coordinator, processes, process)
    except RhinoError as error:
        if coordinator is not None:
            raise
        raise RhinoError(f"--job: {error.message}", "give --coordinator, --processes and --process") from None
    return jax.process_index() == 0


def _measure(name: str) -> Cluster:
    """Calibration under a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from rhino.machine.calibrate import calibrate

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting jax", total=None)

        def advance(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        return calibrate(name, progress=advance)


def _full(cluster: Cluster) -> dict[str, Any]:
    """The cluster's fields, and what follows from them."""
    return {**cluster.to_dict(), "num_devices": cluster.num_devices, "digest": cluster.digest()}


def _write_json(target: str | None, data: dict[str, Any]) -> bool:
    """Writes JSON where asked. True when it took standard output, which then carries nothing else."""
    if target is None:
        return False
    files.write(target, json.dumps(data, indent=2) + "\n")
    return target == "-"


def _values(cluster: Cluster) -> Table:
    """Every value with its unit and its source."""
    device = cluster.device
    rows = [
        ("hosts", "hosts", str(cluster.hosts)),
        ("devices per host", "devices_per_host", str(cluster.devices_per_host)),
        ("device", "device.kind", f"{device.kind} (compiled for {device.xla_target})"),
    ]
    rows += [(f"peak {dtype}", f"device.peak_flops.{dtype}", _flops(rate)) for dtype, rate in device.peak_flops.items()]
    rows += [
        ("memory", "device.memory_bytes", f"{device.memory_bytes / 2**30:.1f} GiB"),
        ("memory bandwidth", "device.memory_bandwidth_bytes_s", _rate(device.memory_bandwidth_bytes_s)),
        ("efficiency", "efficiency", f"matmul {cluster.efficiency.matmul:g}, memory {cluster.efficiency.memory:g}"),
        ("reduce-scatter", "reduce_scatter", "yes" if cluster.reduce_scatter else "no, all-reduce instead"),
    ]
    for level in cluster.levels:
        path = f"levels.{level.name}"
        link = f"{level.nics} x {_rate(level.bandwidth_bytes_s)}, {level.duplex} duplex"
        rows.append((level.name, f"{path}.bandwidth_bytes_s", f"{link}, joins {level.size} devices"))
        rows.append((f"{level.name} latency", f"{path}.latency_s", f"{level.latency_s * 1e6:.3g} us"))
    table = _table("field", "value", "source", title=f"{cluster.name}: {cluster.description}")
    for label, path, value in rows:
        table.add_row(label, value, cluster.source_of(path))
    return table


def _table(*columns: str, title: str | None = None) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    # A pipe has no width: give it the room that the table asks for, so that lines stay whole.
    console = Console() if sys.stdout.isatty() else Console(width=220)
    console.print(table)


def _scaled(value: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} {units[-1]}"


def _flops(value: float) -> str:
    return _scaled(value / 1e9, ("GFLOP/s", "TFLOP/s", "PFLOP/s"))


def _rate(value: float) -> str:
    return _scaled(value / 1e6, ("MB/s", "GB/s", "TB/s"))

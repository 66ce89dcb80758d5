"""`rhino compile FILE.mlir --target h100`: compiles an annotated module and reports memory and collectives.

Owns this command's options and outputs. Knows nothing of how modules are compiled; jax is imported when it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from rhino.cli import files, options
from rhino.cli.supervised import task
from rhino.compile.target import TARGETS, check_target
from rhino.errors import RhinoError
from rhino.progress import Progress
from rhino.request import COMPILE_OPTIONS, PLAIN, CompileRequest

if TYPE_CHECKING:
    from rhino.compile.executable import Executable
    from rhino.compile.timeline import Timeline
    from rhino.ir.other_trips import OtherTrips
    from rhino.machine import Cluster


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `compile` command to the subparsers of `rhino`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compile",
        help="compile an annotated module and report memory and collectives",
        description="Compile the annotated step in FILE with XLA; one device if it has no mesh.",
        epilog="try rhino compile planned.mlir --target h100, with what rhino plan -o planned.mlir wrote",
    )
    parser.add_argument("file", metavar="FILE", help="as for rhino plan: text, bytecode, jax.export's, or -")
    parser.add_argument(
        "--function", default="", metavar="NAME", help="the step's function (default: main, or the only public one)"
    )
    parser.add_argument("--target", metavar="T", default="cpu", help=f"one of {', '.join(TARGETS)} (default: cpu)")
    parser.add_argument("--devices", type=_count, metavar="N", help="check that the module is for N devices")
    parser.add_argument(
        "--hosts",
        type=_count,
        metavar="N",
        help="hosts that hold the GPUs (default: the module's cluster, else 8 to a host)",
    )
    parser.add_argument("--json", metavar="F", help="write what was measured as JSON to F, or - for standard output")
    parser.add_argument("--hlo", metavar="F", help="write the optimized HLO of one device to F, or -")
    parser.add_argument(
        "--timeline", metavar="F", help="write the step in time to F, for ui.perfetto.dev and chrome://tracing, or -"
    )
    options.add(parser, COMPILE_OPTIONS, PLAIN)
    parser.add_argument(
        "--cluster",
        metavar="C",
        help="whose devices and links --timeline and --overlap go by (default: the module's cluster)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    return parser


def run(args: argparse.Namespace) -> int:
    """Compile, then write what was asked for. RhinoError on bad input, for the caller to print."""
    # XLA logs the devices it finds, which is noise here; read when jaxlib is loaded. Its warnings stay.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from rhino.dialect.context import to_bytecode
    from rhino.plan.module import parse_module
    from rhino.plan.pipeline import in_fragments, main_of

    check_target(args.target)
    outputs = {"--json": args.json, "--hlo": args.hlo, "--timeline": args.timeline}
    if len(printed := [name for name, file in outputs.items() if file == "-"]) > 1:
        raise RhinoError(f"{' and '.join(printed)} cannot both go to standard output", "give one of them a file")
    files.check_writable(*outputs.values())
    if args.cluster and not (args.timeline or args.overlap):
        raise RhinoError("--cluster is what --timeline and --overlap go by", "give --timeline FILE or --overlap, too")
    if args.overlap and args.target == "cpu":
        raise RhinoError("on CPUs nothing runs beside computing", "leave --overlap out, or name a GPU with --target")
    task(f"{files.shown(args.file)}: reading")
    data, path = files.read_program(args.file, args.target)
    module = parse_module(data, files.shown(args.file), path, args.function)
    source, cluster = to_bytecode(module), _cluster(args, module)
    task(f"{files.shown(args.file)}: compiling for {args.target}")
    from rhino.compile import ready_for
    from rhino.compile.executable import compile_as
    from rhino.compile.undone import say_undone

    ready_for(args.target)
    how = CompileRequest.of(**options.given(args, COMPILE_OPTIONS)).on(cluster)
    if in_fragments(main_of(module)):
        return _fragments(args, source, how)
    with Progress(f"compiling for {args.target}", args.quiet):
        executable = compile_as(source, how, args.target, devices=args.devices, hosts=args.hosts)
        executable.collectives()
    for said in (say_undone(module, executable.hlo_text, executable.devices), _no_room(module, executable)):
        if said:
            print(f"warning: {said}", file=sys.stderr)
    if args.hlo:
        files.write(args.hlo, executable.hlo_text())
    timeline = executable.timeline(cluster) if args.timeline and cluster is not None else None
    if timeline is not None:
        files.write(args.timeline, timeline.trace())
    if args.json:
        told = {**executable.to_json(), **({"timeline": timeline.to_json()} if timeline is not None else {})}
        files.write(args.json, json.dumps(told, indent=1) + "\n")
    # Standard output belongs to one reader: a machine when JSON, HLO or a trace goes there.
    if not args.quiet and not printed:
        _print(executable)
        _print_trips(executable.other_trips)
        if timeline is not None and cluster is not None:
            _print_timeline(timeline, cluster)
    return 0


def _cluster(args: argparse.Namespace, module: Any) -> Cluster | None:
    """What the timeline and the order of collectives go by, if one is asked for."""
    from rhino.dialect.attributes import RhinoCluster
    from rhino.machine import Cluster

    if not (args.timeline or args.overlap):
        return None
    if args.cluster:
        return Cluster.load(args.cluster)
    planned = RhinoCluster.of(module)
    if planned is None:
        asked = "--timeline" if args.timeline else "--overlap"
        raise RhinoError(f"the module names no cluster, by which {asked} could go", "name one with --cluster")
    try:
        return Cluster.load(planned["name"])
    except RhinoError as error:
        remedy = "give the file it was planned for with --cluster"
        raise RhinoError(f"the module was planned for {planned['name']}, which is no preset", remedy) from error


def _no_room(module: Any, executable: Executable) -> str:
    """What is said of a program that needs more than the devices it was planned for have; of a preset's, as named."""
    from rhino.compile.room import shortage
    from rhino.dialect.attributes import RhinoCluster, RhinoPlan
    from rhino.machine import Cluster

    try:
        plan, planned = RhinoPlan.of(module), RhinoCluster.of(module)
        cluster = Cluster.load(planned["name"]) if planned is not None else None
    except RhinoError:  # by hand, or of a file that is not told here
        return ""
    if plan is None or cluster is None:
        return ""
    if cluster.device.xla_target != executable.target:
        return ""
    predicted = plan["predicted"]
    assert isinstance(predicted, dict)
    short = shortage(executable.memory_analysis().peak_bytes, int(predicted["peak_bytes"]), cluster)
    return str(short) if short is not None else ""


def _fragments(args: argparse.Namespace, source: str | bytes, how: CompileRequest) -> int:
    """The same for a step in fragments, which is many programs."""
    from rhino.cli.compile_pipeline import compile_fragments, show, to_json

    for name, asked in (("--hlo", args.hlo), ("--timeline", args.timeline)):
        if asked:
            raise RhinoError(f"{name} is of one program, and the module is in fragments", "leave it out")
    with Progress(f"compiling for {args.target}", args.quiet):
        executable = compile_fragments(source, args.target, args.devices, how)
    if args.json:
        files.write(args.json, json.dumps(to_json(executable), indent=1) + "\n")
    if not args.quiet and args.json != "-":
        show(executable)
    return 0


def _print_trips(trips: OtherTrips) -> None:
    """Says what loops do in other trips."""
    if trips.sums_later:
        print("gradients that loops make are summed over devices a trip later, as by rhino-sum-later")
    if trips.gathers_earlier != "none":
        which = "parameters" if trips.gathers_earlier == "all" else "parameters that a trip reads first"
        how = "" if trips.gathers_earlier == "all" else "=first"
        print(
            f"{which} are gathered a trip of the loop earlier, two trips in one, as by rhino-gather-earlier{how} and "
            "rhino-pair-trips"
        )
    if trips:
        print()


def _print(executable: Executable) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    memory = executable.memory_analysis()
    devices = "1 device" if executable.devices == 1 else f"{executable.devices} devices"
    console.print(f"compiled for {executable.target}, {devices}, in {executable.seconds:.2f} s; per device:")
    table = Table("memory", "bytes", "", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, size in (
        ("arguments", memory.argument_bytes),
        ("results", memory.output_bytes),
        ("temporaries", memory.temp_bytes),
        ("aliases", -memory.alias_bytes),
        ("peak", memory.peak_bytes),
    ):
        table.add_row(name, f"{size:,}", _human(size))
    console.print(table)
    collectives = executable.collectives()
    if not collectives:
        console.print("\nno collectives")
        return
    table = Table("collective", "type", "groups", "executions", "bytes sent", "", box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for row in collectives:
        groups = f"{len(row.groups)} of {row.group_size}"
        count = f"{row.count:,}" + (" or more" if row.in_unknown_loop else "")
        table.add_row(row.kind, row.dtype, groups, count, f"{row.bytes:,}", _human(row.bytes))
    console.print()
    console.print(table)


def _print_timeline(timeline: Timeline, cluster: Cluster) -> None:
    from rich.console import Console
    from rich.table import Table

    from rhino.machine.units import seconds
    from rhino.report.rows import host_line

    console = Console(highlight=False)
    total = f"{seconds(timeline.total_s)} a step, {timeline.kernels:,} kernels"
    console.print(f"\nin XLA's order, by the rates of {cluster.name}: {total}")
    table = Table("what", "in all", "waited for", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    names = {"product": "products", "kernel": "kernels of the table", "moves": "other kernels"}
    for kind, spent_s in timeline.compute_s.items():
        table.add_row(names[kind], seconds(spent_s), "")
    for kind, spent_s in timeline.sent_s.items():
        table.add_row(kind, seconds(spent_s), seconds(timeline.exposed_s.get(kind, 0.0)))
    console.print(table)
    if waiting := host_line(timeline.period_s, timeline.total_s):
        console.print(waiting)
    if timeline.unknown_loops:
        console.print(f"{timeline.unknown_loops} loops whose trips XLA does not say are counted once")


def _human(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)

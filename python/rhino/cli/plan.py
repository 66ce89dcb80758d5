"""`rhino plan FILE.mlir --cluster C`: plans a module and shows what was chosen, as a table, module, JSON or page.

Owns this command's options and outputs. Knows nothing of how plans are found. Does not import jax.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhino.cli import files, kernels, options
from rhino.cli.supervised import task
from rhino.progress import Progress
from rhino.request import DEFAULTS, OPTIONS, PlanRequest

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from rhino.plan.module import Planned


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `plan` command to the subparsers of `rhino`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="find a distributed plan for a StableHLO module",
        description="Find how to distribute the step in FILE over a cluster.",
        epilog="try rhino plan step.mlir --cluster dgx-h100:1; rhino cluster list shows the clusters",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="StableHLO text (.mlir), bytecode (.mlirbc) or portable artifact, a file of jax.export, or - for standard "
        "input",
    )
    parser.add_argument(
        "--function", default="", metavar="NAME", help="the step's function (default: main, or the only public one)"
    )
    parser.add_argument("--cluster", metavar="C", required=True, help="preset[:hosts], a YAML file[:hosts], or local")
    options.add(parser, OPTIONS, DEFAULTS)
    kernels.add_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write the annotated module; bytecode if OUT ends in .mlirbc"
    )
    parser.add_argument("--json", metavar="F", help="write the plan as JSON to F, or - for standard output")
    parser.add_argument("--report", metavar="F.html", help="write a page that shows the plan")
    parser.add_argument("--save", metavar="F", help="write the plan for rhino.Plan.load, its module included")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    return parser


def run(args: argparse.Namespace) -> int:
    """Plan, then write what was asked for. RhinoError on bad input, for the caller to print."""
    from rhino.machine import Cluster
    from rhino.plan.file import save
    from rhino.plan.module import parse_module
    from rhino.report.html import page

    files.check_writable(args.output, args.json, args.report, args.save)
    kernels.register_given(args)
    cluster = Cluster.load(args.cluster)
    request = PlanRequest.of(cluster, **options.given(args, OPTIONS))
    task(f"{files.shown(args.file)}: reading")
    data, path = files.read_program(args.file, cluster.device.xla_target)
    module = parse_module(data, files.shown(args.file), path, args.function)
    task(f"{files.shown(args.file)}: planning")
    planned = _plan(module, request, quiet=args.quiet)
    for said in planned.diagnostics if not args.quiet else ():
        if said.severity == "warning":
            print(*(said, *said.notes), sep="\n", file=sys.stderr)
    if args.output:
        files.write(args.output, _module_bytes(module, bytecode=args.output.endswith(".mlirbc")))
    if args.save:
        save(planned.plan, Path(args.save))
    if args.report:
        files.write(args.report, page(planned.plan))
    if args.json:
        files.write(args.json, json.dumps(_json(planned), indent=1) + "\n")
    # Standard output belongs to one reader: a machine when JSON or the module goes there.
    if not args.quiet and "-" not in (args.json, args.output):
        _print(planned)
    return 0


def _module_bytes(module: ir.Module, bytecode: bool) -> bytes:
    from rhino.dialect.context import to_bytecode, to_text

    return to_bytecode(module) if bytecode else to_text(module).encode()


def _json(planned: Planned) -> dict[str, Any]:
    from rhino.plan.file import plan_data

    data = plan_data(planned.plan)
    data["search"]["seconds"] = round(planned.seconds, 6)
    return data


def _print(planned: Planned) -> None:
    from rich.console import Console

    from rhino.report.text import print_summary, summary

    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write(summary(planned.plan))
    else:
        print_summary(planned.plan, console)
    console.print(f"planned in {planned.seconds:.2f} s", style="dim")


def _plan(module: ir.Module, request: PlanRequest, quiet: bool) -> Planned:
    from rhino.plan.module import plan_module

    with Progress("planning", quiet) as progress:
        return plan_module(module, request, progress)

"""`rhino compare FILE.mlir --cluster C --specs F.json`: others' plans against the one that Rhino finds, explained.

Owns this command's options and outputs. Knows nothing of how plans are made or compared. Imports jax only to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from rhino.cli import files, kernels, options
from rhino.cli.supervised import task
from rhino.progress import Progress
from rhino.request import DEFAULTS, OPTIONS, PlanRequest


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `compare` command to the subparsers of `rhino`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="compare a plan by hand with the one that is found",
        description="Compare plans that others wrote for the step in FILE with the one that Rhino finds.",
        epilog="try rhino compare step.mlir --cluster dgx-h100:1 --against megatron-data",
    )
    parser.add_argument("file", metavar="FILE", help="as for rhino plan: text, bytecode, jax.export's, or -")
    parser.add_argument(
        "--function", default="", metavar="NAME", help="the step's function (default: main, or the only public one)"
    )
    parser.add_argument("--cluster", metavar="C", required=True, help="preset[:hosts], a YAML file[:hosts], or local")
    parser.add_argument(
        "--specs", action="append", default=[], metavar="F.json", help="a mesh and PartitionSpecs; several may be given"
    )
    parser.add_argument(
        "--against",
        action="extend",
        nargs="+",
        default=[],
        metavar="PLAN",
        help="an expert's name, a plan that --save wrote, or a .mlir file of the step with shardings or a plan",
    )
    options.add(parser, OPTIONS, DEFAULTS)
    kernels.add_arguments(parser)
    parser.add_argument("--compile", action="store_true", help="compile all plans with XLA, and show what it measures")
    parser.add_argument(
        "--target", metavar="T", default="", help="what to compile for (default: the cluster's devices)"
    )
    parser.add_argument("--json", metavar="F", help="write the comparison as JSON to F, or - for standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    return parser


def run(args: argparse.Namespace) -> int:
    """Compare, then write what was asked for. RhinoError on bad input, for the caller to print."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # of XLA, read when jaxlib is loaded
    from rhino.errors import RhinoError
    from rhino.experts.compare import compare_plans
    from rhino.experts.planning import StepProgram
    from rhino.machine import Cluster
    from rhino.plan.module import parse_module

    files.check_writable(args.json)
    kernels.register_given(args)
    if not args.specs and not args.against:
        raise RhinoError("there is no plan to compare with", "give --specs FILE.json, or --against an expert or a file")
    if args.target and not args.compile:
        raise RhinoError("--target is what --compile compiles for", "give --compile, too")
    cluster = Cluster.load(args.cluster)
    request = PlanRequest.of(cluster, **options.given(args, OPTIONS))
    target = _target(args.target or cluster.device.xla_target) if args.compile else ""
    task(f"{files.shown(args.file)}: reading")
    data, path = files.read_program(args.file, cluster.device.xla_target)
    step = StepProgram.of(parse_module(data, files.shown(args.file), path, args.function), cluster)
    task(f"{files.shown(args.file)}: comparing")
    with Progress("planning", args.quiet) as progress:
        found = compare_plans([*args.specs, *args.against], step, request, target, progress)
    if args.json:
        files.write(args.json, json.dumps(found.to_dict(), indent=1) + "\n")
    if not args.quiet and args.json != "-":
        from rich.console import Console

        console = Console(highlight=False)
        if console.is_terminal:
            found.print(console)
        else:
            sys.stdout.write(str(found))
    return 0


def _target(target: str) -> str:
    """What XLA compiles for, with jax made ready for it."""
    from rhino.compile import ready_for
    from rhino.compile.target import check_target

    check_target(target)
    ready_for(target)
    return target

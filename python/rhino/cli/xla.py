"""`rhino xla`: whether XLA still does what plans and predictions rest on, with this jaxlib.

Owns this command's options and outputs. What is probed is in `rhino.xla`; jax is imported when it runs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from rhino.cli import files
from rhino.cli.supervised import task
from rhino.errors import RhinoError
from rhino.progress import Progress
from rhino.xla import BACK_ENDS
from rhino.xla.behaviour import TRIED, Behaviour
from rhino.xla.catalogue import CATALOGUE, behaviour

_ORDER = ("changed", "shows", "absent", "not probed")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `xla` command to the subparsers of `rhino`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "xla",
        help="say which behaviours of XLA that plans rest on changed",
        description="Compile a small program for each behaviour of XLA that plans and predictions rest on, and say "
        "whether it shows where it should. Exit code 1 if one changed.",
        epilog="try rhino xla after an upgrade of jax; rhino xla sums-merge --target h100 for one",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these behaviours (default: all)")
    parser.add_argument(
        "--target", action="append", choices=tuple(BACK_ENDS), metavar="T", help=f"only on {', '.join(BACK_ENDS)}"
    )
    parser.add_argument("--list", action="store_true", help="say what they are, and compile nothing")
    parser.add_argument("--json", metavar="F", help="write what was found as JSON to F, or - for standard output")
    return parser


def run(args: argparse.Namespace) -> int:
    """Probe, and print what was found. RhinoError on a bad name or without the GPU compiler."""
    chosen = [behaviour(name) for name in args.names] or list(CATALOGUE)
    if args.list:
        print("\n".join(f"{found.name}: {found.says}" for found in chosen))
        return 0
    files.check_writable(args.json)
    # XLA's own warnings are noise here; read when jaxlib is loaded.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from rhino.compile import ensure_cpu_devices, prefer_cpu
    from rhino.compile.probe import version

    prefer_cpu()
    ensure_cpu_devices(8)
    rows = _rows(chosen, args.target or tuple(BACK_ENDS))
    if args.json:
        found = {"jaxlib": version(), "tried": list(TRIED), "behaviours": rows}
        files.write(args.json, json.dumps(found, indent=1) + "\n")
    if args.json != "-":
        print(f"jaxlib {version()}; the catalogue was tried with {', '.join(TRIED)}")
        print(_table(rows))
    return int(any(row["status"] == "changed" for row in rows))


def _rows(chosen: Sequence[Behaviour], targets: Sequence[str]) -> list[dict[str, str]]:
    """A row per behaviour and target, in the catalogue's order."""
    from rhino.compile.probe import status

    rows = []
    pairs = [(found, target) for found in chosen for target in found.where if target in targets]
    with Progress("probing XLA") as progress:
        for done, (found, target) in enumerate(pairs):
            task(f"probing {found.name} on {target}")
            progress(done, len(pairs), f"{found.name} on {target}")
            try:
                what, why = str(status(found, target)), ""
            except RhinoError as error:
                # XLA refuses a program that it took; without a GPU compiler nothing can be said.
                if "XLA cannot compile" not in str(error) and "failed otherwise" not in str(error):
                    raise
                what, why = "changed", str(error)
            rows.append({"name": found.name, "target": target, "status": what, "why": why, "says": found.says})
    return rows


def _table(rows: Sequence[dict[str, str]]) -> str:
    """A line per behaviour: what became of it on which targets, what changed in capital letters with what it was."""
    lines = []
    names = list(dict.fromkeys(row["name"] for row in rows))
    width = max(map(len, names), default=0)
    for name in names:
        of = [row for row in rows if row["name"] == name]
        groups = [(s, [r["target"] for r in of if r["status"] == s]) for s in _ORDER]
        lines.append(f"{name:<{width}}  " + "; ".join(f"{s} on {', '.join(t)}" for s, t in groups if t))
        changed = [row for row in of if row["status"] == "changed"]
        if changed:
            lines.append(f"{'':<{width}}  was: {changed[0]['says']}")
            lines += [f"{'':<{width}}  {row['target']}: {row['why']}" for row in changed if row["why"]]
    counts = [(s, sum(row["status"] == s for row in rows)) for s in _ORDER]
    return "\n".join([*lines, "", ", ".join(f"{n} {s}" for s, n in counts if n or s == "changed")])

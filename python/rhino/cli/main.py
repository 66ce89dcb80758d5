"""The `rhino` command: finds the subcommand, runs it, and turns every RhinoError into one line and exit code 1.

Owns the table of subcommands, each a module with `add_parser(subparsers)` and `run(args) -> int`, imported when chosen,
so that `rhino --help` loads none of them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from rhino.cli.parser import Parser
from rhino.cli.supervised import supervised
from rhino.errors import LOWERED, RhinoError

# name -> (module, summary), in the order of --help.
_COMMANDS = {
    "plan": ("rhino.cli.plan", "find a distributed plan for a StableHLO module"),
    "compile": ("rhino.cli.compile", "compile an annotated module and report memory and collectives"),
    "compare": ("rhino.cli.compare", "compare a plan by hand with the one that is found"),
    "simulate": ("rhino.cli.simulate", "play a pipeline schedule"),
    "reshard": ("rhino.cli.reshard", "plan the way of a tensor from one mesh to another"),
    "cluster": ("rhino.cli.cluster", "list, show or measure clusters"),
    "xla": ("rhino.cli.xla", "say which behaviours of XLA that plans rest on changed"),
}
_OVERVIEW = """\
Rhino scales a JAX step written for one device to a cluster.

Try first:  rhino cluster list                               the clusters it knows
Then:       rhino plan step.mlir --cluster dgx-h100:1        how to distribute a step, and why so

A step:     {lowered}
In Python:  rhino.parallelize(step)                          plans, compiles and runs

Commands, of which rhino COMMAND --help says more:
{commands}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rhino` with the given arguments, or supervised with the process's.

    Returns:
      The exit code: 0, 1 after an error in what was asked, 2 for a bad command line, 130 when interrupted.
    """
    if argv is None:
        given = sys.argv[1:]
        named = next((word for word in given if word in _COMMANDS), "")
        return supervised(f"rhino {named}".strip(), lambda: main(given), verbose="--debug" in given)
    arguments = list(argv)
    debug = "--debug" in arguments
    command = next((word for word in arguments if not word.startswith("-")), "")
    if not arguments:
        print(_overview())
        return 0
    try:
        args = _parser(command).parse_args([word for word in arguments if word != "--debug"])
        return int(import_module(_COMMANDS[args.command][0]).run(args))
    except RhinoError as error:
        if debug:
            raise
        print(f"rhino {command}: error: {_one_line(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader went away, as `head` does: stop quietly, and keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        if debug:
            raise
        print(f"rhino {command}: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:  # argparse: 2 after a bad command line, 0 after --help
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        if debug:
            raise
        text = " ".join(str(error).split()) or "no message"
        print(f"rhino {command}: error: unexpected {type(error).__name__}: {text[:300]}; "
              "this is a bug, --debug shows where", file=sys.stderr)  # fmt: skip
        return 1


def _overview() -> str:
    """What `rhino` alone says."""
    commands = "\n".join(f"  {name:<10}{summary}" for name, (_, summary) in _COMMANDS.items())
    return _OVERVIEW.format(lowered=LOWERED, commands=commands)


def _parser(chosen: str) -> Parser:
    """The parser; only the chosen subcommand's own options are in it."""
    parser = Parser(
        prog="rhino",
        description="Scale a JAX step written for one device to a cluster.",
        epilog="rhino alone shows where to begin",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("--debug", action="store_true", help="show a traceback after an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in _COMMANDS.items():
        if name == chosen:
            import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser


class _Version(argparse.Action):
    """Looks the version up when it is asked for, and not for every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        import rhino

        print(f"rhino {rhino.__version__}")
        parser.exit()


def _one_line(error: RhinoError) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())

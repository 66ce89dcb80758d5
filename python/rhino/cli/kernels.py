"""The options that describe kernels to a command: a rule in a line, or a Python file that registers several.

Owns these options. What a rule means is `rhino.kernels`' business.
"""

from __future__ import annotations

import argparse
import runpy
import traceback
from pathlib import Path

from rhino.errors import RhinoError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --kernel and --kernels."""
    parser.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="TARGET=RULE",
        help="how calls of a custom-call target can be split, as in 'my_call=b s d, d e -> b s e'; may be repeated",
    )
    parser.add_argument(
        "--kernels",
        metavar="FILE.py",
        help="a Python file that calls rhino.kernels.register, for sums, sizes and costs",
    )


def register_given(args: argparse.Namespace) -> None:
    """Registers what the options say.

    Raises:
      RhinoError: an option is no rule, or the file fails; names its line.
    """
    from rhino.kernels import register

    for text in args.kernel:
        target, equals, rule = text.partition("=")
        if not equals or not target.strip():
            raise RhinoError(f"--kernel '{text}' is not TARGET=RULE", "write --kernel 'my_call=b s d, d e -> b s e'")
        register(target.strip(), rule.strip())
    if args.kernels:
        if not Path(args.kernels).is_file():
            raise RhinoError(f"{args.kernels}: no such file", "give a Python file that calls rhino.kernels.register")
        try:
            runpy.run_path(args.kernels)
        except RhinoError as error:
            raise RhinoError(f"{_place(error, args.kernels)}: {error.message}", error.remedy) from error
        except Exception as error:  # a user's file may fail in any way
            raise RhinoError(f"{_place(error, args.kernels)}: {type(error).__name__}: {error}") from error


def _place(error: BaseException, path: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else path

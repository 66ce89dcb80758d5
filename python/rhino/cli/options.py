"""The options of a request as flags of a command, and what a user gave by them.

Owns how an option becomes a flag. Which options there are, and what they mean, is `rhino.request`'s.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rhino.request import Asked, CompileRequest, PlanRequest


def add(parser: argparse.ArgumentParser, options: Mapping[str, Asked], defaults: PlanRequest | CompileRequest) -> None:
    """Add a flag for every option that a user may give."""
    for name, option in options.items():
        flag = f"--{name.replace('_', '-')}"
        if option.flag is bool:
            parser.add_argument(flag, action="store_true", help=option.doc)
        elif option.metavar:
            parser.add_argument(
                flag, type=option.flag, choices=option.choices or None,
                metavar=None if option.choices else option.metavar,
                help=f"{option.doc} (default: {getattr(defaults, name)})" if option.choices else option.doc,
            )  # fmt: skip


def given(args: argparse.Namespace, options: Mapping[str, Asked]) -> dict[str, Any]:
    """What the flags of these options say, by the options' names."""
    return {name: getattr(args, name) for name, option in options.items() if option.metavar}

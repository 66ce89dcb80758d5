"""The texts rhino-opt prints about itself: --help, --list-passes, --show-dialects, --version.

Owns their layout. Reads the passes' documentation from their source, so --help loads no MLIR.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rhino.cli.opt_arguments import FLAGS
from rhino.passes.catalog import all_docs
from rhino.passes.native import GROUPS
from rhino.passes.registry import TABLE

_USAGE = """\
USAGE: rhino-opt [FILE|-] [--pass-pipeline='builtin.module(...)' | --PASS[=\"option=value ..\"] ..] [-o FILE] [flags]

Reads an MLIR module (text or bytecode), runs passes over it in the order given, and prints the result.
Python passes (rhino-*) and C++ passes (sdy-*, stablehlo-*, cse, ..) mix freely. Exit code: 0, or 1 after an error.

EXAMPLE: rhino-opt step.mlir --inline --rhino-classify-args --rhino-plan-sharding=\"topology=dgx-h100:1 level=O1\"
"""
_KNOWN_DIALECTS = """affine arith builtin cf chlo complex func gpu llvm math memref mpmd nvgpu nvvm scf sdy shape
stablehlo tensor ub vector vhlo""".split()


def help_text() -> str:
    """The text of --help: usage, flags by group, every pass with its options."""
    return "\n".join([_USAGE, *_flags(), *_passes()])


def _flags() -> Iterator[str]:
    for group, flags in FLAGS.items():
        yield f"{group}:"
        for name, flag in flags.items():
            dashes = "-" if len(name) == 1 else "--"
            value = f"[={flag.value}]" if flag.optional else f"={flag.value}" if flag.value else ""
            yield _entry(f"{dashes}{name}{value}", flag.doc, 44)
        yield ""


def _passes() -> Iterator[str]:
    yield "Rhino passes:"
    for doc in all_docs():
        yield _entry(f"--{doc.name}", doc.summary, 44)
        for option in doc.options:
            meaning = option.doc
            if option.choices:
                meaning += f" ({', '.join(option.choices)})"
            if option.default not in ("", (), None):
                default = str(option.default).lower() if isinstance(option.default, bool) else option.default
                meaning += f" [default {default}]"
            kind = {"tuple[str, ...]": "list", "tuple[int, ...]": "list of int"}.get(option.type, option.type)
            yield _entry(f"    {option.name}=<{kind}>", meaning, 44)
    for group, passes in GROUPS.items():
        yield f"\n{group} passes:"
        for name, sentence in passes.items():
            yield _entry(f"--{name}", sentence, 44)


def _entry(left: str, right: str, width: int) -> str:
    """`  left   right`, wrapped; the right part starts on a line of its own when the left is too long."""
    lines = textwrap.wrap(right, 112 - width) or [""]
    head = f"  {left}"
    first = f"{head:<{width}}{lines[0]}" if len(head) < width else f"{head}\n{' ' * width}{lines[0]}"
    return "\n".join([first.rstrip(), *(" " * width + line for line in lines[1:])])


def pass_list() -> str:
    """The pass names, one a line."""
    return "\n".join([*TABLE, *(name for group in GROUPS.values() for name in group)])


def dialect_list() -> str:
    """The dialects a module may use, one a line."""
    from rhino.dialect.context import make_context

    context = make_context()
    found = []
    for name in _KNOWN_DIALECTS:
        try:
            context.get_dialect_descriptor(name)
        except ValueError:
            continue
        found.append(name)
    return "\n".join([*found, "rhino (attributes only, see --rhino-verify)"])


def version_text() -> str:
    """The versions of rhino and of jaxlib, which brings MLIR."""
    from importlib.metadata import PackageNotFoundError, version  # --help does without

    import rhino

    try:
        jaxlib = version("jaxlib")
    except PackageNotFoundError:
        jaxlib = "not installed"
    return f"rhino {rhino.__version__}\njaxlib {jaxlib}"

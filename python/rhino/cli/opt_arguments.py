"""The command line of rhino-opt: its flags, and the passes named as flags in the order given.

Owns mlir-opt's conventions (one dash or two, `--flag=value`, passes as flags). Loads neither MLIR nor any pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rhino.errors import RhinoError
from rhino.passes.native import PASSES as NATIVE_PASSES
from rhino.passes.registry import TABLE, suggest


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `value` names its argument in --help, empty for a switch; `optional`: it may be left out."""

    doc: str
    value: str = ""
    optional: bool = False


# Group -> {flag: Flag}, as --help prints them.
FLAGS: dict[str, dict[str, Flag]] = {
    "Input and output": {
        "o": Flag("write the result to FILE instead of standard output", "FILE"),
        "split-input-file": Flag(
            "process the parts between lines of the marker (`// -----`) one by one", "MARKER", True
        ),
        "function": Flag("have the function NAME be @main, the one that passes work on", "NAME"),
        "allow-unregistered-dialect": Flag("accept operations and attributes of unknown dialects"),
        "output-split-marker": Flag("what separates the outputs of the parts (`// -----`)", "MARKER"),
        "emit-bytecode": Flag("write MLIR bytecode instead of text"),
        "emit-portable-artifact": Flag(
            "write a portable artifact of StableHLO's VERSION or the present", "VERSION", True
        ),
        "mlir-print-op-generic": Flag("print operations in their generic form"),
        "mlir-print-debuginfo": Flag("print locations"),
        "mlir-pretty-debuginfo": Flag("print locations in a form for people, which cannot be parsed"),
        "mlir-print-local-scope": Flag("print attributes inline, without aliases"),
        "mlir-print-skip-regions": Flag("print operations without their regions"),
        "mlir-use-nameloc-as-prefix": Flag("name values after their named locations"),
        "mlir-elide-elementsattrs-if-larger": Flag("elide constants with more elements than N", "N"),
        "mlir-elide-resource-strings-if-larger": Flag("elide resources with more characters than N", "N"),
    },
    "Passes": {
        "pass-pipeline": Flag("run a pipeline, 'builtin.module(rhino-verify,func.func(cse))'", "TEXT"),
        "verify-each": Flag("verify the module after each pass (default true)", "BOOL", True),
        "dump-pass-pipeline": Flag("print the pipeline on standard error before running it"),
        "mlir-timing": Flag("report the time each pass takes on standard error"),
        "mlir-pass-statistics": Flag("report what the Python passes counted on standard error"),
    },
    "Looking at the IR (on standard error)": {
        "mlir-print-ir-before": Flag("print the module before these passes", "PASS,.."),
        "mlir-print-ir-after": Flag("print the module after these passes", "PASS,.."),
        "mlir-print-ir-before-all": Flag("print the module before every pass"),
        "mlir-print-ir-after-all": Flag("print the module after every pass"),
        "mlir-print-ir-after-change": Flag("with the flags above: only after passes that changed the module"),
        "mlir-print-ir-after-failure": Flag("print the module after a pass that failed"),
        "mlir-print-ir-module-scope": Flag("accepted for compatibility: dumps always show the whole module"),
    },
    "Diagnostics and information": {
        "verify-diagnostics": Flag(
            "check diagnostics against `expected-error {{..}}` comments instead of printing them; with only-expected, "
            "further ones are fine",
            "MODE",
            True,
        ),
        "debug": Flag("show the Python traceback of an error inside a pass"),
        "show-dialects": Flag("list the dialects"),
        "list-passes": Flag("list the names of the rhino passes and of the C++ passes documented below"),
        "version": Flag("print the versions of rhino and jaxlib"),
        "help": Flag("print this text"),
    },
}
_BY_NAME = {name: flag for group in FLAGS.values() for name, flag in group.items()}
_ALIASES = {"h": "help"}


@dataclass(slots=True)
class Arguments:
    """The parsed command line: flags by name (a switch has the value ""), passes as pipeline text, the input.

    `doubtful` has the error for each text of `passes` that is no pass documented here, should MLIR not know it either.
    `given` says whether the input was named.
    """

    flags: dict[str, str] = field(default_factory=dict)
    passes: list[str] = field(default_factory=list)
    doubtful: dict[str, RhinoError] = field(default_factory=dict)
    input: str = "-"
    given: bool = False

    def has(self, name: str) -> bool:
        """Whether a flag was given (and not as `=false`)."""
        return name in self.flags and self.flags[name] not in ("false", "0")

    @property
    def verify_mode(self) -> str:
        """How diagnostics are verified: "all", "only-expected", or "none". Raises RhinoError for another mode."""
        mode = self.flags.get("verify-diagnostics", "none")
        modes = {"": "all", "true": "all", "1": "all", "all": "all", "false": "none", "0": "none", "none": "none"}
        if mode not in modes and mode != "only-expected":
            raise RhinoError(f"--verify-diagnostics is '{mode}' but must be all or only-expected")
        return modes.get(mode, mode)

    def number(self, name: str) -> int | None:
        """The integer given to a flag, None without it. Raises RhinoError for text that is not one."""
        if name not in self.flags:
            return None
        try:
            return int(self.flags[name])
        except ValueError:
            raise RhinoError(f"--{name} is '{self.flags[name]}' but must be an integer") from None

    def names(self, name: str) -> frozenset[str]:
        """The pass names given to a flag."""
        return frozenset(part for part in self.flags.get(name, "").split(",") if part)


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Parse the command line.

    Raises:
      RhinoError: a missing value, or contradicting flags.
    """
    parsed = Arguments()
    inputs: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            inputs += rest
            break
        if word == "-" or not word.startswith("-"):
            inputs.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = _ALIASES.get(name, name)
        flag = _BY_NAME.get(name)
        if flag is None:
            text = f"{name}{{{value}}}" if value else name
            parsed.passes.append(text)
            # MLIR cannot list the C++ passes that jaxlib registers, only say whether one is among them.
            if name not in TABLE and name not in NATIVE_PASSES and not name.startswith(("rhino-", "sdy-")):
                remedy = suggest(name, [*TABLE, *NATIVE_PASSES, *_BY_NAME]) or "rhino-opt --help lists both"
                parsed.doubtful[text] = RhinoError(f"unknown flag or pass '{word}'", remedy)
            continue
        if flag.value and not flag.optional and not equals:
            if not rest:
                raise RhinoError(f"{word} needs a value", f"write --{name}={flag.value}")
            value = rest.pop(0)
        elif equals and not flag.value and value not in ("true", "false", "0", "1"):
            raise RhinoError(f"{word}: --{name} takes no value")
        parsed.flags[name] = value
    if len(inputs) > 1:
        raise RhinoError(
            f"more than one input: {', '.join(inputs)}", "rhino-opt reads one file; use --split-input-file"
        )
    if "pass-pipeline" in parsed.flags and parsed.passes:
        raise RhinoError("--pass-pipeline cannot be combined with passes as flags", "put all passes into the pipeline")
    if inputs:
        parsed.input, parsed.given = inputs[0], True
    return parsed


def print_style(arguments: Arguments) -> dict[str, Any]:
    """How to print modules, as arguments of MLIR's get_asm."""
    style: dict[str, Any] = {
        name: True
        for name, flag in (
            ("print_generic_op_form", "mlir-print-op-generic"),
            ("enable_debug_info", "mlir-print-debuginfo"),
            ("pretty_debug_info", "mlir-pretty-debuginfo"),
            ("use_local_scope", "mlir-print-local-scope"),
            ("skip_regions", "mlir-print-skip-regions"),
            ("use_name_loc_as_prefix", "mlir-use-nameloc-as-prefix"),
        )
        if arguments.has(flag)
    }
    if "pretty_debug_info" in style:
        style["enable_debug_info"] = True
    for name, flag in (
        ("large_elements_limit", "mlir-elide-elementsattrs-if-larger"),
        ("large_resource_limit", "mlir-elide-resource-strings-if-larger"),
    ):
        limit = arguments.number(flag)
        if limit is not None:
            style[name] = limit
    return style

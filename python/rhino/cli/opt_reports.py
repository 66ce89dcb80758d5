"""What rhino-opt prints around passes: the module before and after them, the time they took, their statistics.

Owns these formats, which are MLIR's. Everything goes to standard error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from jaxlib.mlir import ir, passmanager

from rhino.passes.pass_manager import Instrumentation, Step


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dumps to print: the passes named, or all; only after changes; after failures."""

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    before_all: bool = False
    after_all: bool = False
    only_changes: bool = False
    on_failure: bool = False

    @property
    def any(self) -> bool:
        """Whether there is anything to print at all."""
        return bool(self.before or self.after) or self.before_all or self.after_all or self.on_failure


class IRPrinter(Instrumentation):
    """Prints the module around passes. C++ passes asked for by `-all` are left to MLIR, which sees inside pipelines."""

    def __init__(self, selection: Selection, style: Mapping[str, Any], out: TextIO) -> None:
        self._selection = selection
        self._style = style
        self._out = out
        self._before_text: str | None = None

    def native(self, manager: passmanager.PassManager) -> None:
        chosen = self._selection
        if not (chosen.before_all or chosen.after_all or chosen.on_failure):
            return
        self._out.flush()
        manager.enable_ir_printing(
            print_before_all=chosen.before_all,
            print_after_all=chosen.after_all,
            print_module_scope=True,
            print_after_change=chosen.only_changes,
            print_after_failure=chosen.on_failure,
            large_elements_limit=self._style.get("large_elements_limit"),
            enable_debug_info=self._style.get("enable_debug_info", False),
            print_generic_op_form=self._style.get("print_generic_op_form", False),
        )

    def before(self, step: Step, module: ir.Module) -> None:
        if step.name in self._selection.before or (self._selection.before_all and step.rewrite is not None):
            self._dump(f"Before {step.name}", module)
        if self._selection.only_changes:
            self._before_text = module.operation.get_asm(enable_debug_info=True)

    def after(self, step: Step, module: ir.Module, failed: bool) -> None:
        python = step.rewrite is not None
        if failed:
            if self._selection.on_failure and python:
                self._dump(f"After {step.name} Failed", module)
            return
        if step.name not in self._selection.after and not (self._selection.after_all and python):
            return
        if not self._selection.only_changes or self._before_text != module.operation.get_asm(enable_debug_info=True):
            self._dump(f"After {step.name}", module)

    def _dump(self, title: str, module: ir.Module) -> None:
        print(f"// -----// IR Dump {title} //----- //", file=self._out)
        print(module.operation.get_asm(**self._style).rstrip() + "\n\n", file=self._out, flush=True)


class NativeStatistics(Instrumentation):
    """Switches on MLIR's own statistics for C++ passes."""

    def native(self, manager: passmanager.PassManager) -> None:
        manager.enable_statistics()


def _banner(title: str) -> str:
    line = "===" + "-" * 73 + "==="
    return f"{line}\n{title:^79}".rstrip() + f"\n{line}"


def timing_report(rows: Sequence[tuple[str, float]], total_s: float) -> str:
    """The table of --mlir-timing: seconds and share per row, what no row accounts for, and the total."""
    lines = [_banner("... Execution time report ..."), f"  Total Execution Time: {total_s:.4f} seconds", ""]
    lines.append("  ----Wall Time----  ----Name----")
    rest = total_s - sum(seconds for _, seconds in rows)
    for name, seconds in [*rows, ("Rest", rest), ("Total", total_s)]:
        lines.append(f"  {seconds:8.4f} ({seconds / total_s:6.1%})  {name}")
    return "\n".join(lines)


def statistics_report(python: Sequence[tuple[str, Mapping[str, int]]], native: str) -> str:
    """The table of --mlir-pass-statistics, of Python passes and then of C++ ones (`native`: what MLIR printed)."""
    lines = [_banner("... Pass statistics report ...")]
    for name, counts in python:
        lines.append(f"'{name}' Pass")
        lines += [f"  (S) {n:8d} {what}" for what, n in counts.items()]
    lines += [line for line in native.splitlines() if re.match(r"\s+\(S\)|\s*\S+Pass|'", line)]
    return "\n".join(lines)


def write_stderr(text: str) -> None:
    """Print a report."""
    print(text, file=sys.stderr, flush=True)

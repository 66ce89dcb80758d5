"""What rhino-opt prints around passes: the module before and after them, the time they took, their statistics.

Owns these formats, which are MLIR's. Everything goes to standard error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from jaxlib.mlir import ir, passmanager

from rhino.cli.opt_arguments import Arguments
from rhino.cli.opt_diagnostics import placed
from rhino.cli.supervised import show_native, task
from rhino.dialect import functions
from rhino.ir.diagnostics import position_of
from rhino.passes.pass_manager import Instrumentation, PassStep


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dumps to print: the passes named, or all; only after changes; after failures."""

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    before_all: bool = False
    after_all: bool = False
    only_changes: bool = False
    on_failure: bool = False

    @classmethod
    def of(cls, arguments: Arguments) -> Selection:
        """The dumps a command line asks for."""
        return cls(
            arguments.names("mlir-print-ir-before"),
            arguments.names("mlir-print-ir-after"),
            arguments.has("mlir-print-ir-before-all"),
            arguments.has("mlir-print-ir-after-all"),
            arguments.has("mlir-print-ir-after-change"),
            arguments.has("mlir-print-ir-after-failure"),
        )


class IRPrinter(Instrumentation):
    """Prints the module around passes. C++ passes asked for by `-all` are left to MLIR, which sees inside pipelines."""

    def __init__(self, selection: Selection, style: Mapping[str, Any], out: TextIO) -> None:
        self._selection = selection
        self._style = style
        self._out = out
        # Of the passes that are running: one may have others run.
        self._before: list[str] = []

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

    def before(self, step: PassStep, module: ir.Module) -> None:
        if step.name in self._selection.before or (self._selection.before_all and step.rewrite is not None):
            self._dump(f"Before {step.name}", module)
        if self._selection.only_changes:
            self._before.append(module.operation.get_asm(enable_debug_info=True))

    def after(self, step: PassStep, module: ir.Module, failed: bool) -> None:
        python = step.rewrite is not None
        before = self._before.pop() if self._selection.only_changes else None
        if failed:
            if self._selection.on_failure and python:
                self._dump(f"After {step.name} Failed", module)
            return
        if step.name not in self._selection.after and not (self._selection.after_all and python):
            return
        if before is None or before != module.operation.get_asm(enable_debug_info=True):
            self._dump(f"After {step.name}", module)

    def _dump(self, title: str, module: ir.Module) -> None:
        print(f"// -----// IR Dump {title} //----- //", file=self._out)
        print(module.operation.get_asm(**self._style).rstrip() + "\n\n", file=self._out, flush=True)


class Tasks(Instrumentation):
    """Names each pass for the process that supervises this one, and shows what C++ passes print, pass by pass."""

    def __init__(self, input_name: str) -> None:
        self._input_name = input_name
        self._running: list[str] = []

    def before(self, step: PassStep, module: ir.Module) -> None:
        # Where in a file of several parts: at its @main, or its first function.
        found = functions.find(module, "main") or next(iter(functions.all_functions(module)), module.operation)
        self._running.append(f"{placed(position_of(found), self._input_name)}: '{step.name}'")
        task(self._running[-1])

    def after(self, step: PassStep, module: ir.Module, failed: bool) -> None:
        show_native()
        self._running.pop()
        if self._running:  # the pass that had this one run
            task(self._running[-1])


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


def statistics_report(rows: Sequence[tuple[str, Mapping[str, int]]]) -> str:
    """The table of --mlir-pass-statistics. C++ passes have none: jaxlib is built without LLVM's counters."""
    lines = [_banner("... Pass statistics report ...")]
    for name, counts in rows:
        lines.append(f"'{name}' Pass")
        lines += [f"  (S) {n:8d} {what}" for what, n in counts.items()]
    return "\n".join(lines)

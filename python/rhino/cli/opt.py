"""rhino-opt: read a module, run passes, print it. mlir-opt's conventions over the pass registry.

Owns the flow from the command line to the exit code. Information flags load no MLIR; nothing here loads jax.
"""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rhino.cli.opt_arguments import Arguments, parse_arguments
from rhino.cli.opt_diagnostics import Printer, compare, expectations
from rhino.cli.opt_input import DEFAULT_MARKER, InputError, Part, read_parts
from rhino.errors import RhinoError
from rhino.passes.diagnostics import Diagnostic

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from rhino.passes.pass_manager import PassManager


def main(argv: Sequence[str] | None = None) -> int:
    """Run rhino-opt with the given arguments (the process's by default); returns 0, or 1 after an error."""
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        information = _information(arguments)
        if information is not None:
            print(information())
            return 0
        return _Run(arguments).run()
    except RhinoError as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        print(f"rhino-opt: error: {error.message}{remedy}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _information(arguments: Arguments) -> Callable[[], str] | None:
    """The function that makes the text asked for, if the command line only asks for information."""
    from rhino.cli import opt_help

    texts = {
        "help": opt_help.help_text,
        "version": opt_help.version_text,
        "list-passes": opt_help.pass_list,
        "show-dialects": opt_help.dialect_list,
    }
    return next((text for flag, text in texts.items() if arguments.has(flag)), None)


class _Run:
    """One run over one input."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.seconds: list[tuple[str, float]] = []
        self.statistics: list[tuple[str, dict[str, int]]] = []
        self.native_statistics = ""
        self.style = _style(arguments)

    def run(self) -> int:
        start = time.perf_counter()
        arguments = self.arguments
        marker = arguments.flags.get("split-input-file")
        try:
            parts = read_parts(arguments.input, None if marker is None else marker or DEFAULT_MARKER)
        except InputError as error:
            Printer(sys.stderr, error.diagnostic.position.file)(error.diagnostic)
            return 1
        outputs: list[bytes] = []
        succeeded = True
        for part in parts:
            passed, output = self.part(part)
            succeeded &= passed
            if output is not None:
                outputs.append(output)
        self.write((f"{marker or DEFAULT_MARKER}\n").encode().join(outputs), succeeded)
        self.report(time.perf_counter() - start)
        return 0 if succeeded else 1

    def part(self, part: Part) -> tuple[bool, bytes | None]:
        """Process one part: whether it went as it should, and its output, None when there is none."""
        reported: list[Diagnostic] = []
        printer = Printer(sys.stderr, part.name, {part.name: part.text})
        verifying = self.arguments.has("verify-diagnostics")
        output = self.process(part, reported.append if verifying else printer, printer)
        if not verifying:
            return output is not None, output
        wrong = compare(expectations(part.text, part.name), reported, part.name)
        for difference in wrong:
            printer(difference)
        return not wrong, output

    def process(self, part: Part, sink: Callable[[Diagnostic], None], printer: Printer) -> bytes | None:
        """Parse, run the passes and print; None after an error, which went to `sink`."""
        from jaxlib.mlir import ir

        from rhino.cli.opt_reports import IRPrinter, NativeStatistics, write_stderr
        from rhino.dialect.context import make_context
        from rhino.passes.pass_manager import PipelineError, native_diagnostics
        from rhino.passes.stderr import captured_stderr

        arguments = self.arguments
        context = make_context(arguments.has("allow-unregistered-dialect"))
        try:
            manager = self.pipeline(context)
        except PipelineError as error:
            printer.sources[error.diagnostics[0].position.file] = error.source
            for diagnostic in error.diagnostics:
                sink(diagnostic)
            return None
        if arguments.has("dump-pass-pipeline"):
            write_stderr(f"Pass Manager with {len(manager.steps)} passes:\n{manager}")
        start = time.perf_counter()
        try:
            with native_diagnostics(context, sink):
                module = part.parse(context)
        except ir.MLIRError:
            return None
        self.seconds.append(("Parser", time.perf_counter() - start))
        hooks = [IRPrinter(_selection(arguments), self.style, sys.stderr)]
        counting = arguments.has("mlir-pass-statistics")
        if counting:
            hooks.append(NativeStatistics())
        try:
            with captured_stderr() if counting else nullcontext() as said:
                result = manager.run(module, sink, hooks)
        except PipelineError as error:
            if arguments.has("debug") and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            return None
        self.native_statistics += said.text if said is not None else ""
        self.statistics += result.statistics
        self.seconds += result.timings_s
        start = time.perf_counter()
        output = self.serialize(module)
        self.seconds.append(("Output", time.perf_counter() - start))
        return output

    def pipeline(self, context: ir.Context) -> PassManager:
        """The passes asked for. Raises PipelineError."""
        from rhino.passes.pass_manager import PassManager

        flags = self.arguments.flags
        verify_each = flags.get("verify-each", "true") not in ("false", "0")
        if "pass-pipeline" in flags:
            return PassManager.parse(flags["pass-pipeline"], context, verify_each)
        manager = PassManager(context, verify_each)
        for text in self.arguments.passes:
            manager.add(text)
        return manager

    def serialize(self, module: ir.Module) -> bytes:
        """The module as text or bytecode."""
        if self.arguments.has("emit-bytecode"):
            buffer = io.BytesIO()
            module.operation.write_bytecode(buffer)
            return buffer.getvalue()
        text: str = module.operation.get_asm(**self.style)
        return text.rstrip("\n").encode() + b"\n"

    def write(self, data: bytes, succeeded: bool) -> None:
        """Write the output; a file named by -o is left alone after an error."""
        path = self.arguments.flags.get("o", "-")
        if path == "-":
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif succeeded:
            try:
                with open(path, "wb") as file:
                    file.write(data)
            except OSError as error:
                raise RhinoError(f"cannot write '{path}': {(error.strerror or str(error)).lower()}") from None

    def report(self, total_s: float) -> None:
        """Print the reports asked for."""
        from rhino.cli.opt_reports import statistics_report, timing_report, write_stderr

        if self.arguments.has("mlir-pass-statistics"):
            write_stderr(statistics_report(self.statistics, self.native_statistics))
        if self.arguments.has("mlir-timing"):
            write_stderr(timing_report(self.seconds, total_s))


def _style(arguments: Arguments) -> dict[str, Any]:
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


def _selection(arguments: Arguments) -> Any:
    """Which IR dumps were asked for."""
    from rhino.cli.opt_reports import Selection

    return Selection(
        arguments.names("mlir-print-ir-before"),
        arguments.names("mlir-print-ir-after"),
        arguments.has("mlir-print-ir-before-all"),
        arguments.has("mlir-print-ir-after-all"),
        arguments.has("mlir-print-ir-after-change"),
        arguments.has("mlir-print-ir-after-failure"),
    )


if __name__ == "__main__":
    sys.exit(main())

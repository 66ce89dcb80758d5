"""rhino-opt: read a module, run passes, print it. mlir-opt's conventions over the pass registry.

Owns the flow from the command line to the exit code. Information flags load no MLIR; nothing here loads jax.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rhino.cli.opt_arguments import Arguments, parse_arguments, print_style
from rhino.cli.opt_diagnostics import Printer, compare, expectations
from rhino.cli.opt_input import DEFAULT_MARKER, InputError, InputModule, read_parts
from rhino.cli.supervised import supervised, task
from rhino.errors import RhinoError, first_line
from rhino.ir.diagnostics import Diagnostic, Position

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from rhino.passes.pass_manager import PassManager


def main(argv: Sequence[str] | None = None) -> int:
    """Run rhino-opt with the given arguments, or supervised with the process's; returns 0, or 1 after an error."""
    if argv is None:
        given = sys.argv[1:]
        return supervised("rhino-opt", lambda: main(given), verbose="--debug" in given)
    try:
        arguments = parse_arguments(argv)
        information = _information(arguments)
        if information is not None:
            print(information())
            return 0
        return _OptRun(arguments).run()
    except RhinoError as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        print(f"rhino-opt: error: {error.message}{remedy}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rhino-opt: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _information(arguments: Arguments) -> Callable[[], str] | None:
    """The function that makes the text asked for, if the command line only asks for information."""
    texts = {
        "help": "help_text",
        "version": "version_text",
        "list-passes": "pass_list",
        "show-dialects": "dialect_list",
    }
    asked = next((name for flag, name in texts.items() if arguments.has(flag)), None)
    if asked is None:
        return None
    from rhino.cli import opt_help

    text: Callable[[], str] = getattr(opt_help, asked)
    return text


class _OptRun:
    """One run over one input."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.seconds: list[tuple[str, float]] = []
        self.statistics: list[tuple[str, dict[str, int]]] = []
        self.style = print_style(arguments)

    def run(self) -> int:
        start = time.perf_counter()
        arguments = self.arguments
        marker = arguments.flags.get("split-input-file")
        if not arguments.given and sys.stdin is not None and sys.stdin.isatty():
            raise RhinoError("no input", "give a .mlir file, or - to type the module; rhino-opt --help shows more")
        try:
            say = Printer(sys.stderr, arguments.input)
            parts = read_parts(arguments.input, None if marker is None else marker or DEFAULT_MARKER, say)
        except InputError as error:
            Printer(sys.stderr, error.diagnostic.position.file)(error.diagnostic)
            return 1
        prepared = self.prepare()
        if prepared is None:
            return 1
        outputs: list[bytes] = []
        succeeded = True
        for part in parts:
            passed, output = self.part(part, *prepared)
            succeeded &= passed
            # As mlir-opt does, so that the parts of the output are those of the input.
            outputs.append(output or b"")
        between = arguments.flags.get("output-split-marker", marker or DEFAULT_MARKER)
        self.write(f"{between}\n".encode().join(outputs), succeeded)
        self.report(time.perf_counter() - start)
        return 0 if succeeded else 1

    def prepare(self) -> tuple[PassManager, ir.Context] | None:
        """The passes asked for, in a fresh context; None when there are no such passes, which was said."""
        from rhino.dialect.context import make_context
        from rhino.passes.pass_manager import PassManager, PipelineError

        flags = self.arguments.flags
        context = make_context(self.arguments.has("allow-unregistered-dialect"))
        verify_each = flags.get("verify-each", "true") not in ("false", "0")
        try:
            # This process is supervised already, and what passes print on their way is wanted.
            if "pass-pipeline" in flags:
                manager = PassManager.parse(flags["pass-pipeline"], context, verify_each, isolate=False)
            else:
                manager = PassManager(context, verify_each, isolate=False)
                for text in self.arguments.passes:
                    self.add(text, manager)
        except PipelineError as error:
            file = error.diagnostics[0].position.file
            for diagnostic in error.diagnostics:
                Printer(sys.stderr, file, {file: error.source})(diagnostic)
            return None
        self.check_dumps(manager.names)
        if self.arguments.has("dump-pass-pipeline"):
            print(f"Pass Manager with {len(manager.steps)} passes:\n{manager}", file=sys.stderr, flush=True)
        return manager, context

    def check_dumps(self, passes: Sequence[str]) -> None:
        """Raise RhinoError where the module is to be printed around a pass that does not run."""
        for flag in ("mlir-print-ir-before", "mlir-print-ir-after"):
            for name in sorted(self.arguments.names(flag) - set(passes)):
                runs = ", ".join(dict.fromkeys(passes)) or "none"
                raise RhinoError(f"--{flag} names '{name}', which does not run", f"the passes that do: {runs}")

    def add(self, text: str, manager: PassManager) -> None:
        """Append a pass given as a flag, or raise PipelineError; RhinoError if it may as well be a mistyped flag."""
        from rhino.passes.pass_manager import PipelineError

        try:
            manager.add(text)
        except PipelineError as error:
            doubt = self.arguments.doubtful.get(text)
            if doubt is None or not error.diagnostics[0].message.startswith("unknown pass"):
                raise
            raise doubt from None

    def part(self, part: InputModule, manager: PassManager, context: ir.Context) -> tuple[bool, bytes | None]:
        """Process one part: whether it went as it should, and its output, None when there is none."""
        reported: list[Diagnostic] = []
        printer = Printer(sys.stderr, part.name, {part.name: part.text}, part.first)
        mode = self.arguments.verify_mode
        verifying = mode != "none"
        output = self.process(part, manager, context, reported.append if verifying else printer)
        if not verifying:
            return output is not None, output
        wrong = compare(expectations(part.text, part.name), reported, part.name, mode == "only-expected")
        for difference in wrong:
            printer(difference)
        return not wrong, output

    def process(
        self, part: InputModule, manager: PassManager, context: ir.Context, sink: Callable[[Diagnostic], None]
    ) -> bytes | None:
        """Parse, run the passes and print; None after an error, which went to `sink`."""
        from jaxlib.mlir import ir

        from rhino.cli.opt_reports import IRPrinter, Selection, Tasks
        from rhino.dialect.functions import make_main
        from rhino.passes.pass_manager import PipelineError, native_diagnostics

        arguments = self.arguments
        start = time.perf_counter()
        task(f"{part.name}: parsing")
        reported: list[Diagnostic] = []

        def hear(diagnostic: Diagnostic) -> None:
            reported.append(diagnostic)
            sink(diagnostic)

        try:
            with native_diagnostics(context, hear):
                module = part.parse(context)
            if arguments.flags.get("function"):
                make_main(module, arguments.flags["function"])
        except ir.MLIRError as error:
            if not reported:  # the bytecode's readers do not always say why
                sink(Diagnostic("error", first_line(error), Position(part.name)))
            return None
        self.seconds.append(("Parser", time.perf_counter() - start))
        hooks = [IRPrinter(Selection.of(arguments), self.style, sys.stderr), Tasks(part.name)]
        try:
            result = manager.run(module, sink, hooks)
        except PipelineError as error:
            if arguments.has("debug") and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            return None
        self.statistics += result.statistics
        self.seconds += result.timings_s
        start = time.perf_counter()
        task(f"{part.name}: writing the result")
        output = self.serialize(module)
        self.seconds.append(("Output", time.perf_counter() - start))
        return output

    def serialize(self, module: ir.Module) -> bytes:
        """The module as text, bytecode or a portable artifact."""
        if self.arguments.has("emit-portable-artifact"):
            from rhino.dialect.context import to_portable

            return to_portable(module, self.arguments.flags["emit-portable-artifact"])
        if self.arguments.has("emit-bytecode"):
            from rhino.dialect.context import to_bytecode

            return to_bytecode(module)
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
                reason = (error.strerror or str(error)).lower()
                raise RhinoError(f"cannot write '{path}': {reason}", "give a file in a folder that exists") from None

    def report(self, total_s: float) -> None:
        """Print the reports asked for."""
        from rhino.cli.opt_reports import statistics_report, timing_report

        if self.arguments.has("mlir-pass-statistics"):
            print(statistics_report(self.statistics), file=sys.stderr)
        if self.arguments.has("mlir-timing"):
            print(timing_report(self.seconds, total_s), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

"""Runs a list of passes, Python ones and C++ ones, over a module, and turns every failure into one located error.

Owns resolving names to passes, the order of steps, verification between them and their timing and statistics. A step
is one pass: each C++ pass gets a pass manager of MLIR's own, so that guards see the module as it is when the pass
starts.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from jaxlib.mlir import ir, passmanager

from rhino.dialect.verify import verify
from rhino.errors import RhinoError, first_line
from rhino.ir.diagnostics import (
    CURRENT_OPERATION,
    Diagnostic,
    PassError,
    PassLog,
    Position,
    Sink,
    describe_exception,
    from_mlir,
    make_diagnostic,
)
from rhino.ir.session import ALONE, Session
from rhino.passes import guards, native
from rhino.passes.isolated import run_isolated
from rhino.passes.pipeline_text import Element, PipelineSyntaxError, parse_elements, parse_options, parse_pipeline
from rhino.passes.registry import LIST, TABLE, Pass, PassPipeline, build, load, suggest
from rhino.passes.stderr import captured_stderr

PIPELINE_FILE = "<pass-pipeline>"


@contextmanager
def _without_collector() -> Iterator[None]:
    """Holds off the search for cyclic garbage, of which passes make none: over 100,000 ops, a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class PipelineError(RhinoError):
    """A pass failed, or the pipeline cannot be built. `diagnostics` holds every error reported, first one first."""

    def __init__(self, diagnostics: Sequence[Diagnostic], source: str = "") -> None:
        first = diagnostics[0]
        # Remedies are notes at the same place; others point elsewhere.
        notes = [note for note in first.notes if not note.message.startswith(CURRENT_OPERATION)]
        here = [note for note in notes if note.position == first.position] or notes
        super().__init__(str(first), "; ".join(note.message for note in here))
        self.diagnostics = tuple(diagnostics)
        self.source = source


@dataclass(frozen=True, slots=True)
class PassStep:
    """One pass of the pipeline. `rewrite` is None for a C++ pass, whose text, nesting included, is `text`."""

    name: str
    text: str
    rewrite: Pass | None = None

    def native_manager(self, context: ir.Context) -> passmanager.PassManager:
        """MLIR's pass manager for this step alone (C++ passes only)."""
        return passmanager.PassManager.parse(f"builtin.module({self.text})", context)


class Instrumentation:
    """Looks at the module around each step, for IR printing. Subclasses override what they need."""

    def native(self, manager: passmanager.PassManager) -> None:
        """Called with MLIR's pass manager of each C++ step, to switch its own instrumentation on."""

    def before(self, step: PassStep, module: ir.Module) -> None:
        """Called before each step."""

    def after(self, step: PassStep, module: ir.Module, failed: bool) -> None:
        """Called after each step."""


@dataclass(slots=True)
class RunResult:
    """What a run reports: per step its name and seconds, its statistics, and all diagnostics that are not errors."""

    timings_s: list[tuple[str, float]] = field(default_factory=list)
    statistics: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


class PassManager:
    """An ordered list of passes over modules of one context.

    >>> PassManager(context).add("inline").add(ClassifyArgs()).add("func.func(canonicalize)").run(module)
    """

    def __init__(self, context: ir.Context, verify_each: bool = True, isolate: bool = True) -> None:
        """An empty manager. With `isolate`, C++ passes that may end the process get one of their own."""
        self._context = context
        self._verify_each = verify_each
        self._isolate = isolate
        self._steps: list[PassStep] = []

    @classmethod
    def parse(cls, text: str, context: ir.Context, verify_each: bool = True, isolate: bool = True) -> PassManager:
        """The manager for a whole pipeline, `builtin.module(...)`. Raises PipelineError."""
        manager = cls(context, verify_each, isolate)
        manager._add_text(text, parse_pipeline)
        return manager

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the passes that run, and of those that they may have run, each once."""
        found: dict[str, None] = {}
        pending = [(step.name, step.rewrite.runs if step.rewrite else ()) for step in reversed(self._steps)]
        while pending:
            name, inner = pending.pop()
            found[name] = None
            pending += [(other, load(other).runs if other in TABLE else ()) for other in reversed(inner)]
        return tuple(found)

    def like(self) -> PassManager:
        """An empty one that runs passes as this one does."""
        return PassManager(self._context, self._verify_each, self._isolate)

    @property
    def steps(self) -> tuple[PassStep, ...]:
        """The passes in the order they run, pipelines expanded."""
        return tuple(self._steps)

    def __str__(self) -> str:
        """The pipeline as text that `parse` accepts."""
        return f"builtin.module({','.join(step.text for step in self._steps)})"

    def add(self, item: Pass | str) -> PassManager:
        """Append a pass object, or the passes in a piece of pipeline text; returns the manager itself.

        A C++ pass restricted to functions is nested in `func.func` when the text does not say so.

        Raises:
          PipelineError: the text is malformed, or names an unknown pass or option.
        """
        if isinstance(item, str):
            self._add_text(item, parse_elements)
        elif isinstance(item, PassPipeline):
            for part in item.expand():
                self.add(part)
        else:
            self._steps.append(PassStep(item.name, str(item), item))
        return self

    def run(
        self,
        module: ir.Module,
        sink: Sink | None = None,
        instrumentations: Sequence[Instrumentation] = (),
        session: Session = ALONE,
    ) -> RunResult:
        """Run all passes on the module, in place.

        Args:
          module: the module; after a failure it is whatever the failing pass left.
          sink: called with each diagnostic as it appears; without it they are in the result, or in the error.
          instrumentations: called around every step.
          session: what the passes plan for, and until when.

        Raises:
          PipelineError: a pass failed; later ones did not run.
        """
        result = RunResult()
        errors: list[Diagnostic] = []

        def collect(diagnostic: Diagnostic) -> None:
            (errors if diagnostic.severity == "error" else result.diagnostics).append(diagnostic)
            if sink:
                sink(diagnostic)

        with _without_collector(), native_diagnostics(self._context, collect), self._context:
            run = _Run(self, collect, errors, result, instrumentations)
            for step in self._steps:
                _, cause = run.step(step, module, session)
                if errors:
                    raise PipelineError(errors) from cause
        return result

    def run_step(self, step: PassStep, module: ir.Module, log: PassLog, run: _Run) -> Exception | None:
        """Run one step; its errors go to the run. Returns the exception that ended it, if one did."""
        collect = run.collect
        try:
            if step.rewrite is not None:
                step.rewrite.run(module, log)
                if log.statistics:
                    run.result.statistics.append((step.name, log.statistics))
                if self._verify_each and not log.failed and not (log.unchanged and run.verified):
                    module.operation.verify()
                    verify(module, log)
                    run.verified = True
            else:
                guards.check(step.text, module)
                if self._isolate and guards.may_end_the_process(step.text):
                    run_isolated(step.name, step.text, module, collect, self._verify_each)
                    return None
                manager = step.native_manager(self._context)
                manager.enable_verifier(self._verify_each)
                for hook in run.hooks:
                    hook.native(manager)
                manager.run(module.operation)
        except PassError as error:
            collect(error.diagnostic)
            return error
        except ir.MLIRError as error:
            if not run.errors:  # the handler saw nothing: say at least which pass it was
                collect(make_diagnostic("error", log.blame(error), f"'{step.name}' failed: {first_line(error)}"))
            return error
        except Exception as error:  # a pass must never end the process with a traceback
            message, notes = describe_exception(error)
            if f"'{step.name}'" not in message:
                message = f"'{step.name}': {message}"
            collect(make_diagnostic("error", log.blame(error), message, notes))
            return error
        return None

    def _add_text(self, text: str, parse: Callable[[str], tuple[Element, ...]]) -> None:
        try:
            for element in parse(text):
                self._add_element(element, (), text)
        except PipelineSyntaxError as error:
            at = Position(PIPELINE_FILE, 1, error.column)
            notes = (Diagnostic("note", error.remedy, at),) if error.remedy else ()
            raise PipelineError([Diagnostic("error", error.message, at, notes)], error.text) from None

    def _add_element(self, element: Element, nest: tuple[str, ...], text: str) -> None:
        if element.children is not None:
            for child in element.children:
                self._add_element(child, (*nest, element.name), text)
        elif element.name in TABLE:
            if any(op != "builtin.module" for op in nest):
                message = f"'{element.name}' runs on 'builtin.module', not on '{nest[-1]}'"
                raise PipelineSyntaxError(message, text, element.column)
            try:
                self.add(build(element.name, parse_options(element.options)))
            except PipelineError:  # from inside a pipeline, with its own text
                raise
            except PipelineSyntaxError as error:
                offset = text.find(element.options, element.column) if element.options else 0
                raise PipelineSyntaxError(error.message, text, offset + error.column, error.remedy) from None
            except RhinoError as error:
                raise PipelineSyntaxError(error.message, text, element.column, error.remedy) from None
        else:
            self._add_native(element, nest, text)

    def _add_native(self, element: Element, nest: tuple[str, ...], text: str) -> None:
        bare = element.name + (f"{{{element.options}}}" if element.options else "")
        reason = self._reject(element.name, _wrap(bare, nest))
        if reason == native.NEEDS_FUNCTION and not nest:
            nest = ("func.func",)
            reason = self._reject(element.name, _wrap(bare, nest))
        if reason is not None:
            remedy = suggest(element.name, [*TABLE, *native.PASSES]) or LIST if reason.startswith("unknown") else ""
            raise PipelineSyntaxError(reason, text, element.column, remedy)
        reason = guards.check_order(_wrap(bare, nest), [earlier.text for earlier in self._steps])
        if reason is not None:
            raise PipelineSyntaxError(reason, text, element.column)
        self._steps.append(PassStep(element.name, _wrap(bare, nest)))

    def _reject(self, name: str, wrapped: str) -> str | None:
        """Why MLIR does not accept a C++ pass, in one line; None if it does."""
        with captured_stderr() as said:  # LLVM's option parser writes the reason there and nowhere else
            try:
                passmanager.PassManager.parse(f"builtin.module({wrapped})", self._context)
                return None
            except ValueError as error:
                text = str(error)
        return native.reason(name, text, said.text)


@dataclass(slots=True)
class _Run:
    """One run of a manager over a module, or within it that of a pipeline which one of its passes has it run.

    `collect` takes each diagnostic; the errors among them are in `errors`. `verified`: the module was, so that a pass
    that leaves it as it is needs no other look at it.
    """

    manager: PassManager
    collect: Sink
    errors: list[Diagnostic]
    result: RunResult
    hooks: Sequence[Instrumentation]
    verified: bool = False

    def step(self, step: PassStep, module: ir.Module, session: Session) -> tuple[PassLog, Exception | None]:
        """Run one step with all that looks at it; its log, and the exception that ended it, if one did."""
        for hook in self.hooks:
            hook.before(step, module)
        timings = self.result.timings_s
        at, start = len(timings), time.perf_counter()
        log = PassLog(self.collect, module.operation.location, session)
        if step.rewrite is not None:
            log.pipeline = partial(self.pipeline, step.rewrite, log)
        cause = self.manager.run_step(step, module, log, self)
        # Without what the passes took that it had run, which follow it.
        inner_s = sum(seconds for _, seconds in timings[at:])
        timings.insert(at, (step.name, time.perf_counter() - start - inner_s))
        for hook in self.hooks:
            hook.after(step, module, bool(self.errors))
        return log, cause

    def pipeline(
        self, by: Pass, log: PassLog, passes: Sequence[Pass | str], module: ir.Module, session: Session
    ) -> None:
        """Run passes for another that has this log; what ends them is raised to it. See `Pass.run_pipeline`."""
        manager, errors = self.manager.like(), list[Diagnostic]()

        def collect(diagnostic: Diagnostic) -> None:
            (errors.append if diagnostic.severity == "error" else self.collect)(diagnostic)

        inner = _Run(manager, collect, errors, self.result, self.hooks)
        for item in passes:
            manager.add(item)
        for step in manager.steps:
            assert step.name in by.runs, f"'{by.name}' does not say that it runs '{step.name}'"
            inner_log, cause = inner.step(step, module, session)
            if cause is not None:
                with log.at(inner_log.blame(cause)):
                    raise cause
            if errors:
                raise PassError.of(errors[0])


def _wrap(text: str, nest: Sequence[str]) -> str:
    for op in reversed(nest):
        text = f"{op}({text})"
    return text


@contextmanager
def native_diagnostics(context: ir.Context, sink: Sink) -> Iterator[None]:
    """Send what the C++ side of a context reports to `sink` while the block runs."""

    def handle(diagnostic: ir.Diagnostic) -> bool:
        sink(from_mlir(diagnostic))
        return True

    handler = context.attach_diagnostic_handler(handle)
    try:
        yield
    finally:
        handler.detach()


__all__ = ["Instrumentation", "PassManager", "PassStep", "PipelineError", "RunResult", "native_diagnostics"]

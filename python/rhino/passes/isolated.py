"""Runs a C++ pass in a process of its own, which it may end; the caller gets the module and one error, as of any pass.

Owns the child and what goes in and comes out. Not for passes that planning runs: a child costs half a second.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxlib.mlir import ir, passmanager

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_bytes, replace_contents, to_bytecode
from rhino.errors import first_line
from rhino.ir.diagnostics import Diagnostic, PassError, Sink, from_mlir
from rhino.passes.stderr import epitaph

_REMEDY = "run before it what precedes it in Shardy's own pipelines: it relies on what these passes leave"


def run_isolated(name: str, text: str, module: ir.Module, sink: Sink, verify: bool) -> None:
    """Run one C++ pass on a module, in place; what it reports goes to `sink`.

    Args:
      name: the pass.
      text: the same with its options and nesting, as in a pipeline.
      module: becomes what the pass leaves.
      sink: called with each diagnostic.
      verify: whether the module is verified afterwards.

    Raises:
      PassError: it ended its process, or failed without a word; at @main, or at the module.
    """
    where = functions.find(module, "main") or module.operation
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "given"), Path(folder, "made")
        unknown = module.context.allow_unregistered_dialects
        given.write_bytes(pickle.dumps((text, to_bytecode(module), unknown, verify)))
        program = "import sys; from rhino.passes.isolated import work; work(*sys.argv[1:])"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", program, str(given), str(made)],
            env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
        said = done.stderr.decode(errors="replace")
        if done.returncode < 0:
            raise PassError(where, f"'{name}': {epitaph(-done.returncode, said)[1]}", [_REMEDY])
        sys.stderr.write(said)  # what the pass printed
        if done.returncode:
            raise PassError(where, f"'{name}' could not be started in a process of its own")
        reported, bytecode, failure = pickle.loads(made.read_bytes())
    for diagnostic in reported:
        sink(diagnostic)
    if not failure:
        replace_contents(module, bytecode)
    elif all(diagnostic.severity != "error" for diagnostic in reported):
        raise PassError(where, f"'{name}' failed: {failure}")


def work(given: str, made: str) -> None:
    """The child: runs the pass that the file `given` has, and writes what came of it to the file `made`."""
    text, bytecode, unknown, verify = pickle.loads(Path(given).read_bytes())
    context = make_context(unknown)
    reported: list[Diagnostic] = []

    def hear(diagnostic: ir.Diagnostic) -> bool:
        reported.append(from_mlir(diagnostic))
        return True

    module, failure = parse_bytes(bytecode, context), ""
    handler = context.attach_diagnostic_handler(hear)
    try:
        manager = passmanager.PassManager.parse(f"builtin.module({text})", context)
        manager.enable_verifier(verify)
        manager.run(module.operation)
    except ir.MLIRError as error:
        failure = first_line(error)
    finally:
        handler.detach()
    Path(made).write_bytes(pickle.dumps((reported, to_bytecode(module), failure)))

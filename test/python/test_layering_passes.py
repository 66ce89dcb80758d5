"""Phases of passes know nothing of each other, and passes do not call passes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sources import RHINO, SOURCES, imports, package_of, tree, where

PHASES = sorted(path.name for path in (RHINO / "passes").iterdir() if (path / "__init__.py").is_file())


def names_of(path: Path) -> Iterator[tuple[int, str]]:
    """The modules of a file's imports, and those that it names in text, as tables of what is loaded later do."""
    yield from imports(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.:]+", node.value):
            yield node.lineno, node.value.partition(":")[0]


def phase_of(name: str) -> str:
    """The phase of passes that a module is of, or empty."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["rhino", "passes"] and parts[2:] and parts[2] in PHASES else ""


def test_a_phase_of_passes_is_known_to_the_registry_alone() -> None:
    """Not to another phase, and to nothing else of the library: what they share is in `ir`, or where it is decided."""
    wrong = [
        f"{where(path, line)}: {name}"
        for path in SOURCES
        for line, name in names_of(path)
        if (phase := phase_of(name)) and package_of(path) != f"passes/{phase}" and path != RHINO / "passes/registry.py"
    ]
    assert len(PHASES) >= 6 and not wrong, "\n".join(wrong)


def runs_passes(parsed: ast.AST) -> list[int]:
    """Lines that call a pass, or MLIR's pass manager: `X.run(module, log)`, `PassManager.parse(..)`."""
    calls = [node for node in ast.walk(parsed) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return [
        node.lineno
        for node in calls
        if (node.func.attr == "run" and any("log" in ast.unparse(given).lower() for given in node.args))
        or ast.unparse(node.func).endswith("PassManager.parse")
    ]


def test_passes_do_not_call_passes() -> None:
    """They have the pass manager run them (`Pass.run_pipeline`), so that all that looks at passes sees them."""
    wrong = [
        where(path, line)
        for phase in PHASES
        for path in sorted((RHINO / "passes" / phase).glob("*.py"))
        for line in runs_passes(tree(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_calls_of_passes_and_names_of_phases_are_seen(tmp_path: Path) -> None:
    text = "Inline().run(module, log)\npassmanager.PassManager.parse(text).run(op)\nRewriter(main).run()\n"
    assert runs_passes(ast.parse(text)) == [1, 2]
    file = tmp_path / "table.py"
    file.write_text('import rhino.passes.registry\nTABLE = {"a": "rhino.passes.plan.estimate:Estimate"}\n')
    assert [phase_of(name) for _, name in names_of(file)] == ["", "", "plan"]

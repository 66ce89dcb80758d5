"""The rules between packages, which keep planning fast to test, `rhino-opt` fast to start, and upgrades of jax local.

Each rule is checked on the source (nothing hides in a function) and, where it is about what is loaded, in a process.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from sources import OURS, RHINO, ROOT, SOURCES, imports, package_of, tree, where, within

PLANNING = (
    "schema", "program", "machine", "sharding", "microbatch", "recompute", "pipeline", "reshard", "kernels", "solver",
    "xla",
)  # fmt: skip
# Modules without a promise to stay as they are; besides them, any name with a leading underscore under `jax`.
PRIVATE_ROOTS = (
    "jax._src",
    "jax.interpreters",
    "jaxlib._jax",
    "jaxlib.xla_client",
    "jaxlib.xla_extension",
)
# The only files that may use jax's private modules.
# The differential test takes jax's own test programs, which are only there.
PRIVATE_HOMES = [*sorted((RHINO / "compile").glob("_jax*.py")), ROOT / "bench/differential/harnesses.py"]
MAX_LINES = 450


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    yield
    tree.cache_clear()


def loaded_by(statement: str) -> set[str]:
    """Top-level names and rhino's modules in `sys.modules` of a fresh process that ran `statement`."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_every_package_is_found() -> None:
    assert all((RHINO / name / "__init__.py").is_file() for name in PLANNING)
    assert PRIVATE_HOMES


@pytest.mark.parametrize("package", PLANNING)
def test_planning_package_imports_neither_jax_nor_mlir_in_its_source(package: str) -> None:
    allowed = ("rhino.errors", "rhino.deadline", "rhino.lazy", "rhino.request", *(f"rhino.{name}" for name in PLANNING))
    # Reading the devices of this machine is what these of `machine` are for; they import jax inside the function that
    # does it.
    experiments = ("experiments.py", "host_experiments.py", "kernel_experiments.py")
    measuring = ("local.py", "calibrate.py", "profiled.py", *experiments)
    measures_devices = {RHINO / "machine" / name for name in measuring}
    wrong = []
    for path in sorted((RHINO / package).rglob("*.py")):
        for line, name in imports(path):
            if name.split(".")[0] in ("jax", "jaxlib", "flax", "optax") and path not in measures_devices:
                wrong.append(f"{where(path, line)}: {name}")
            if within(name, "rhino") and not any(within(name, ok) for ok in allowed) and path not in measures_devices:
                wrong.append(f"{where(path, line)}: {name} is not a planning package")
    assert not wrong, "\n".join(wrong)


def test_planning_packages_load_neither_jax_nor_mlir() -> None:
    modules = [
        ".".join(("rhino", *path.relative_to(RHINO).with_suffix("").parts)).removesuffix(".__init__")
        for package in PLANNING
        for path in sorted((RHINO / package).rglob("*.py"))
    ]
    assert len(modules) >= 12
    loaded = loaded_by("\n".join(f"import {name}" for name in modules))
    assert set(modules) <= loaded
    assert not loaded & {"jax", "jaxlib", "flax", "optax"}


def test_import_rhino_is_light() -> None:
    loaded = loaded_by("import rhino")
    heavy = {"jax", "jaxlib", "numpy", "scipy", "highspy", "flax", "optax", "rich", "yaml"}
    assert not loaded & heavy


def test_rhino_opt_help_loads_neither_jax_nor_mlir() -> None:
    program = (
        "import contextlib\nfrom rhino.cli.opt import main\nwith contextlib.suppress(SystemExit):\n    main(['--help'])"
    )
    assert not loaded_by(program) & {"jax", "jaxlib", "importlib.metadata"}


def test_rhino_opt_runs_without_jax(tmp_path: Path) -> None:
    module = tmp_path / "empty.mlir"
    module.write_text("func.func @main() {\n  return\n}\n")
    program = (
        "import contextlib\nfrom rhino.cli.opt import main\n"
        f"with contextlib.suppress(SystemExit):\n    main([{str(module)!r}, '-o', {str(tmp_path / 'out.mlir')!r}])"
    )
    loaded = loaded_by(program)
    assert (tmp_path / "out.mlir").read_text().startswith("module")
    assert "jaxlib.mlir.ir" in loaded
    assert "jax" not in loaded


def test_private_modules_of_jax_are_imported_in_few_files() -> None:
    wrong = [
        f"{where(path, line)}: {name}"
        for path in OURS
        if path not in PRIVATE_HOMES
        for line, name in imports(path)
        if any(within(name, private) for private in PRIVATE_ROOTS)
        or (name.split(".")[0] == "jax" and any(part.startswith("_") for part in name.split(".")))
    ]
    assert not wrong, "\n".join(wrong)


def test_dialect_does_not_know_passes_nor_the_library() -> None:
    # What a plan, a task list and a row of memory is, what data is valid, and words are told beneath it.
    allowed = (
        "dialect", "errors", "pipeline.program.stage_memory", "pipeline.schedule.tasks", "plan.data",
        "program.data", "program.element_types", "program.operations", "reshard.data", "schema",
    )  # fmt: skip
    wrong = [
        f"{where(path, line)}: {name}"
        for path in sorted((RHINO / "dialect").rglob("*.py"))
        for line, name in imports(path)
        if within(name, "rhino") and not any(within(name, f"rhino.{module}") for module in allowed)
    ]
    assert not wrong, "\n".join(wrong)


def test_passes_do_not_know_the_api_the_compiler_nor_jax() -> None:
    above = ("rhino.api", "rhino.compile", "rhino.runtime", "rhino.report", "rhino.cli", "jax", "flax", "optax")
    wrong = [
        f"{where(path, line)}: {name}"
        for path in sorted((RHINO / "passes").rglob("*.py"))
        for line, name in imports(path)
        if any(within(name, package) for package in above)
    ]
    assert not wrong, "\n".join(wrong)


# What the map of CONTRIBUTING tells of imports from outside.
OUTSIDE = ("jax", "jaxlib", "highspy", "orbax")


def imported_package(name: str, packages: frozenset[str]) -> str:
    """The package of the map, or of OUTSIDE, that a module belongs to; empty for others and for what is everybody's."""
    first, *rest = name.split(".")
    if first != "rhino" or not rest:
        return first if first in OUTSIDE else ""
    inner = "/".join(rest[:2])
    if rest[0] in ("errors", "deadline", "lazy", "request"):
        return ""
    return inner if inner in packages else rest[0] if rest[0] in packages else "rhino"


def the_map() -> dict[str, list[str]]:
    """What each package of CONTRIBUTING's table imports."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("| package | owns | imports |\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    return {package.strip("`"): [word.strip("` ") for word in names.split(",")] for package, _, names in rows}


def test_the_map_of_packages_is_true() -> None:
    packages = frozenset(map(package_of, SOURCES))
    told = the_map()
    assert sorted(told) == sorted(packages), "CONTRIBUTING.md, Where things go: a row for each package"
    wrong = []
    for package in sorted(packages):
        sources = [path for path in SOURCES if package_of(path) == package]
        found = {imported_package(name, packages) for path in sources for _, name in imports(path)} - {"", package}
        known = {"nothing": set(), "everything": found}.get(told[package][0], set(told[package]))
        wrong += [f"{package} imports {name}, and the map does not say so" for name in sorted(found - known)]
        wrong += [f"{package} does not import {name}, as the map says" for name in sorted(known - found)]
    assert not wrong, "\n".join(wrong)


def circle(arrows: Mapping[str, Collection[str]]) -> list[str]:
    """One circle of nodes that each lead to the next, if there is any."""
    try:
        TopologicalSorter({node: set(targets) - {node} for node, targets in arrows.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_packages() -> None:
    """Imports inside functions, and those for types only, count too."""
    packages = frozenset(map(package_of, SOURCES))
    arrows: dict[str, set[str]] = {package: set() for package in packages}
    for path in SOURCES:
        arrows[package_of(path)] |= {imported_package(name, packages) for _, name in imports(path)} & packages
    assert circle(arrows) == []


def lines_of(path: Path, blocks: Callable[[ast.AST], bool]) -> set[int]:
    """The lines of the statements for which `blocks` is true."""
    found = (node for node in ast.walk(tree(path)) if isinstance(node, ast.stmt) and blocks(node))
    return {line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def for_types_only(path: Path) -> set[int]:
    return lines_of(path, lambda node: isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")


def in_functions(path: Path) -> set[int]:
    return lines_of(path, lambda node: isinstance(node, ast.FunctionDef))


# `Cluster.load`, `Cluster.local`: constructors of a class that the modules which make it share.
CONSTRUCTORS = RHINO / "machine/model.py"


def test_no_circle_of_modules() -> None:
    """Imports inside functions count too; two classes may name each other as types."""
    modules = {".".join(("rhino", *path.relative_to(RHINO).with_suffix("").parts)): path for path in SOURCES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    arrows: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        left_out = for_types_only(path) | (in_functions(path) if path == CONSTRUCTORS else set())
        for line, found in imports(path):
            target = found if found in modules else found.rpartition(".")[0]
            if line not in left_out and target != "rhino":
                arrows[name].add(target)
    assert circle(arrows) == []


def test_circles_are_seen() -> None:
    assert circle({"a": ["b"], "b": ["c"], "c": []}) == []
    assert sorted(set(circle({"a": ["b"], "b": ["c"], "c": ["b"]}))) == ["b", "c"]
    assert circle({"a": ["a"]}) == []


def test_packages_are_told_apart() -> None:
    assert package_of(RHINO / "program/data.py") == "program"
    assert package_of(RHINO / "errors.py") == "rhino"
    assert package_of(RHINO / "plan/file.py") == "plan"
    assert package_of(RHINO / "passes/plan/estimate.py") == "passes/plan"
    assert package_of(RHINO / "passes/registry.py") == "passes"
    assert package_of(RHINO / "dialect/sdy.py") == "dialect"
    packages = frozenset({"program", "passes", "passes/plan", "rhino"})
    names = (
        "rhino.program.data.Op",
        "rhino.passes.plan.x",
        "rhino.passes.registry",
        "rhino.progress.a",
        "rhino.errors.a",
    )
    assert [imported_package(name, packages) for name in names] == ["program", "passes/plan", "passes", "rhino", ""]
    assert [imported_package(name, packages) for name in ("jax.numpy", "numpy", "rhino.Cluster")] == [
        "jax",
        "",
        "rhino",
    ]


def complaints(path: Path) -> Iterator[str]:
    """What is wrong with the shape of one file."""
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        return
    name = path.relative_to(ROOT)
    if text.count("\n") > MAX_LINES:
        yield f"{name}: {text.count(chr(10))} lines, more than are read in one sitting; split it by what its parts know"
    if not ast.get_docstring(tree(path)):
        yield f"{name}: no docstring; say what the file owns and what it must not know"
    defines = any(not isinstance(node, ast.Expr | ast.ImportFrom | ast.Import) for node in tree(path).body)
    if defines and "from __future__ import annotations" not in text:
        yield f"{name}: no 'from __future__ import annotations'"


def test_files_are_short_and_say_what_they_own() -> None:
    wrong = [complaint for path in OURS for complaint in complaints(path)]
    assert not wrong, "\n".join(wrong)


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether `handler` catches everything and does nothing about it."""
    names = (
        [node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)] if handler.type else ["Exception"]
    )
    nothing = all(
        isinstance(node, ast.Pass | ast.Continue)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in handler.body
    )
    return bool({"Exception", "BaseException"} & set(names)) and nothing


def test_nothing_swallows_every_exception() -> None:
    wrong = []
    for path in OURS:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler) and swallows(node):
                wrong.append(where(path, node.lineno))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                broad = [a for a in node.args if isinstance(a, ast.Name) and a.id in ("Exception", "BaseException")]
                wrong += [where(path, node.lineno)] if broad else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source", ["except Exception:\n    pass", "except:\n    ...", "except (OSError, Exception):\n    continue"]
)
def test_a_swallowed_exception_is_recognised(source: str) -> None:
    parsed = ast.parse(f"for _ in ():\n  try:\n    f()\n  {source.replace(chr(10), chr(10) + '  ')}")
    assert [swallows(node) for node in ast.walk(parsed) if isinstance(node, ast.ExceptHandler)] == [True]


def test_a_handled_exception_is_not_called_swallowed() -> None:
    parsed = ast.parse("try:\n  f()\nexcept OSError:\n  pass\nexcept Exception as e:\n  report(e)")
    assert [swallows(node) for node in ast.walk(parsed) if isinstance(node, ast.ExceptHandler)] == [False, False]


def test_no_function_rebinds_a_module_global() -> None:
    wrong = [where(path, node.lineno) for path in OURS for node in ast.walk(tree(path)) if isinstance(node, ast.Global)]
    assert not wrong, "\n".join(wrong)

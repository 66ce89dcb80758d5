"""Passes as frozen dataclasses: options, text, registration, the chain of names, and documentation read from source."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from jaxlib.mlir import ir, passmanager

from rhino.cli.reference import PAGES
from rhino.dialect.context import make_context
from rhino.errors import RhinoError
from rhino.passes import catalog, native
from rhino.passes.registry import TABLE, Pass, PassLog, PassPipeline, build, load, option, options_of, register

ROOT = Path(__file__).resolve().parents[3]


@register
class Sample(Pass):
    """A pass with an option of every type."""

    name: ClassVar[str] = "rhino-sample"

    some_flag: bool = option(False, "a switch")
    count: int = 3
    ratio: float = 0.5
    mode: str = option("fast", "one of two", choices=("fast", "slow"))
    axes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Nothing."""


def convert(name: str, text: str) -> object:
    (spec,) = (o for o in options_of(Sample) if o.name == name)
    return spec.convert(text)


def test_options_come_from_the_fields() -> None:
    assert [(o.name, o.type, o.default) for o in options_of(Sample)] == [
        ("some-flag", "bool", False),
        ("count", "int", 3),
        ("ratio", "float", 0.5),
        ("mode", "str", "fast"),
        ("axes", "tuple[str, ...]", ()),
        ("sizes", "tuple[int, ...]", ()),
    ]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("some-flag", "", True),
        ("some-flag", "FALSE", False),
        ("some-flag", "1", True),
        ("count", "-7", -7),
        ("count", "0x10", 16),
        ("ratio", "1e-3", 1e-3),
        ("mode", "slow", "slow"),
        ("axes", "x, y", ("x", "y")),
        ("axes", "", ()),
        ("sizes", "2,4", (2, 4)),
    ],
)
def test_text_is_converted_by_type(name: str, text: str, value: object) -> None:
    assert convert(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("some-flag", "yes", "true or false"),
        ("count", "3.5", "an integer"),
        ("count", "", "an integer"),
        ("ratio", "fast", "a number"),
        ("mode", "medium", "one of fast, slow"),
        ("sizes", "2,x", "an integer"),
    ],
)
def test_ill_typed_text_is_refused(name: str, text: str, wanted: str) -> None:
    with pytest.raises(RhinoError, match=f"option '{name}' is .* must be {wanted}"):
        convert(name, text)


def test_text_of_a_pass_has_the_options_that_differ() -> None:
    assert str(Sample()) == "rhino-sample"
    made = Sample(some_flag=True, mode="slow", axes=("x", "y"), sizes=(2,))
    assert str(made) == "rhino-sample{some-flag=true mode=slow axes=x,y sizes=2}"
    assert hash(made) == hash(Sample(some_flag=True, mode="slow", axes=("x", "y"), sizes=(2,)))


def test_register_refuses_what_text_cannot_express() -> None:
    with pytest.raises(TypeError, match="must derive from Pass and define its name"):

        @register
        class Nameless(Pass):
            """Documented."""

    with pytest.raises(TypeError, match="must have a docstring"):

        @register
        class Silent(Pass):
            name: ClassVar[str] = "rhino-silent"

    with pytest.raises(TypeError, match=r"Odd.field has type dict\[str, int\]"):

        @register
        class Odd(Pass):
            """Documented."""

            name: ClassVar[str] = "rhino-odd"
            field: dict[str, int] | None = None


@pytest.mark.parametrize("name", TABLE)
def test_the_chain_of_names(name: str) -> None:
    """passes/<phase>/x_y.py - class XY - rhino-x-y - test/<phase>/x_y.mlir and x_y_invalid.mlir - heading."""
    cls = load(name)
    assert cls.name == name
    words = name.removeprefix("rhino-").split("-")
    assert cls.__name__ == "".join(word.capitalize() for word in words)
    heading = f"\n## {name}\n"
    assert heading in (ROOT / "docs/reference/passes.md").read_text()
    if issubclass(cls, PassPipeline):
        assert cls.__module__ == "rhino.passes.pipelines"
        return
    phase = cls.__module__.split(".")[2]
    assert cls.__module__ == f"rhino.passes.{phase}.{'_'.join(words)}"
    assert (ROOT / "python/rhino/passes" / phase / f"{'_'.join(words)}.py").is_file()
    for suffix in ("", "_invalid"):
        path = ROOT / "test" / phase / f"{'_'.join(words)}{suffix}.mlir"
        assert path.is_file(), path
        assert f"--{name}" in path.read_text(), path


@pytest.mark.parametrize("name", TABLE)
def test_documentation_is_complete_and_read_without_importing(name: str) -> None:
    doc = catalog.pass_doc(name)
    cls = load(name)
    assert doc.summary.endswith(".")
    assert {"Requires", "Ensures", "Example"} <= set(doc.sections)
    assert [(o.name, o.type, o.default, o.choices) for o in doc.options] == [
        (o.name, o.type, o.default, o.choices) for o in options_of(cls)
    ]
    assert all(o.doc for o in doc.options)


@pytest.mark.parametrize("page", PAGES)
def test_reference_pages_are_current(page: str) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert text == PAGES[page](), "run python -m rhino.cli.reference"


def test_docstring_sections() -> None:
    doc = catalog.parse_doc(
        "rhino-x",
        "Do it.\n\nMore\nwords.\n\nRequires: a thing.\n\nEnsures:\n  another\n    indented\n\n"
        "Options:\n  count: how many\n\nExample:\n  a\n  b",
        tuple(options_of(Sample))[1:2],
    )
    assert (doc.summary, doc.description) == ("Do it.", "More\nwords.")
    assert doc.sections == {"Requires": "a thing.", "Ensures": "another\n  indented", "Example": "a\nb"}
    assert doc.options[0].doc == "how many"


def test_unknown_passes_and_options() -> None:
    with pytest.raises(RhinoError, match="unknown pass 'rhino-verfy'; did you mean 'rhino-verify'"):
        load("rhino-verfy")
    with pytest.raises(RhinoError, match="'rhino-classify-args' has no option 'x'; its options are explain"):
        build("rhino-classify-args", [("x", "1")])


def test_every_documented_native_pass_exists() -> None:
    context = make_context()
    missing = []
    for name in native.PASSES:
        for text in (name, f"func.func({name})"):
            try:
                passmanager.PassManager.parse(f"builtin.module({text})", context)
                break
            except ValueError:
                continue
        else:
            missing.append(name)
    assert not missing


def test_help_loads_no_mlir_and_documents_every_option() -> None:
    program = (
        "import sys\nfrom rhino.cli.opt import main\ncode = main(['--help'])\n"
        "print('LOADED', sorted(m for m in ('jax', 'jaxlib', 'numpy', 'highspy') if m in sys.modules))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "LOADED []" in done.stdout
    for doc in catalog.all_docs():
        assert f"--{doc.name}" in done.stdout
        for spec in doc.options:
            assert re.search(rf"^ +{spec.name}=<", done.stdout, re.MULTILINE)

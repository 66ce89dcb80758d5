"""Plans in IR: running the planning pipeline on a module, and reading the plan back from the annotated one.

Owns the way between `Plan` and MLIR. Must not know jax, pytrees or the plan's file.
"""

from __future__ import annotations

import hashlib
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Deadline
from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoCluster, RhinoName, RhinoPlan, RhinoRole, RhinoStrided
from rhino.dialect.base import from_attr, to_attr
from rhino.dialect.context import BYTECODE_MAGIC, make_context, parse_bytes, parse_file, to_text
from rhino.dialect.locations import argument_name
from rhino.dialect.memories import host_kind
from rhino.errors import JAX_WRITES, RhinoError, RhinoWarning, first_line
from rhino.plan.data import SUMMARY, Machine, PlanData, Sharding, Tensor
from rhino.plan.meshes import put_aside, put_back
from rhino.plan.pipeline import in_fragments, pipeline_arguments, pipeline_results
from rhino.plan.retype import ALIAS
from rhino.request import PlanRequest
from rhino.schema.records import record

if TYPE_CHECKING:
    from rhino.ir.diagnostics import Diagnostic
    from rhino.sharding.outcome import Progress

_NAMES = re.compile(r'rhino\.name = "[^"]*"')
# The comma apart: what is looked for must begin with text for the search to be fast.
_RETURNED = (re.compile(r", rhino\.returned = \{[^}]*\}"), re.compile(r"rhino\.returned = \{[^}]*\}"))
_MODULE_NAME = re.compile(r"^module @\S+ ", re.MULTILINE)
_SEE = f"rhino-opt FILE shows the line; {JAX_WRITES}"
_NOWHERE = "<unknown>"  # the file of what has no location, such as a @main that jax lowered


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what only the run knows: its seconds, and the remarks and warnings of the passes."""

    plan: PlanData
    seconds: float
    diagnostics: tuple[Diagnostic, ...]


def fingerprint(module: ir.Module) -> str:
    """SHA-256 (hex) of a module's text without locations: tells whether two traces are one program.

    What the user calls the step and its arguments, and the trees they are in, is no part of it.
    """
    text = _MODULE_NAME.sub("module ", to_text(module), count=1)
    text = _NAMES.sub('rhino.name = ""', text)
    for returned in _RETURNED:
        text = returned.sub("", text)
    return hashlib.sha256(text.encode()).hexdigest()


def plan_module(
    module: ir.Module,
    request: PlanRequest,
    progress: Progress | None = None,
    program: str = "",
    before_search: Callable[[ir.Module], None] | None = None,
    deadline: Deadline | None = None,
) -> Planned:
    """Run `rhino-auto` on a module, in place, and read the plan, which then holds the module.

    Args:
      progress: called as (done, total, label) while the search runs.
      program: the `fingerprint` to record; by default that of the module given.
      before_search: changes the module when all its types are as they will be, before rhino-plan-sharding searches;
        for a request of one stage.
      deadline: when the best plan so far is taken; by default the request's budget after now.

    Raises:
      RhinoError: a pass failed; the message names the place in the module where it is known.
    """
    from rhino.ir.session import Session
    from rhino.passes.pass_manager import Instrumentation, PassManager, PassStep, PipelineError
    from rhino.passes.pipelines import Auto

    class BeforeSearch(Instrumentation):
        def before(self, step: PassStep, module: ir.Module) -> None:
            if before_search is not None and step.name == "rhino-plan-sharding":
                before_search(module)

    session = Session(request.cluster, deadline or NEVER.sooner(request.budget), progress)
    start = time.perf_counter()
    _keep_names(module)
    program = program or fingerprint(module)
    aside = put_aside(module)
    # What was given is verified, and what is given back: after each pass too, it took a seventh of all the time.
    manager, hooks = PassManager(module.context, verify_each=False), [BeforeSearch()]
    # The session has the cluster, and the deadline that the budget makes.
    auto = Auto(**{**request.options(), "budget": 0.0}, topology="")
    manager.add("rhino-verify").add(auto).add("rhino-verify")
    try:
        result = manager.run(module, instrumentations=hooks, session=session)
    except PipelineError as error:
        first = error.diagnostics[0]
        place = "" if first.position.file == _NOWHERE else f"{first.position}: "
        # Without the severity: whoever shows a RhinoError says that it is an error.
        raise RhinoError(place + first_line(first.message), error.remedy) from error
    put_back(module, aside)
    seconds = time.perf_counter() - start
    attributes = module.operation.attributes
    if RhinoPlan.name in attributes:
        data = {**from_attr(attributes[RhinoPlan.name]), "program": program}
        attributes[RhinoPlan.name] = to_attr(data, module.context)
    return Planned(read_plan(module), seconds, tuple(result.diagnostics))


def tell_warnings(diagnostics: Iterable[Diagnostic]) -> None:
    """Give the warnings of passes as Python's, at the lines of the user's program that they are of."""
    # Of two that say the same of one place one is enough.
    for one in dict.fromkeys(diagnostics):
        if one.severity == "warning":
            text = "; ".join((one.message, *(note.message for note in one.notes)))
            warnings.warn_explicit(text, RhinoWarning, one.position.file, max(one.position.line, 1))


def _keep_names(module: ir.Module) -> None:
    """Write the names that jax keeps in locations as attributes: text is often written without locations."""
    main = functions.find(module, "main")
    if main is None or not main.regions[0].blocks:
        return
    attributes = functions.argument_attributes(main)
    for i, (given, argument) in enumerate(zip(attributes, main.regions[0].blocks[0].arguments, strict=True)):
        if RhinoName.name not in given and isinstance(argument.location, ir.NameLoc):
            given[RhinoName.name] = ir.StringAttr.get(argument_name(argument, i), module.context)
    functions.set_argument_attributes(main, attributes)


def parse_module(data: bytes | str, where: str, path: str | None = None, function: str = "") -> ir.Module:
    """A module from text, bytecode or a portable artifact, in a fresh context.

    Args:
      where: what errors call the source, a path or "<stdin>".
      path: the file that `data` was read from, if any: the module's locations then name it.
      function: the step's function, which becomes @main; by default @main, or the only public one.

    Raises:
      RhinoError: "<where>:line:column: cause" for the first thing that is wrong.
    """
    from rhino.passes.pass_manager import native_diagnostics

    raw = data.encode() if isinstance(data, str) else data
    if not raw.strip():
        raise RhinoError(f"{where}: the file is empty", f"give the StableHLO of a step; {JAX_WRITES}")
    if not raw.startswith(BYTECODE_MAGIC) and not _is_text(raw):
        raise RhinoError(f"{where}: neither MLIR text nor MLIR bytecode", f"give a .mlir or .mlirbc file; {JAX_WRITES}")
    context = make_context()
    found: list[Diagnostic] = []
    try:
        with native_diagnostics(context, found.append):
            module = parse_bytes(raw, context) if path is None else parse_file(path, context)
    except ir.MLIRError as error:
        first = next((d for d in found if d.severity == "error"), None)
        if first is None:
            raise RhinoError(f"{where}: {first_line(error)}", _SEE) from None
        place = f"{where}:{max(first.position.line, 1)}:{max(first.position.column, 1)}"
        raise RhinoError(f"{place}: {first_line(first.message)}", _SEE) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise RhinoError(f"{where}: not a module: {first_line(error)}", _SEE) from None
    try:
        functions.make_main(module, function)
    except RhinoError as error:
        raise RhinoError(f"{where}: {error.message}", error.remedy) from None
    return module


def _is_text(raw: bytes) -> bool:
    try:
        return "\0" not in raw.decode()
    except UnicodeDecodeError:
        return False


def read_plan(module: str | bytes | ir.Module) -> PlanData:
    """See `Plan.from_module`."""
    parsed = module if isinstance(module, ir.Module) else parse_module(module, "module")
    data = RhinoPlan.of(parsed)
    if data is None:
        raise RhinoError("the module has no rhino.plan", "plan it first: rhino plan FILE.mlir --cluster C -o OUT.mlir")
    main = functions.find(parsed, "main")
    if main is None:
        raise RhinoError("the module has no function @main", "name the step's function @main")
    pipeline, machine = in_fragments(main), RhinoCluster.of(parsed)
    return PlanData(
        **SUMMARY.read(data),
        arguments=pipeline_arguments(main) if pipeline else _arguments(main),
        outputs=pipeline_results(main) if pipeline else _outputs(main),
        machine=machine and record(Machine).read(machine),
        source=parsed,
    )


def _arguments(main: ir.Operation) -> tuple[Tensor, ...]:
    block = main.regions[0].blocks[0]
    found = []
    for i, attributes in enumerate(functions.argument_attributes(main)):
        given = attributes.get(RhinoName.name)
        name = given.value if given is not None else argument_name(block.arguments[i], i)
        role = attributes[RhinoRole.name].value if RhinoRole.name in attributes else "other"
        found.append(_tensor(name, role, block.arguments[i].type, attributes))
    return tuple(found)


def _outputs(main: ir.Operation) -> tuple[Tensor, ...]:
    types = main.attributes["function_type"].value.results
    results = functions.result_attributes(main)
    # A result that takes the buffer of a strided argument is stored as that argument is.
    for taken in functions.argument_attributes(main):
        if RhinoStrided.name in taken and ALIAS in taken:
            results[taken[ALIAS].value].setdefault(RhinoStrided.name, taken[RhinoStrided.name])
    found = []
    for i, attributes in enumerate(results):
        given = attributes.get(RhinoName.name, attributes.get("jax.result_info"))
        found.append(_tensor(given.value if given is not None else f"result{i}", "", types[i], attributes))
    return tuple(found)


def _tensor(name: str, role: str, type_: Any, attributes: Mapping[str, ir.Attribute]) -> Tensor:
    stored = tuple(type_.shape)
    sharding: Sharding = tuple(() for _ in stored)
    if sdy.SHARDING in attributes:
        sharding = sdy.dims_of(attributes[sdy.SHARDING])
    shape = tuple(from_attr(attributes[RhinoStrided.name])["shape"]) if RhinoStrided.name in attributes else stored
    memory = host_kind(attributes)
    return Tensor(name, role, shape, str(type_.element_type), sharding, stored_shape=stored, memory=memory)

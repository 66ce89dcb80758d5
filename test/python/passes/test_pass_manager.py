"""Running passes: order, errors at operations, statistics, verification, and the guards before C++ passes."""

from __future__ import annotations

from typing import ClassVar

import pytest
from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.errors import RhinoError
from rhino.ir.diagnostics import Diagnostic, Position, position_of
from rhino.passes.pass_manager import Instrumentation, PassManager, PassStep, PipelineError
from rhino.passes.registry import Pass, PassError, PassLog, register

TEXT = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %a : tensor<4xf32>
  %1 = stablehlo.tanh %a : tensor<4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""


@pytest.fixture
def module() -> ir.Module:
    return parse_text(TEXT, make_context())


def operations(module: ir.Module) -> list[ir.Operation]:
    return list(functions.walk(functions.all_functions(module)[0]))


@register
class Mark(Pass):
    """Mark every tanh; fail in the way asked for."""

    name: ClassVar[str] = "rhino-mark"
    fail: str = ""

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Mark, count, report, fail."""
        for op in operations(module):
            with log.at(op):
                if op.name == "stablehlo.tanh":
                    op.attributes["marked"] = ir.UnitAttr.get(module.context)
                    log.count("marked")
                    log.remark(op, "marked it", ["because it is a tanh"])
                if op.name == "stablehlo.add":
                    self.stop(op, log)

    def stop(self, op: ir.Operation, log: PassLog) -> None:
        """Fail at `op`, or not."""
        if self.fail == "pass-error":
            raise PassError(op, "size 15 is not divisible by 8", ["shard another dimension", (op.parent, "in here")])
        if self.fail == "rhino-error":
            raise RhinoError("no mesh fits", "use another")
        if self.fail == "bug":
            raise KeyError("oops")
        if self.fail == "log":
            log.error(op, "first")
            log.error(op.parent, "second")
        if self.fail == "invalid":
            op.attributes["rhino.nothing"] = ir.UnitAttr.get(op.context)
        if self.fail == "mlir":
            ir.Type.parse("tensor<", op.context)


def run_failing(module: ir.Module, fail: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(PipelineError) as error:
        PassManager(module.context).add(Mark(fail)).add("cse").run(module)
    assert error.value.message == str(error.value.diagnostics[0])
    return error.value.diagnostics


def test_python_and_native_passes_run_in_order(module: ir.Module) -> None:
    result = PassManager(module.context).add("func.func(cse)").add(Mark()).add("canonicalize").run(module)
    assert result.statistics == [("rhino-mark", {"marked": 1})]
    assert [name for name, _ in result.timings_s] == ["cse", "rhino-mark", "canonicalize"]
    assert str(module).count("{marked}") == 1


def test_diagnostics_that_are_no_errors_are_returned_and_sent(module: ir.Module) -> None:
    seen: list[Diagnostic] = []
    result = PassManager(module.context).add(Mark()).run(module, seen.append)
    assert result.diagnostics == seen
    note = Diagnostic("note", "because it is a tanh", Position("-", 2, 8))
    assert seen[0] == Diagnostic("remark", "marked it", Position("-", 2, 8), (note,))


def test_a_pass_error_is_an_error_at_its_operation(module: ir.Module) -> None:
    (error,) = run_failing(module, "pass-error")
    assert str(error) == "-:4:8: error: size 15 is not divisible by 8"
    assert [str(note) for note in error.notes] == ["-:4:8: note: shard another dimension", "-:1:1: note: in here"]
    assert "{marked}" in str(module)


def test_other_errors_are_placed_where_the_pass_was(module: ir.Module) -> None:
    (error,) = run_failing(module, "rhino-error")
    assert str(error) == "-:4:8: error: 'rhino-mark': no mesh fits"
    assert error.notes[0].message == "use another"
    (error,) = run_failing(module, "bug")
    assert str(error) == "-:4:8: error: 'rhino-mark': unexpected KeyError: 'oops'"
    assert "bug in the pass" in error.notes[0].message


def test_logged_errors_are_all_reported(module: ir.Module) -> None:
    first, second = run_failing(module, "log")
    assert (first.message, second.message) == ("first", "second")


def test_what_mlir_reports_inside_a_pass_is_the_error(module: ir.Module) -> None:
    errors = run_failing(module, "mlir")
    assert errors[0].severity == "error"


def test_a_rhino_pass_is_verified_unless_switched_off(module: ir.Module) -> None:
    (error,) = run_failing(module, "invalid")
    assert str(error) == "-:4:8: error: unknown attribute 'rhino.nothing' in the rhino dialect"
    PassManager(module.context, verify_each=False).add(Mark("invalid")).run(module)


def test_what_is_left_as_it_was_is_verified_once(module: ir.Module) -> None:
    @register
    class Claims(Mark):
        """Mark, and say that nothing changed."""

        name: ClassVar[str] = "rhino-claims"

        def run(self, module: ir.Module, log: PassLog) -> None:
            Mark.run(self, module, log)
            log.unchanged = True

    PassManager(module.context).add(Mark()).add(Claims("invalid")).run(module)
    with pytest.raises(PipelineError, match="unknown attribute"):  # nothing was verified before it
        PassManager(module.context).add("cse").add(Claims("invalid")).run(module)


def test_no_operation_is_blamed_after_the_block_that_named_it(module: ir.Module) -> None:
    @register
    class Late(Pass):
        """Fail after a block that named an operation, and after one that failed inside the pass."""

        name: ClassVar[str] = "rhino-late"

        def run(self, module: ir.Module, log: PassLog) -> None:
            try:
                with log.at(operations(module)[2]):
                    raise RhinoError("handled")
            except RhinoError:
                pass
            with log.at(operations(module)[0]):
                operations(module)[0].operation.attributes["seen"] = ir.UnitAttr.get(module.context)
            raise RhinoError("late")

    with pytest.raises(PipelineError, match=r"-:1:1: error: 'rhino-late': late"):
        PassManager(module.context).add(Late()).run(module)


def test_text_and_objects_give_the_same_pipeline(module: ir.Module) -> None:
    context = module.context
    built = PassManager(context).add("inline").add("sdy-populate-op-sharding-rules").add("rhino-verify")
    text = "builtin.module(inline,func.func(sdy-populate-op-sharding-rules),rhino-verify)"
    assert str(built) == text
    assert str(PassManager.parse(text, context)) == text


def test_rhino_auto_is_expanded(module: ir.Module) -> None:
    manager = PassManager.parse(
        "builtin.module(rhino-auto{topology=dgx-h100:2 mesh=4x4 memory-limit=1000 stages=1})", module.context
    )
    assert [step.name for step in manager.steps] == [
        "rhino-inline",
        "symbol-dce",
        "rhino-forward-copies",
        "rhino-sink-constants",
        "canonicalize",
        "rhino-batch-lookups",
        "rhino-neutral-starts",
        "rhino-convert-operands",
        "rhino-delay-random",
        "rhino-adopt-mesh",
        "rhino-describe-kernels",
        "rhino-classify-args",
        "rhino-order-products",
        "rhino-expose-strided-dims",
        "rhino-plan-sharding",
        "rhino-partition-kernels",
    ]
    assert manager.steps[-2].text == "rhino-plan-sharding{topology=dgx-h100:2 mesh=4x4 memory-limit=1000}"


def test_a_bad_option_inside_rhino_auto_is_a_pipeline_error(module: ir.Module) -> None:
    with pytest.raises(PipelineError, match=r"<pass-pipeline>:1:16: error: .*'level' is 'O9'"):
        PassManager.parse("builtin.module(rhino-auto{level=O9})", module.context)


def test_instrumentations_surround_every_step(module: ir.Module) -> None:
    seen: list[tuple[str, str, bool | None]] = []

    class Recorder(Instrumentation):
        def before(self, step: PassStep, module: ir.Module) -> None:
            seen.append(("before", step.name, None))

        def after(self, step: PassStep, module: ir.Module, failed: bool) -> None:
            seen.append(("after", step.name, failed))

    with pytest.raises(PipelineError):
        PassManager(module.context).add("cse").add(Mark("bug")).run(module, None, [Recorder()])
    assert seen == [
        ("before", "cse", None),
        ("after", "cse", False),
        ("before", "rhino-mark", None),
        ("after", "rhino-mark", True),
    ]


def test_positions_of_locations() -> None:
    context = make_context()
    with context:
        file = ir.Location.file("train.py", 7, 3)
        name = ir.Location.name("state['w']", file)
        call = ir.Location.callsite(name, [ir.Location.file("main.py", 1, 1)])
        fused = ir.Location.fused([ir.Location.unknown(), call])
        for location in (file, name, call, fused):
            assert position_of(location) == Position("train.py", 7, 3)
        assert position_of(ir.Location.unknown()) == Position("<unknown>")
        assert str(Position("x.mlir")) == "x.mlir:1:1"


def test_an_error_of_mlir_shows_no_program() -> None:
    """MLIR's verifier adds a note with the whole operation: of a function all that it holds."""
    context = make_context()
    module = parse_text("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }", context)
    functions.set_argument_attributes(
        functions.find(module, "main"), [{"sdy.sharding": ir.Attribute.parse("#sdy.sharding<@none, [{}]>", context)}]
    )
    with pytest.raises(PipelineError, match="unknown mesh: @none") as raised:
        PassManager(context).add("canonicalize").run(module)
    assert "tensor<" not in str(raised.value)

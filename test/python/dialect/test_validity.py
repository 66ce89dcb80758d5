"""What does not verify is refused in one line, with its place, and nothing is printed."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.dialect.validity import check_valid
from rhino.errors import RhinoError, first_line

MODULE = """
func.func @main(%a: tensor<4xf32>, %b: tensor<5xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_an_invalid_module_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    module = parse_text(MODULE, make_context())
    check_valid(module, "the module")
    main = functions.find(module, "main")
    assert main is not None
    (add, _) = functions.walk(main)
    add.operands[1] = main.regions[0].blocks[0].arguments[1]
    with pytest.raises(RhinoError) as found:
        check_valid(module, "the module")
    assert str(found.value).startswith("the module is not valid: -:3:8: 'stablehlo.add' op requires the same shape")
    assert "\n" not in str(found.value) and "func.func" not in str(found.value)
    assert capfd.readouterr().err == ""


def test_the_first_line_is_all_that_is_shown() -> None:
    assert first_line(ir.MLIRError("a module:\nmodule {\n}")) == "a module:"
    assert first_line(ValueError("x" * 10_000)) == "x" * 500 + " ..."
    assert first_line(ValueError()) == "ValueError"

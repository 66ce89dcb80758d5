"""The language of sharding rules: what jax's own parser and Shardy's verifier make of the same text and shapes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src import custom_partitioning_sharding_rule as jax_rules
from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.errors import RhinoError
from rhino.ir.kernel_calls import RULE, read_rule, rule_attribute
from rhino.kernels.data import KernelTensor
from rhino.kernels.rules import make_rule, parse_rule
from rhino.program.data import Rule

Shape = tuple[int, ...]
FACTORS = "abcdef"


@cache
def context() -> ir.Context:
    return make_context()


@st.composite
def rules(draw: Any) -> tuple[str, list[Shape], list[Shape], dict[str, int]]:
    """A rule, shapes that suit it, and the sizes of factors that are only in brackets. Sizes of one are frequent."""
    size = dict(zip(FACTORS, draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=6, max_size=6)), strict=True))
    leading = {group: tuple(draw(st.lists(st.sampled_from([1, 2, 5]), max_size=2))) for group in ("...", "...1")}
    alone: set[str] = set()

    def value() -> tuple[str, Shape]:
        factors = draw(st.permutations(FACTORS))[: draw(st.integers(0, 5))]
        dims: list[list[str]] = []
        while factors:
            count = draw(st.sampled_from([1, 1, 2, 3]))
            dims.append(list(factors[:count]))
            factors = factors[count:]
        alone.update(dim[0] for dim in dims if len(dim) == 1)
        front = draw(st.sampled_from(["", "", *leading]))
        text = [f"({' '.join(dim)})" if len(dim) > 1 else dim[0] for dim in dims]
        return " ".join([front, *text]).strip(), (*leading.get(front, ()), *(prod(size[f] for f in d) for d in dims))

    sides = [[value() for _ in range(draw(st.integers(1, 3)))] for _ in range(2)]
    text = " -> ".join(", ".join(t for t, _ in side) for side in sides)
    named = [f for f in FACTORS if f in text]
    given = {f: size[f] for f in named if f not in alone}
    operands, results = ([shape for _, shape in side] for side in sides)
    return text, operands, results, given


def _types(shapes: list[Shape]) -> list[ir.Type]:
    return [ir.RankedTensorType.get(shape, ir.F32Type.get()) for shape in shapes]


def _theirs(text: str, operands: list[Shape], results: list[Shape], sizes: dict[str, int], **kinds: Any) -> Rule:
    with context(), ir.Location.unknown(context()):
        rule = jax_rules.str_to_sdy_sharding_rule(text, **kinds, **sizes)
        return read_rule(jax_rules.sdy_sharding_rule_to_mlir(rule, _types(operands), _types(results)))


def _ours(text: str, operands: list[Shape], results: list[Shape], sizes: dict[str, int], **kinds: Any) -> Rule:
    tensors = ([KernelTensor(shape, "f32") for shape in side] for side in (operands, results))
    return make_rule(text, *tensors, sizes=sizes, **kinds)[0]


def _verified(rule: Rule, operands: list[Shape], results: list[Shape]) -> Rule:
    """The rule that Shardy's parser reads from a call, whose verifier accepts it."""
    attribute = rule_attribute(rule, context())
    reads, makes = ([f"tensor<{''.join(f'{n}x' for n in shape)}f32>" for shape in side] for side in (operands, results))
    arguments = ", ".join(f"%{i}: {kind}" for i, kind in enumerate(reads))
    names = ", ".join(f"%{i}" for i in range(len(reads)))
    module = parse_text(
        f"func.func @main({arguments}) {{\n"
        f"  %r:{len(makes)} = stablehlo.custom_call @f({names}) {{sdy.sharding_rule = {attribute}}} : "
        f"({', '.join(reads)}) -> ({', '.join(makes)})\n  return }}",
        context(),
    )
    main = functions.find(module, "main")
    assert main is not None and module.operation.verify()
    (call,) = [op for op in functions.walk(main) if RULE in op.attributes]
    return read_rule(call.attributes[RULE])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rules())
def test_rules_are_those_of_jax_and_shardy_accepts_them(drawn: Any) -> None:
    """Factors of one element included; of what may be split ours has less, where nothing would put parts together."""
    ours, theirs = _ours(*drawn), _theirs(*drawn)
    assert (ours.factor_sizes, ours.operands, ours.results) == (theirs.factor_sizes, theirs.operands, theirs.results)
    written = _verified(ours, *drawn[1:3])
    assert written == _verified(replace(theirs, replicate=ours.replicate), *drawn[1:3])
    # What was written is written alike again: nothing is dropped twice.
    assert _verified(written, *drawn[1:3]) == written


def test_kinds_of_factors_are_those_of_jax() -> None:
    text, operands, results = "b k (n g), k h -> b (n g)", [(2, 3, 4), (3, 5)], [(2, 4)]
    theirs = _theirs(
        text, operands, results, {"n": 4, "g": 1},
        reduction_factors=("k",), need_replication_factors=("h",), permutation_factors=("b",),
    )  # fmt: skip
    ours = _ours(text, operands, results, {"n": 4, "g": 1}, reduction=("k",), whole=("h",), permutation=("b",))
    assert ours == theirs
    assert _verified(ours, operands, results).operands[0] == ((0,), (1,), (2,))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(["a", "b1", "c_", "1", "_", "(", ")", ",", " ", " ", "...", "...2", ".", "é"]), max_size=9)
)
def test_what_jax_does_not_read_is_an_error(parts: list[str]) -> None:
    """And the other way round, but for a factor that is twice in one value, which Shardy's verifier refuses."""
    text = "".join(parts) + " -> "
    problem = ""
    try:
        parse_rule(text)
    except RhinoError as error:
        problem = error.message
    if "twice in one value" in problem:
        return
    replaced = text.replace("...", jax_rules.BATCHING)
    if "." in replaced:
        assert problem
        return
    if problem:
        with pytest.raises(ValueError):
            jax_rules._parse_values(replaced.partition("->")[0])
    else:
        jax_rules._parse_values(replaced.partition("->")[0])


@pytest.mark.parametrize(("text", "operands", "sizes", "message"), [
    ("a a -> a", [(4, 4)], {}, "factor 'a' stands twice in one value"),
    ("(a b) a -> a", [(4, 4)], {}, "factor 'a' stands twice in one value"),
    ("... a, ... b -> a", [(2, 4), (2, 2, 4)], {}, "'...' stands for 1 leading dimensions and for 2"),
    ("...01 a, ...1 b -> a", [(2, 4), (2, 2, 4)], {}, "'...' stands for 1 leading dimensions and for 2"),
    ("(a b) -> a", [(8,)], {"b": 3}, "a dimension of size 8 is not a=4 x b=3"),
    ("a, a -> a", [(4,), (5,)], {}, "factor 'a' has sizes 4 and 5"),
])  # fmt: skip
def test_rules_that_nobody_can_follow_are_refused(
    text: str, operands: list[Shape], sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(RhinoError) as caught:
        _ours(text, operands, [(4,)], sizes)
    assert message in caught.value.message

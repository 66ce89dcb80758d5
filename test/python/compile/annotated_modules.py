"""Writes small annotated modules for the tests of `rhino.compile`."""

from __future__ import annotations

MESH_2X4 = '"x"=2, "y"=4'


def dims(*axes: str) -> str:
    """`dims("x,y", "")` -> `[{"x", "y"}, {}]`."""
    return "[" + ", ".join("{" + ", ".join(f'"{a}"' for a in dim.split(",") if a) + "}" for dim in axes) + "]"


def sharding(*axes: str) -> str:
    """The sharding of an argument or result."""
    return f"#sdy.sharding<@mesh, {dims(*axes)}>"


def on_op(*axes: str) -> str:
    """The attribute dictionary that gives an op with one result a sharding."""
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {dims(*axes)}>]>}}"


def module(
    arguments: list[tuple[str, str, str]], results: list[tuple[str, str]], body: str, mesh: str = MESH_2X4
) -> str:
    """A module with one mesh: arguments are (name, type, attributes), results (type, attributes)."""
    takes = ", ".join(f"%{name}: {type_} {{{attrs}}}" for name, type_, attrs in arguments)
    gives = ", ".join(f"{type_} {{{attrs}}}" for type_, attrs in results)
    return f"""module @step {{
  sdy.mesh @mesh = <[{mesh}]>
  func.func public @main({takes}) -> ({gives}) {{
    {body}
  }}
}}
"""


def has(*axes: str) -> str:
    """`sdy.sharding = ...`, for `module`."""
    return f"sdy.sharding = {sharding(*axes)}"


def dot(out: str, a: str, b: str, types: tuple[str, str, str], contract: str = "[1] x [0]", attrs: str = "") -> str:
    """A line with a dot of two matrices; `types` are of the operands and the result."""
    return (
        f"%{out} = stablehlo.dot_general %{a}, %{b}, contracting_dims = {contract} {attrs} : "
        f"({types[0]}, {types[1]}) -> {types[2]}\n    "
    )


def constraint(out: str, value: str, type_: str, *axes: str) -> str:
    """A line that reshards a value."""
    return f"%{out} = sdy.sharding_constraint %{value} <@mesh, {dims(*axes)}> : {type_}\n    "


def loop(trips: int, carry: tuple[str, str, str], body: str, attrs: str = "") -> str:
    """A counted loop over one value: carry is (name in the body, initial value, type); the body defines %next."""
    name, init, type_ = carry
    return f"""%zero = stablehlo.constant dense<0> : tensor<i32>
    %out:2 = stablehlo.while(%i = %zero, %{name} = %{init}) : tensor<i32>, {type_} {attrs}
    cond {{
      %limit = stablehlo.constant dense<{trips}> : tensor<i32>
      %more = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      {body}
      stablehlo.return %j, %next : tensor<i32>, {type_}
    }}
    """


F32 = "tensor<64x64xf32>"
BYTES = 64 * 64 * 4  # of an F32

MLP = module(
    [
        ("x", "tensor<16x32xf32>", has("x", "") + ', rhino.role = "batch"'),
        ("w1", "tensor<32x64xf32>", has("", "y") + ', rhino.role = "param", tf.aliasing_output = 1 : i32'),
        ("w2", "tensor<64x32xf32>", has("y", "")),
    ],
    [("tensor<16x32xf32>", has("x", "")), ("tensor<32x64xf32>", has("", "y"))],
    dot("0", "x", "w1", ("tensor<16x32xf32>", "tensor<32x64xf32>", "tensor<16x64xf32>"))
    + f"%1 = stablehlo.tanh %0 {on_op('x', 'y')} : tensor<16x64xf32>\n    "
    + dot("2", "1", "w2", ("tensor<16x64xf32>", "tensor<64x32xf32>", "tensor<16x32xf32>"))
    + "%3 = stablehlo.add %w1, %w1 : tensor<32x64xf32>\n    "
    + "return %2, %3 : tensor<16x32xf32>, tensor<32x64xf32>",
).replace(
    "module @step {",
    'module @step attributes {rhino.plan = {schema = 1 : i64}, rhino.cluster = {name = "c", hosts = 2 : i64}} {',
)

"""A training step of two stages written by hand in fragments: a two-layer network, its gradients summed over
micro-batches, and plain gradient descent. And the same step in numpy.
"""
# ruff: noqa: E501 - MLIR's lines are as long as its types

from __future__ import annotations

from typing import Any

import numpy as np

RATE = 0.01


def text(
    microbatches: int = 4,
    batch: int = 16,
    features: int = 8,
    hidden: int = 32,
    ways: int = 1,
    placement: str = "",
    donate: bool = True,
    weight: bool = False,
    whole: bool = False,
    shared: bool = False,
) -> str:
    """The module. With `ways`, each group has a mesh that splits the batch; with `weight`, backwards are split.

    With `whole` as well as `ways`, every device of a group has all of its values. If the batch is `shared`, stage 1
    reads it too, and begins its sum with that of the squares.
    """
    rows = batch // microbatches
    x, w0, w1 = f"{batch}x{features}", f"{features}x{hidden}", f"{hidden}x{features}"
    xs, h, y = f"{rows}x{features}", f"{rows}x{hidden}", f"{rows}x{features}"
    axes = f'"x"={ways}' if ways > 1 else ""
    data = ', sharding=<@mesh, [{"x"}, {}]>' if ways > 1 and not whole else ""
    stacked = data.replace("{}]", "{}, {}]")

    def on(stage: int, tensor: str, sharding: str = "", element: str = "f32") -> str:
        of = f"{tensor}x{element}" if tensor else element
        return f'!mpmd.mesh_tensor<"stage{stage}", tensor<{of}>{sharding}>'

    mesh = f"sdy.mesh @mesh = <[{axes}]>" if ways > 1 else ""
    topology = f'attributes {{topology = #mpmd.topology<<"stage0": <[{axes}]>>, <"stage1": <[{axes}]>>>}}'
    devices = [list(range(ways)), list(range(ways, 2 * ways))]
    placement = placement or f"{{stage0 = {devices[0]}, stage1 = {devices[1]}}}"
    given = ", tf.aliasing_output = {} : i32" if donate else ""
    dot = "stablehlo.dot_general"

    def grad(stage: int, a: str, b: str, ta: str, tb: str, w: str) -> str:
        return (
            f"%g = {dot} {a}, {b}, contracting_dims = [0] x [0] : (tensor<{ta}xf32>, tensor<{tb}xf32>) -> tensor<{w}xf32>\n"
            f"%sum = stablehlo.add %acc, %g : tensor<{w}xf32>"
        )

    back0_grad = grad(0, "%xs", "%dz", xs, h, w0)
    back1_grad = grad(1, "%h", "%dy", h, y, w1)
    first_backward = f"""
  %b0 = mpmd.fragment<mesh="stage0", origin=["backward"(1)], stage=0> (%f0#0, %f0#1, %t1, %acc0)
      (%xs: tensor<{xs}xf32>, %h: tensor<{h}xf32>, %dh: tensor<{h}xf32>, %acc: tensor<{w0}xf32>) {{
    %one = stablehlo.constant dense<1.0> : tensor<{h}xf32>
    %hh = stablehlo.multiply %h, %h : tensor<{h}xf32>
    %d = stablehlo.subtract %one, %hh : tensor<{h}xf32>
    %dz = stablehlo.multiply %d, %dh : tensor<{h}xf32>
    {back0_grad}
    mpmd.return %sum : tensor<{w0}xf32>
  }} : ({on(0, xs, data)}, {on(0, h, data)}, {on(0, h, data)}, {on(0, w0)}) -> {on(0, w0)}"""
    dh = f"%dh = {dot} %dy, %w, contracting_dims = [1] x [1] : (tensor<{y}xf32>, tensor<{w1}xf32>) -> tensor<{h}xf32>"
    if weight:
        last_backward = f"""
  %b1 = mpmd.fragment<mesh="stage1", origin=["backward"(1)], stage=1> (%w1, %f1#0) (%w: tensor<{w1}xf32>, %dy: tensor<{y}xf32>) {{
    {dh}
    mpmd.return %dh : tensor<{h}xf32>
  }} : ({on(1, w1)}, {on(1, y, data)}) -> {on(1, h, data)}
  %v1 = mpmd.fragment<mesh="stage1", origin=["weight"(1)], stage=1> (%t0, %f1#0, %acc1) (%h: tensor<{h}xf32>, %dy: tensor<{y}xf32>, %acc: tensor<{w1}xf32>) {{
    {back1_grad}
    mpmd.return %sum : tensor<{w1}xf32>
  }} : ({on(1, h, data)}, {on(1, y, data)}, {on(1, w1)}) -> {on(1, w1)}"""
        sent, summed = "%b1", "%v1"
    else:
        last_backward = f"""
  %b1:2 = mpmd.fragment<mesh="stage1", origin=["backward"(1)], stage=1> (%w1, %t0, %f1#0, %acc1)
      (%w: tensor<{w1}xf32>, %h: tensor<{h}xf32>, %dy: tensor<{y}xf32>, %acc: tensor<{w1}xf32>) {{
    {back1_grad}
    {dh}
    mpmd.return %dh, %sum : tensor<{h}xf32>, tensor<{w1}xf32>
  }} : ({on(1, w1)}, {on(1, h, data)}, {on(1, y, data)}, {on(1, w1)}) -> ({on(1, h, data)}, {on(1, w1)})"""
        sent, summed = "%b1#0", "%b1#1"

    def update(stage: int, w: str) -> str:
        return f"""
  %u{stage} = mpmd.fragment<mesh="stage{stage}", origin=["update"], stage={stage}> (%w{stage}, %r#{stage}) (%w: tensor<{w}xf32>, %g: tensor<{w}xf32>) {{
    %rate = stablehlo.constant dense<{RATE}> : tensor<{w}xf32>
    %d = stablehlo.multiply %g, %rate : tensor<{w}xf32>
    %n = stablehlo.subtract %w, %d : tensor<{w}xf32>
    mpmd.return %n : tensor<{w}xf32>
  }} : ({on(stage, w)}, {on(stage, w)}) -> {on(stage, w)}"""

    split = f"{rows}x{microbatches}x{features}"
    second = ""
    begin = "%l = stablehlo.constant dense<0.0> : tensor<f32>"
    first = ("", "", "")
    if shared:
        second = f",\n    %x1: {on(1, x, data)} {{rhino.argument = {{index = 2 : i64}}}}"
        first = ("%x1", f"%a: tensor<{x}xf32>", on(1, x, data))
        begin = (
            f"%aa = stablehlo.multiply %a, %a : tensor<{x}xf32>\n%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
            "%l = stablehlo.reduce(%aa init: %z) applies stablehlo.add across dimensions = [0, 1]"
            f" : (tensor<{x}xf32>, tensor<f32>) -> tensor<f32>"
        )
    return f"""
module attributes {{rhino.placement = {placement}}} {{
{mesh}
func.func private @microbatch(%acc0: {on(0, w0)}, %acc1: {on(1, w1)}, %loss: {on(1, "")}, %w0: {on(0, w0)}, %w1: {on(1, w1)},
    %x: {on(0, split, stacked)}, %j0: {on(0, "", element="ui32")})
    -> ({on(0, w0)}, {on(1, w1)}, {on(1, "")}) {topology} {{
  %f0:2 = mpmd.fragment<mesh="stage0", origin=["forward"], stage=0> (%w0, %x, %j0)
      (%w: tensor<{w0}xf32>, %all: tensor<{split}xf32>, %j: tensor<ui32>) {{
    %zero = stablehlo.constant dense<0> : tensor<ui32>
    %s = stablehlo.dynamic_slice %all, %zero, %j, %zero, sizes = [{rows}, 1, {features}]
      : (tensor<{split}xf32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> tensor<{rows}x1x{features}xf32>
    %xs = stablehlo.reshape %s : (tensor<{rows}x1x{features}xf32>) -> tensor<{xs}xf32>
    %z = {dot} %xs, %w, contracting_dims = [1] x [0] : (tensor<{xs}xf32>, tensor<{w0}xf32>) -> tensor<{h}xf32>
    %h = stablehlo.tanh %z : tensor<{h}xf32>
    mpmd.return %xs, %h : tensor<{xs}xf32>, tensor<{h}xf32>
  }} : ({on(0, w0)}, {on(0, split, stacked)}, {on(0, "", element="ui32")}) -> ({on(0, xs, data)}, {on(0, h, data)})
  %t0 = mpmd.transfer %f0#1 : ({on(0, h, data)}) -> {on(1, h, data)}
  %f1:2 = mpmd.fragment<mesh="stage1", origin=["forward"], stage=1> (%w1, %t0, %loss)
      (%w: tensor<{w1}xf32>, %h: tensor<{h}xf32>, %l: tensor<f32>) {{
    %y = {dot} %h, %w, contracting_dims = [1] x [0] : (tensor<{h}xf32>, tensor<{w1}xf32>) -> tensor<{y}xf32>
    %two = stablehlo.constant dense<2.0> : tensor<{y}xf32>
    %dy = stablehlo.multiply %two, %y : tensor<{y}xf32>
    %yy = stablehlo.multiply %y, %y : tensor<{y}xf32>
    %none = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%yy init: %none) applies stablehlo.add across dimensions = [0, 1] : (tensor<{y}xf32>, tensor<f32>) -> tensor<f32>
    %n = stablehlo.add %l, %sum : tensor<f32>
    mpmd.return %dy, %n : tensor<{y}xf32>, tensor<f32>
  }} : ({on(1, w1)}, {on(1, h, data)}, {on(1, "")}) -> ({on(1, y, data)}, {on(1, "")})
{last_backward}
  %t1 = mpmd.transfer {sent} : ({on(1, h, data)}) -> {on(0, h, data)}
{first_backward}
  return %b0, {summed}, %f1#1 : {on(0, w0)}, {on(1, w1)}, {on(1, "")}
}}
func.func @main(%w0: {on(0, w0)} {{rhino.argument = {{index = 0 : i64}}{given.format(0)}}},
    %w1: {on(1, w1)} {{rhino.argument = {{index = 1 : i64}}{given.format(1)}}},
    %x: {on(0, x, data)} {{rhino.argument = {{index = 2 : i64}}}}{second})
    -> ({on(0, w0)} {{rhino.argument = {{index = 0 : i64}}}}, {on(1, w1)} {{rhino.argument = {{index = 1 : i64}}}},
        {on(1, "")} {{rhino.argument = {{index = 2 : i64}}}}) {topology} {{
  %p0:2 = mpmd.fragment<mesh="stage0", origin=["prepare"], stage=0> (%x) (%a: tensor<{x}xf32>) {{
    %c = stablehlo.constant dense<0.0> : tensor<{w0}xf32>
    %s = stablehlo.reshape %a : (tensor<{x}xf32>) -> tensor<{split}xf32>
    mpmd.return %c, %s : tensor<{w0}xf32>, tensor<{split}xf32>
  }} : ({on(0, x, data)}) -> ({on(0, w0)}, {on(0, split, stacked)})
  %p1:2 = mpmd.fragment<mesh="stage1", origin=["prepare"], stage=1> ({first[0]}) ({first[1]}) {{
    %c = stablehlo.constant dense<0.0> : tensor<{w1}xf32>
    {begin}
    mpmd.return %c, %l : tensor<{w1}xf32>, tensor<f32>
  }} : ({first[2]}) -> ({on(1, w1)}, {on(1, "")})
  %r:3 = mpmd.for (%p0#0, %p1#0, %p1#1) {{iterations = {microbatches} : ui32}} (%a0: {on(0, w0)}, %a1: {on(1, w1)}, %al: {on(1, "")}, %i: tensor<ui32>) {{
    %j0 = mpmd.assign %i : (tensor<ui32>) -> {on(0, "", element="ui32")}
    %n:3 = mpmd.call @microbatch(%a0, %a1, %al, %w0, %w1, %p0#1, %j0)
      : ({on(0, w0)}, {on(1, w1)}, {on(1, "")}, {on(0, w0)}, {on(1, w1)}, {on(0, split, stacked)}, {on(0, "", element="ui32")})
      -> ({on(0, w0)}, {on(1, w1)}, {on(1, "")})
    mpmd.return %n#0, %n#1, %n#2 : {on(0, w0)}, {on(1, w1)}, {on(1, "")}
  }} : {on(0, w0)}, {on(1, w1)}, {on(1, "")}
{update(0, w0)}
{update(1, w1)}
  return %u0, %u1, %r#2 : {on(0, w0)}, {on(1, w1)}, {on(1, "")}
}}
}}
"""


def echoing(module: str) -> str:
    """The module with a fourth argument, split over stage 1 and read by nobody, that it returns as its fourth result."""
    kind = '!mpmd.mesh_tensor<"stage1", tensor<16x8xf32>, sharding=<@mesh, [{"x"}, {}]>>'
    named = f"{kind} {{rhino.argument = {{index = 3 : i64}}}}"
    start = module.index("func.func @main")
    head, main = module[:start], module[start:]
    for old, new in (
        (")\n    -> (", f", %u: {named})\n    -> ("),
        (") attributes {topology", f", {named}) attributes {{topology"),
        ("return %u0, %u1, %r#2 : ", "return %u0, %u1, %r#2, %u : "),
    ):
        assert main.count(old) == 1, old
        main = main.replace(old, new)
    return head + main.rstrip().removesuffix("}").rstrip().removesuffix("}").rstrip() + f", {kind}\n}}\n}}\n"


def arguments(batch: int = 16, features: int = 8, hidden: int = 32) -> list[Any]:
    """Two weights and a batch."""
    random = np.random.default_rng(0)
    shapes = ((features, hidden), (hidden, features), (batch, features))
    return [random.standard_normal(shape, np.float32) * np.float32(0.3) for shape in shapes]


def step(w0: Any, w1: Any, x: Any, shared: bool = False) -> tuple[Any, Any, Any]:
    """The whole step in numpy."""
    h = np.tanh(x @ w0)
    y = h @ w1
    dy = 2 * y
    dz = (1 - h * h) * (dy @ w1.T)
    return w0 - RATE * (x.T @ dz), w1 - RATE * (h.T @ dy), (y * y).sum() + shared * (x * x).sum()

"""Random steps with a micro-batch loop and stages on their operations, as rhino-plan-stages leaves them.

Owns the making of the text. Every kind of edge that the stages allow comes up: skips over stages, forward values read
in backward parts of any stage, sums of several stages, parameters read elsewhere, scalars of all stages.
"""

from __future__ import annotations

import random
import re

COUNT = 3
_TENSOR = r"tensor<[^>]*>"
_ROWS, _WIDTH = 2, 4
_X = f"tensor<{_ROWS}x{_WIDTH}xf32>"
_P = f"tensor<{_WIDTH}xf32>"
_BATCH = f"tensor<{_ROWS * COUNT}x{_WIDTH}xf32>"


def staged_step(seed: int, stages: int) -> str:
    """A step over `stages` parameters and one batch; returns new parameters, losses, and what it has otherwise."""
    return _Step(random.Random(seed), stages).text()


class _Step:
    def __init__(self, rng: random.Random, stages: int) -> None:
        self.rng, self.stages = rng, stages
        self.lines: list[str] = []
        self.names = 0

    def op(self, text: str, kind: str, stage: int | None = None, phase: str = "") -> str:
        """Write an operation; `text` has its name and operands, `kind` its type after the colon."""
        self.names += 1
        name = f"%v{self.names}"
        where = "" if stage is None else f' {{rhino.stage = {{phase = "{phase}", stage = {stage} : i64}}}}'
        self.lines.append(f"    {name} = stablehlo.{text}{where} : {kind}")
        return name

    def wide(self, parameter: str, stage: int | None, phase: str) -> str:
        return self.op(f"broadcast_in_dim {parameter}, dims = [1]", f"({_P}) -> {_X}", stage, phase)

    def total(self, x: str, stage: int, phase: str, dims: str = "0, 1", to: str = "tensor<f32>") -> str:
        where = f'{{rhino.stage = {{phase = "{phase}", stage = {stage} : i64}}}}'
        self.names += 1
        name = f"%v{self.names}"
        self.lines.append(
            f"    {name} = stablehlo.reduce({x} init: %zero) applies stablehlo.add across dimensions = [{dims}] "
            f"{where} : ({_X}, tensor<f32>) -> {to}"
        )
        return name

    def text(self) -> str:
        rng, n = self.rng, self.stages
        owner = list(range(n))
        tied = rng.randrange(n)
        # Before the loop: on each stage something of its parameter, and something of another stage's.
        cast = [self.op(f"negate %p{s}", _P, s, "prepare") for s in range(n)]
        other = rng.randrange(n)
        mixed = self.op(f"add {cast[other]}, {cast[tied]}", _P, other, "prepare")
        shared = self.op(f"multiply {mixed}, {cast[-1]}", _P, n - 1, "prepare")
        before, self.lines = self.lines, []
        forward: list[list[str]] = [[] for _ in range(n)]
        for s in range(n):
            visible = [x for earlier in forward[: s + 1] for x in earlier] or ["%b"]
            x = self.op(f"multiply {self.wide(cast[s], s, 'forward')}, {rng.choice(visible)}", _X, s, "forward")
            y = self.op(f"tanh {x}", _X, s, "forward")
            forward[s] += [x, y]
            for _ in range(rng.randrange(3)):
                more = [x for earlier in forward[: s + 1] for x in earlier] + ["%b"]
                forward[s].append(self.op(f"add {rng.choice(more)}, {rng.choice(more)}", _X, s, "forward"))
        parameter = self.wide(f"%p{tied}", n - 1, "forward")
        last = self.op(f"multiply {forward[-1][-1]}, {parameter}", _X, n - 1, "forward")
        loss = self.total(last, n - 1, "forward")
        half = self.op(f"multiply {loss}, %half", "tensor<f32>")  # a scalar that every stage may have
        scale = self.op(f"broadcast_in_dim {half}, dims = []", f"(tensor<f32>) -> {_X}")
        gradients: list[list[str]] = [[] for _ in range(n)]
        sums = [""] * n
        known = [x for stage in forward for x in stage] + [scale, "%b"]
        for s in reversed(range(n)):
            visible = [g for later in gradients[s:] for g in later] or [scale]
            g = self.op(f"multiply {rng.choice(visible)}, {rng.choice(known)}", _X, s, "backward")
            gradients[s].append(g)
            for _ in range(rng.randrange(3)):
                mine = [g for later in gradients[s:] for g in later]
                gradients[s].append(self.op(f"add {rng.choice(mine)}, {rng.choice(known)}", _X, s, "backward"))
            own = self.total(rng.choice(gradients[s]), s, "backward", "0", _P)
            sums[s] = self.op(f"add %a{s}, {own}", _P, s, "backward")
        trace = self.op(
            "dynamic_update_slice %stack, %one1, %i",
            "(tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>", n - 1, "forward",
        )  # fmt: skip
        self.lines[-1] = self.lines[-1].replace("%one1", "%loss1")
        self.lines.insert(
            len(self.lines) - 1,
            f"    %loss1 = stablehlo.reshape {loss} "
            f'{{rhino.stage = {{phase = "forward", stage = {n - 1} : i64}}}} : (tensor<f32>) -> tensor<1xf32>',
        )
        total = self.op(f"add %l, {loss}", "tensor<f32>", n - 1, "forward")
        body, self.lines = self.lines, []
        # After it: the norm of all sums, then each parameter; one of them from the sums of two stages.
        parts = []
        for s in range(n):
            square = self.op(f"multiply %r#{s + 1}, %r#{s + 1}", _P, s, "update")
            self.names += 1
            name = f"%v{self.names}"
            self.lines.append(
                f"    {name} = stablehlo.reduce({square} init: %zero) applies stablehlo.add across dimensions = [0] "
                f'{{rhino.stage = {{phase = "update", stage = {s} : i64}}}} : ({_P}, tensor<f32>) -> tensor<f32>'
            )
            parts.append(name)
        norm = parts[0]
        for part in parts[1:]:
            place = rng.choice([None, rng.randrange(n)])
            norm = self.op(f"add {norm}, {part}", "tensor<f32>", place, "update")
        norm = self.op(f"add {norm}, %rate", "tensor<f32>")
        wide = self.op(f"broadcast_in_dim {norm}, dims = []", f"(tensor<f32>) -> {_P}")
        new = []
        for s in range(n):
            gradient = f"%r#{s + 1}"
            if s == tied:
                gradient = self.op(f"add {gradient}, %r#{n}", _P, s, "update")
            step = self.op(f"divide {gradient}, {wide}", _P, s, "update")
            kept = self.op(f"add {step}, {shared if rng.random() < 0.5 else cast[s]}", _P, s, "update")
            new.append(self.op(f"subtract %p{s}, {kept}", _P, owner[s], "update"))
        mean = self.op(f"divide %r#{n + 1}, %rate", "tensor<f32>")
        count = self.op("convert %r#0", "(tensor<i32>) -> tensor<f32>")
        after, self.lines = self.lines, []
        arguments = "".join(f'%p{s}: {_P} {{rhino.role = "param", tf.aliasing_output = {s} : i32}}, ' for s in range(n))
        kinds = ", ".join([_P] * n + ["tensor<f32>", "tensor<3xf32>", "tensor<f32>", _BATCH, _P, "tensor<f32>"])
        starts = ["%zeros", "%zeros", mixed, cast[-1], f"%p{other}"]
        carried = ", ".join(
            ["%i = %c0"] + [f"%a{s} = {rng.choice(starts)}" for s in range(n)]
            + ["%l = %zero", "%stack = %zeros3", "%same = %half"]
        )  # fmt: skip
        types = ", ".join(["tensor<i32>"] + [_P] * n + ["tensor<f32>", "tensor<3xf32>", "tensor<f32>"])
        split = f"tensor<{_ROWS}x{COUNT}x{_WIDTH}xf32>"
        one = f"tensor<{_ROWS}x1x{_WIDTH}xf32>"
        index = "tensor<i32>, tensor<i32>, tensor<i32>"
        return f"""
func.func @main({arguments}
    %batch: {_BATCH} {{rhino.role = "batch"}}, %rate: tensor<f32> {{rhino.role = "other"}}) -> ({kinds}) {{
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %half = stablehlo.constant dense<0.5> : tensor<f32>
    %zeros = stablehlo.constant dense<0.0> : {_P}
    %zeros3 = stablehlo.constant dense<0.0> : tensor<3xf32>
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.constant dense<{COUNT}> : tensor<i32>
    %split = stablehlo.reshape %batch : ({_BATCH}) -> {split}
{chr(10).join(before)}
    %r:{n + 4} = stablehlo.while({carried}) : {types} attributes {{rhino.microbatches = {{count = {COUNT} : i64}}}}
    cond {{
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
    }} do {{
    %cut = stablehlo.dynamic_slice %split, %c0, %i, %c0, sizes = [{_ROWS}, 1, {_WIDTH}] : ({split}, {index}) -> {one}
    %b = stablehlo.reshape %cut : ({one}) -> {_X}
{chr(10).join(body)}
    %next = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %next, {", ".join(sums)}, {total}, {trace}, %same : {types}
    }}
{chr(10).join(after)}
    %sure = stablehlo.add {mean}, {count} : tensor<f32>
    return {", ".join(new)}, %sure, %r#{n + 2}, %r#{n + 3}, %batch, {shared}, %rate : {kinds}
}}
"""


def with_shardings(text: str, seed: int) -> str:
    """The same step with a mesh of two devices and layouts on everything, at random: neighbours rarely agree."""
    rng = random.Random(seed)

    def layout(kind: str) -> str:
        sizes = kind.removeprefix("tensor<").removesuffix(">").split("x")[:-1]
        split = rng.randrange(len(sizes) + 1) if sizes else 0
        dims = ", ".join('{"x"}' if d + 1 == split else "{}" for d in range(len(sizes)))
        return f"<@mesh, [{dims}]>"

    def per_value(kinds: list[str]) -> str:
        return f"sdy.sharding = #sdy.sharding_per_value<[{', '.join(map(layout, kinds))}]>"

    lines = ['sdy.mesh @mesh = <["x"=2]>']
    for line in text.splitlines():
        kinds = re.findall(_TENSOR, line)
        if "rhino.stage" in line:
            line = line.replace("{rhino.stage", f"{{{per_value(kinds[-1:])}, rhino.stage")
        elif "rhino.microbatches" in line:
            line = line.replace("{rhino.microbatches", f"{{{per_value(kinds)}, rhino.microbatches")
        elif "{rhino.role" in line:
            arguments, _, results = line.partition(" -> ")
            line = re.sub(
                r": (tensor<[^>]*>) \{",
                lambda m: f": {m[1]} {{sdy.sharding = #sdy.sharding{layout(m[1])}, ",
                arguments,
            )
            if results:
                made = [
                    f"{kind} {{sdy.sharding = #sdy.sharding{layout(kind)}}}" for kind in re.findall(_TENSOR, results)
                ]
                line += f" -> ({', '.join(made)}) {{"
        lines.append(line)
    return "\n".join(lines)

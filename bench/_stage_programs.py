"""Stages written as functions, made into a pipelined step without planning: any stage may read what any earlier made.

A stage's activations are whole on all devices of its group, its parameters split as its model says. Backward computes
its stage's forward again; the update is plain gradient descent. Owns the fragments, transfers and their programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RATE = 1e-2
AXIS = "x"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a model.

    Attributes:
      params: its parameters, a list of arrays.
      splits: of each, the dimension that is split over the devices of the group; None for whole on all.
      batch: the names of the batch's arrays that it reads.
      reads: the names that it reads of what earlier stages make; `makes`, of what it makes for later ones.
      run: of (params, batch, inputs), the outputs; of the last stage, the loss of one micro-batch.
    """

    params: Sequence[Any]
    splits: Sequence[int | None]
    batch: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    run: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class StagedModel:
    """Stages in order, and a batch cut into micro-batches: [micro-batches, rows, ...]."""

    name: str
    stages: Sequence[Stage]
    batch: Mapping[str, Any]

    @property
    def microbatches(self) -> int:
        """How many there are."""
        return int(next(iter(self.batch.values())).shape[0])

    def arguments(self) -> list[Any]:
        """The flat arguments of the step: all parameters, then what of the batch each stage reads."""
        params = [p for stage in self.stages for p in stage.params]
        return [*params, *(self.batch[name] for stage in self.stages for name in stage.batch)]

    def whole_step(self) -> Callable[..., Any]:
        """The same step for one device: (arguments) -> (new parameters..., loss)."""
        import jax

        def loss(params: Sequence[Sequence[Any]], batches: Sequence[Sequence[Any]]) -> Any:
            made: dict[str, Any] = {}
            for stage, own, batch in zip(self.stages, params, batches, strict=True):
                out = stage.run(own, batch, [made[name] for name in stage.reads])
                if stage.makes:
                    made.update(zip(stage.makes, out, strict=True))
            return out

        def step(*arguments: Any) -> Any:
            at = iter(arguments)
            params = [[next(at) for _ in stage.params] for stage in self.stages]
            batches = [[next(at) for _ in stage.batch] for stage in self.stages]

            def mean(params: Any) -> Any:
                return jax.lax.map(lambda rows: loss(params, rows), batches).mean()

            value, gradients = jax.value_and_grad(mean)(params)
            new = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
            return [*(p for own in new for p in own), value]

        return step


def build(model: StagedModel, devices: int) -> tuple[Any, list[str]]:
    """The program, whose groups have `devices` devices each in order, and the module of each of its fragments."""
    return _Builder(model, devices).build()


class _Builder:
    def __init__(self, model: StagedModel, devices: int) -> None:
        import jax
        from jax.sharding import Mesh

        self.model = model
        self.devices = devices
        # Any devices: the module of a fragment only says how many.
        self.mesh = Mesh(jax.local_devices()[:devices], (AXIS,))
        self.values: list[Any] = []
        self.modules: list[str] = []
        self.transfers = 0
        self.shapes = self._shapes()

    def _shapes(self) -> dict[str, Any]:
        """Shape and dtype of all that stages make."""
        import jax

        found: dict[str, Any] = {}
        for stage in self.model.stages[:-1]:
            batch = [jax.ShapeDtypeStruct(b.shape[1:], b.dtype) for b in self._batch(stage)]
            made = jax.eval_shape(stage.run, stage.params, batch, [found[name] for name in stage.reads])
            found.update(zip(stage.makes, made, strict=True))
        return found

    def _batch(self, stage: Stage) -> list[Any]:
        return [self.model.batch[name] for name in stage.batch]

    def value(self, stage: int, like: Any, scope: str, split: int | None = None) -> int:
        from rhino.pipeline.program import GroupValue

        names = {"float32": "f32", "int32": "i32", "uint32": "ui32"}
        sharding = tuple((AXIS,) if dim == split else () for dim in range(len(like.shape)))
        dtype = names[str(like.dtype)]
        self.values.append(GroupValue(len(self.values), stage, tuple(like.shape), dtype, sharding, scope))
        return len(self.values) - 1

    def fragment(
        self, kind: str, stage: int, run: Callable[..., Any], operands: Sequence[int], results: Sequence[int]
    ) -> Any:
        """`run` takes and returns flat lists."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        from rhino.pipeline.program import Fragment

        def sharding(index: int) -> Any:
            parts = [axes[0] if axes else None for axes in self.values[index].sharding]
            return NamedSharding(self.mesh, PartitionSpec(*parts))

        types = {"f32": "float32", "i32": "int32", "ui32": "uint32"}
        shapes = [jax.ShapeDtypeStruct(self.values[v].shape, types[self.values[v].dtype]) for v in operands]
        jitted = jax.jit(
            run,
            in_shardings=tuple(map(sharding, operands)),
            out_shardings=list(map(sharding, results)),
            keep_unused=True,
        )
        self.modules.append(jitted.lower(*shapes).as_text())
        return Fragment(len(self.modules) - 1, kind, stage, stage, 0, tuple(operands), tuple(results))

    def transfer(self, source: int, of: str, start: int, stop: int) -> Any:
        from rhino.pipeline.program import Transfer

        target = self.value(stop, self._like(source), "microbatch")
        self.transfers += 1
        return Transfer(self.transfers - 1, source, target, of, 0, start, stop)

    def _like(self, value: int) -> Any:
        import jax

        types = {"f32": "float32", "i32": "int32", "ui32": "uint32"}
        return jax.ShapeDtypeStruct(self.values[value].shape, types[self.values[value].dtype])

    def build(self) -> tuple[Any, list[str]]:
        import jax
        import jax.numpy as jnp

        from rhino.pipeline.program import GroupMesh, PipelineProgram, Result, StageArgument, StageCarry

        model, stages = self.model, self.model.stages
        count, last = len(stages), len(stages) - 1
        scalar = jax.ShapeDtypeStruct((), jnp.float32)

        def of_params(scope: str) -> list[list[int]]:
            return [
                [self.value(s, p, scope, split) for p, split in zip(stage.params, stage.splits, strict=True)]
                for s, stage in enumerate(stages)
            ]

        params = of_params("step")
        batches = [[self.value(s, b, "step") for b in self._batch(stage)] for s, stage in enumerate(stages)]
        counters = [self.value(s, jax.ShapeDtypeStruct((), jnp.uint32), "microbatch") for s in range(count)]
        scopes = ("step", "microbatch", "microbatch", "step")
        sums = list(zip(*(of_params(scope) for scope in scopes), strict=True))  # [stage][scope][parameter]
        losses = [self.value(last, scalar, scope) for scope in scopes]

        def more(s: int, which: int) -> list[int]:
            return [losses[which]] if s == last else []

        before = [
            self.fragment("prepare", s, _zeros(stage.params, s == last), [], [*sums[s][0], *more(s, 0)])
            for s, stage in enumerate(stages)
        ]
        body: list[Any] = []
        inputs: list[dict[str, int]] = [{} for _ in stages]
        for s, stage in enumerate(stages):
            made = {name: self.value(s, self.shapes[name], "microbatch") for name in stage.makes}
            operands = [*params[s], *batches[s], counters[s], *(inputs[s][name] for name in stage.reads), *more(s, 1)]
            run = _last_forward(stage, model.microbatches) if s == last else _forward(stage)
            body.append(self.fragment("forward", s, run, operands, [*made.values(), *more(s, 2)]))
            for reader in range(s + 1, count):
                for name in stage.makes:
                    if name in stages[reader].reads:
                        body.append(self.transfer(made[name], "forward", s, reader))
                        inputs[reader][name] = body[-1].target
        arriving: list[dict[str, list[int]]] = [{name: [] for name in stage.makes} for stage in stages]
        for s in reversed(range(count)):
            stage = stages[s]
            gradients = [g for name in stage.makes for g in arriving[s][name]]
            readers = [len(arriving[s][name]) for name in stage.makes]
            operands = [*params[s], *batches[s], counters[s], *(inputs[s][name] for name in stage.reads)]
            operands += [*gradients, *sums[s][1]]
            left = [self.value(s, self.shapes[name], "microbatch") for name in stage.reads]
            run = _last_backward(stage, model.microbatches) if s == last else _backward(stage, readers)
            body.append(self.fragment("backward", s, run, operands, [*left, *sums[s][2]]))
            for maker in range(s):
                for name, value in zip(stage.reads, left, strict=True):
                    if name in stages[maker].makes:
                        body.append(self.transfer(value, "backward", s, maker))
                        arriving[maker][name].append(body[-1].target)
        new = of_params("step")
        after = [
            self.fragment("update", s, _update(len(stage.params)), [*params[s], *sums[s][3]], new[s])
            for s, stage in enumerate(stages)
        ]
        carries = [StageCarry(a, b, c, d, s) for s in range(count) for a, b, c, d in zip(*sums[s], strict=True)]
        flat = [p for own in params for p in own]
        shared = [b for own in batches for b in own]
        program = PipelineProgram(
            stages=count,
            microbatches=model.microbatches,
            meshes=tuple(
                GroupMesh(f"stage{s}", ((AXIS, self.devices),), tuple(range(s * self.devices, (s + 1) * self.devices)))
                for s in range(count)
            ),
            values=tuple(self.values),
            arguments=(
                *(StageArgument(v, i, (), i, True) for i, v in enumerate(flat)),
                *(StageArgument(v, len(flat) + i, (), -1, False) for i, v in enumerate(shared)),
            ),
            results=(
                *(Result(v, i, ()) for i, v in enumerate(v for own in new for v in own)),
                Result(losses[3], len(flat), ()),
            ),
            before=tuple(before),
            body=tuple(body),
            after=tuple(after),
            carries=(*carries, StageCarry(losses[0], losses[1], losses[2], losses[3], last)),
            counters=tuple(counters),
        )
        return program, self.modules


# --- what fragments compute, of flat lists ----------------------------------------------------------------------------


def _zeros(params: Sequence[Any], loss: bool) -> Callable[..., Any]:
    import jax.numpy as jnp

    return lambda: [*(jnp.zeros(p.shape, p.dtype) for p in params), *([jnp.zeros(())] if loss else [])]


def _update(count: int) -> Callable[..., Any]:
    return lambda *args: [p - RATE * total for p, total in zip(args[:count], args[count:], strict=True)]


def _taken(stage: Stage, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Parameters, this micro-batch, inputs, and the rest."""
    import jax

    at = iter(args)
    params = [next(at) for _ in stage.params]
    batch = [next(at) for _ in stage.batch]
    index = next(at)
    inputs = [next(at) for _ in stage.reads]
    return params, [jax.lax.dynamic_index_in_dim(b, index, keepdims=False) for b in batch], inputs, list(at)


def _forward(stage: Stage) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        params, batch, inputs, _ = _taken(stage, args)
        return list(stage.run(params, batch, inputs))

    return run


def _backward(stage: Stage, readers: Sequence[int]) -> Callable[..., Any]:
    """Each output has a gradient from each of its readers."""
    import jax

    def run(*args: Any) -> Any:
        params, batch, inputs, rest = _taken(stage, args)
        gradients = []
        for count in readers:
            gradients.append(sum(rest[1:count], rest[0]))
            del rest[:count]
        _, pull = jax.vjp(lambda p, x: list(stage.run(p, batch, x)), params, inputs)
        of_params, of_inputs = pull(gradients)
        return [*of_inputs, *(total + of for total, of in zip(rest, of_params, strict=True))]

    return run


def _last_forward(stage: Stage, microbatches: int) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        params, batch, inputs, (losses,) = _taken(stage, args)
        return [losses + stage.run(params, batch, inputs) / microbatches]

    return run


def _last_backward(stage: Stage, microbatches: int) -> Callable[..., Any]:
    import jax

    def run(*args: Any) -> Any:
        params, batch, inputs, totals = _taken(stage, args)

        def loss(params: Any, inputs: Any) -> Any:
            return stage.run(params, batch, inputs) / microbatches

        of_params, of_inputs = jax.grad(loss, (0, 1))(params, inputs)
        return [*of_inputs, *(total + of for total, of in zip(totals, of_params, strict=True))]

    return run

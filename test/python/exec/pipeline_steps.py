"""Training steps of models to run as pipelines, and three steps of a pipeline against three of one device.

Owns the models' tiny forms, their optimizer, and what "the same parameters" means.

The optimizer clips by the global norm and is Adam with a large epsilon. Adam's first step is `g / (|g| + eps)`: with
the usual 1e-8, a gradient that is zero but for rounding (the bias of a key under softmax, what follows a kernel of
zeros) gives a step of full size and of random sign on either side. With 1e-3, about a tenth of the larger elements of a
clipped gradient, a step is a smooth function of the gradient, whose rounding it hands on at its own size.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jaxlib.mlir import ir

from examples.export import lower
from rhino.dialect.attributes import RhinoSchedule
from rhino.dialect.context import make_context, parse_text
from rhino.ir.pipeline.outline import outline
from rhino.ir.pipeline.program import read_program
from rhino.passes.pass_manager import PassManager
from rhino.pipeline.schedule import ScheduledStep
from rhino.request import CompileRequest
from rhino.runtime import PipelineExecutable, make_script
from rhino.runtime.compile import CompiledPipeline, compile_fragments

CLUSTER = Path(__file__).parent / "slow_devices.yaml"
STEPS = 3
LEARNING_RATE = 1e-2
EPSILON = 1e-3
NORMALISE = ("rhino-inline", "symbol-dce", "canonicalize", "rhino-classify-args")
# Compiling takes most of the time of these tests.
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

# What a tiny model changes in its preset, to have layers for four stages and little else.
TINY: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 4, "width": 32, "vocab": 64, "seq_len": 16},
    "moe": {"layers": 4, "group": 32, "seq_len": 16, "vocab": 64},
    "t5": {"vocab": 64},
    "clip": {},
    "unet": {"image": 8, "attention": (4,)},
    "wide_resnet": {},
}


@dataclass
class Model:
    """A training step, its state before the first step, and a batch for each."""

    step: Callable[..., Any]
    state: Any
    batches: list[Any]

    @cached_property
    def text(self) -> str:
        """The step as jax lowers it, the state donated."""
        return str(lower(self.step, self.state, self.batches[0]).operation.get_asm())

    @cached_property
    def results(self) -> Any:
        """The structure of what a step returns."""
        return jax.tree.structure(jax.eval_shape(self.step, self.state, self.batches[0]))

    @cached_property
    def expected(self) -> tuple[Any, list[Any]]:
        """The state after the steps on one device, and the metrics of each."""
        step = jax.jit(self.step).lower(self.state, self.batches[0]).compile(compiler_options=FAST)
        state, metrics = self.state, []
        for batch in self.batches:
            state, measured = step(state, batch)
            metrics.append(measured)
        return state, metrics


def optimizer() -> Any:
    """As the module's docstring says."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(LEARNING_RATE, eps=EPSILON))


def model_of(name: str, batch: int = 16, **changes: Any) -> Model:
    """A model of the examples with the tests' optimizer."""
    module = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(module.PRESETS["tiny"], **TINY[name] | changes)
    init, step = module.make_train_step(config)
    made = jax.jit(init)(jax.random.key(0, impl="unsafe_rbg"))
    batches = [module.example_batch(config, batch, seed=i) for i in range(STEPS)]
    # What is created as zeros (UNet's last kernels) would keep all gradients before it at zero.
    params = jax.tree.map(_started, made.params)
    state = made.replace(params=params, tx=(tx := optimizer()), opt_state=tx.init(params))
    return Model(_smooth(step), state, batches)


def _smooth(step: Callable[..., Any]) -> Callable[..., Any]:
    """A ReLU has no kink here: of 100,000 one is at 0 but for rounding, and its gradient is all or nothing."""

    def smooth(state: Any, batch: Any) -> Any:
        with mock.patch.object(nn, "relu", nn.silu):
            return step(state, batch)

    return smooth


def _started(leaf: Any) -> Any:
    if np.asarray(leaf).any():
        return leaf
    drawn = np.random.default_rng(leaf.size).standard_normal(leaf.shape) * 0.05
    return jnp.asarray(drawn, leaf.dtype)


def two_towers(batch: int = 16, dtype: str = "float32") -> Model:
    """CLIP's two towers under a loss of each pair by itself: whether it matches."""
    module = importlib.import_module("examples.models.clip")
    config = dataclasses.replace(module.PRESETS["tiny"], dtype=dtype)
    net = module.CLIP(config)

    def step(state: TrainState, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            image, text, scale = state.apply_fn({"params": params}, batch["images"], batch["texts"])
            logits = scale * (image * text).sum(axis=-1)
            return optax.sigmoid_binary_cross_entropy(logits, batch["match"]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    def example(seed: int) -> Any:
        match = np.random.default_rng(seed).integers(2, size=batch).astype(np.float32)
        return module.example_batch(config, batch, seed=seed) | {"match": match}

    first = example(0)
    params = jax.jit(net.init)(jax.random.key(0, impl="unsafe_rbg"), first["images"][:1], first["texts"][:1])["params"]
    state = TrainState.create(apply_fn=net.apply, params=jax.tree.map(_started, params), tx=optimizer())
    # The count of steps is an int until the first one.
    return Model(step, jax.tree.map(jnp.asarray, state), [example(i) for i in range(STEPS)])


def with_key(batch: int = 16) -> Model:
    """Dropout with keys split off one in the state, a frozen first layer, and Adam that knows of it."""
    random = np.random.default_rng(0)
    params = [jnp.asarray(random.standard_normal((16, 16)) / 4, jnp.float32) for _ in range(6)]
    frozen = {"frozen": optax.set_to_zero(), "trained": optimizer()}
    tx = optax.multi_transform(frozen, ["frozen"] + ["trained"] * 5)

    def step(state: Any, batch: Any) -> Any:
        params, moments, key = state
        key, used = jax.random.split(key)

        def loss_fn(params: Any) -> Any:
            h = batch["x"]
            for w, one in zip(params, jax.random.split(used, len(params)), strict=True):
                h = jnp.tanh(h @ w) * jax.random.bernoulli(one, 0.8, h.shape) / 0.8
            return jnp.mean((h - batch["y"]) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, moments = tx.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments, key), {"loss": loss}

    batches = [{k: random.standard_normal((batch, 16)).astype(np.float32) for k in "xy"} for _ in range(STEPS)]
    return Model(step, (params, tx.init(params), jax.random.key(1)), batches)


# --- planning and running ---------------------------------------------------------------------------------------------


def module_after(text: str, *passes: str) -> ir.Module:
    """The step after some passes."""
    context = make_context()
    module = parse_text(text, context)
    PassManager.parse(f"builtin.module({','.join((*NORMALISE, *passes))})", context).run(module)
    return module


def planned(model: Model, stages: int, cluster: Path = CLUSTER, **options: Any) -> ir.Module:
    """The step as the search pipelines it on 8 devices, or on those of another cluster."""
    given = {"stages": stages, "microbatches": 4, "mesh": 8 // stages, **options}
    text = " ".join(f"{name.replace('_', '-')}={value}" for name, value in given.items() if value != "")
    return module_after(model.text, f"rhino-plan-pipeline{{topology={cluster} {text}}}")


def executables(module: ir.Module, schedules: Sequence[str]) -> Iterator[tuple[str, PipelineExecutable]]:
    """The pipeline under each schedule. Fragments are compiled again only where other buffers may be reused."""
    with module.context:
        program = read_program(module)
        texts = [fragment.text for fragment in outline(module)]
    compiled: dict[Any, CompiledPipeline] = {}
    for name in schedules:
        PassManager.parse(f"builtin.module(rhino-schedule{{schedule={name}}})", module.context).run(module)
        with module.context:
            data = RhinoSchedule.of(module)
        assert data is not None
        schedule = ScheduledStep.from_data(data)
        script = make_script(program, schedule)
        if script.donated not in compiled:
            compiled[script.donated] = compile_fragments(
                program, texts, script.donated, "cpu", how=CompileRequest(FAST)
            )
        yield name, PipelineExecutable(program, schedule, script, compiled[script.donated], "cpu")


def run(model: Model, pipeline: PipelineExecutable) -> tuple[Any, list[Any]]:
    """As `Model.expected`, by the pipeline."""
    state = jax.tree.leaves(model.state)
    kept, metrics = pipeline.place([*map(_plain, state), *jax.tree.leaves(model.batches[0])])[: len(state)], []
    for batch in model.batches:
        out = pipeline.run([*kept, *jax.tree.leaves(batch)])
        kept = out[: len(state)]
        whole, measured = jax.tree.unflatten(model.results, out)
        metrics.append(jax.tree.map(np.asarray, measured))
    return jax.tree.map(np.asarray, whole), metrics


def _plain(leaf: Any) -> Any:
    return np.array(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def kept(pipeline: PipelineExecutable) -> list[int]:
    """How many parts of the state each group keeps."""
    program = pipeline.program
    groups = [program.values[a.value].group for a in program.arguments if a.donated]
    return [groups.count(g) for g in range(len(program.meshes))]


# --- comparing --------------------------------------------------------------------------------------------------------


def error(found: Any, wanted: Any) -> float:
    """The largest difference in units of what may be expected: the leaf's largest value, or what a step may move it."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape
        if b.size:
            worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), LEARNING_RATE)))
    return worst


def flat(params: Any) -> list[np.ndarray]:
    """The leaves in float64."""
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]


def distances(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> np.ndarray:
    """The length of the difference of each leaf."""
    return np.array([np.linalg.norm(a - b) for a, b in zip(found, wanted, strict=True)])

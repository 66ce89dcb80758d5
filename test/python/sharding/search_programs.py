"""Programs as jax lowers them, the cluster and conventions of published tables, and what XLA made of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from alpha_beta import AlphaBeta, Textbook
from jaxlib.mlir import ir

from rhino.compile import Collective, collective_bytes, collective_counts, compile_module
from rhino.dialect import functions, sdy
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster, Device, Level
from rhino.passes.pass_manager import PassManager
from rhino.program import Graph
from rhino.program.operations import CONTRACTIONS
from rhino.sharding import Options, Solution, plan_sharding

F32 = jnp.float32
GIB = 2**30


def spec(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    """An abstract tensor."""
    return jax.ShapeDtypeStruct(shape, dtype)


def module_of(
    function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = (), roles: bool = False
) -> ir.Module:
    """The function as jax lowers it, calls inlined, in a fresh context; with argument roles if `roles`."""
    lowered = jax.jit(function, keep_unused=True, donate_argnums=donate).lower(*arguments).compiler_ir("stablehlo")
    context = make_context()
    module = parse_text(str(lowered.operation.get_asm(enable_debug_info=True)), context)
    passes = PassManager(context).add("inline").add("symbol-dce")
    (passes.add("rhino-classify-args") if roles else passes).run(module)
    return module


def graph_of(function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Graph:
    """The function as a graph."""
    return import_graph(module_of(function, *arguments, donate=donate))


def host(devices: int, memory_bytes: int = 80 * GIB, reduce_scatter: bool = True, target: str = "h100") -> Cluster:
    """One host of equal devices on one link: 10 TFLOP/s, 1 TB/s of memory, 100 GB/s between them, 1 us a hop."""
    device = Device(target, target, {"f32": 1e13}, memory_bytes, 1e12)
    return Cluster("host", 1, devices, device, (Level("link", devices, 1e11, 1e-6),), reduce_scatter)


def solve(graph: Graph, mesh: tuple[int, ...], alpha: Sequence[float], beta: Sequence[float]) -> Solution:
    """The best plan on one mesh under the table's conventions: communication by (alpha, beta) per axis, and dots so
    dear that none is computed twice to save it.
    """
    links = AlphaBeta(mesh, alpha, beta)
    dear = 4 * links.time("all-reduce", tuple(range(len(mesh))), max(v.nbytes for v in graph.values))
    work = [dear if op.name in CONTRACTIONS else 0.0 for op in graph.ops]
    cluster = host(prod(mesh))
    model = Textbook(cluster, lambda _: links, lambda _: work)
    return plan_sharding(graph, cluster, Options(mesh=mesh), model=model)


def communication(solution: Solution) -> float:
    """All communication, the part hidden behind compute too."""
    return solution.predicted.comm_s + solution.predicted.hidden_s


def by_name(graph: Graph, solution: Solution) -> dict[str, Any]:
    """Axes per dimension of every argument, by its name in the jax function."""
    return {argument.name: solution.dims(argument.value) for argument in graph.arguments}


def compiled(module: ir.Module, graph: Graph, solution: Solution) -> tuple[dict[str, int], dict[str, int]]:
    """Annotates the module, compiles it for CPU devices, and returns counts and bytes of collectives by kind."""
    annotate(module, graph, solution)
    found = compile_module(str(module), "cpu", devices=prod(size for _, size in solution.mesh)).collectives()
    return collective_counts(found), collective_bytes(found)


def compiled_by_hand(
    module: ir.Module, mesh: Sequence[tuple[str, int]], shardings: dict[str, Any]
) -> tuple[Collective, ...]:
    """What XLA makes of shardings on arguments, and on the results that alias them, and nowhere else."""
    graph = import_graph(module)
    main = functions.find(module, "main")
    assert main is not None
    sdy.add_mesh(module, "mesh", mesh)
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    for argument, attributes in zip(graph.arguments, arguments, strict=True):
        if argument.name in shardings:
            given = sdy.tensor_sharding(module.context, "mesh", shardings[argument.name])
            attributes["sdy.sharding"] = given
            if argument.alias >= 0:
                results[argument.alias]["sdy.sharding"] = given
    functions.set_argument_attributes(main, arguments)
    functions.set_result_attributes(main, results)
    return compile_module(str(module), "cpu", devices=prod(size for _, size in mesh)).collectives()


def least_sent(graph: Graph, mesh: tuple[int, ...]) -> Solution:
    """The plan for CPU devices where computing is free, so that nothing speaks for dividing it."""
    cluster = host(prod(mesh), reduce_scatter=False, target="cpu")

    def comm(sizes: tuple[int, ...]) -> AlphaBeta:
        return AlphaBeta(sizes, (1e-6,) * len(sizes), (1e-9,) * len(sizes))

    model = Textbook(cluster, comm, lambda graph: [0.0 for _ in graph.ops])
    return plan_sharding(graph, cluster, Options(mesh=mesh), model=model)


def linear_step(layers: int, batch: int, width: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A gradient step of a chain of dense layers without biases and activations, and its arguments."""

    def network(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in ws:
            x = x @ w
        return x

    def step(ws: list[jax.Array], x: jax.Array, y: jax.Array) -> list[jax.Array]:
        out, backward = jax.vjp(network, ws, x)
        return [w - 0.1 * g for w, g in zip(ws, backward(out - y)[0], strict=True)]

    return step, ([spec(width, width)] * layers, spec(batch, width), spec(batch, width))


class DenseRelu(nn.Module):
    """Dense layers of one width, each followed by ReLU."""

    layers: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return x


def adam_step(layers: int, batch: int, width: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step of `DenseRelu` with a mean squared error and Adam, and its arguments."""
    model, optimizer = DenseRelu(layers, width), optax.adam(1e-2)

    def init(key: jax.Array, x: jax.Array) -> Any:
        params = model.init(key, x)
        return params, optimizer.init(params)

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, moments = state
        gradients = jax.grad(lambda p: jnp.mean((model.apply(p, x) - y) ** 2))(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments

    x = spec(batch, width)
    return step, (jax.eval_shape(init, jax.random.key(0), x), x, x)


def attention(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Multi-head self-attention; weights are q, k, v of (width, heads, head) and o of (heads, head, width)."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in weights[:3])
    scores = jax.nn.softmax(jnp.einsum("bqhk,bthk->bhqt", q, k) / 8)
    return jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqt,bthk->bqhk", scores, v), weights[3])


def layer_argument(layer: int, part: str, tree: str = "state[0]") -> str:
    """The name of a layer's kernel or bias among the arguments of `adam_step`: the parameter, or a moment of Adam."""
    return f"{tree}['params']['Dense_{layer}']['{part}']"


MOMENTS = ("state[1][0].mu", "state[1][0].nu")

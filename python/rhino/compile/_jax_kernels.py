"""Kernels of a step while jax lowers it: each becomes a call that a plan can split, with a body that makes its parts.

Owns the lowering rules that do so in place of jax's own, and what jax asks a GPU while it traces. One of the files that
may use jax's private modules: there is no public way to lower a primitive otherwise. Tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.compile import _jax_pallas, _jax_partitioning
from rhino.compile._jax_pallas import Blocked
from rhino.compile._jax_partitioning import Partitioned
from rhino.compile.local_kernels import Mesh, Platform, is_known, local_module, tensor_of
from rhino.compile.target import DEVICELESS, gpu_versions
from rhino.errors import RhinoError, first_line
from rhino.ir.kernel_calls import RULE, known_kernel, rule_attribute, write_kernel
from rhino.kernels.bodies import TARGET, KernelBody
from rhino.kernels.data import KernelCall, Known
from rhino.kernels.registered import Registration, registrations
from rhino.program.data import Dims


@dataclass(slots=True)
class Kernels:
    """The kernels of one lowering for a platform: their bodies, by the name that calls give them.

    With `only_types` calls are not described: for a `Lowered` whose module is replaced.
    """

    platform: Platform
    only_types: bool = False
    bodies: dict[str, KernelBody] = field(default_factory=dict)

    def lower(self, traced: Any) -> jax.stages.Lowered:
        """The `Lowered` of jax's `Traced` for the platform, with calls in place of kernels."""
        rules: list[tuple[Any, Callable[..., Any]]] = [
            (_jax_pallas.PRIMITIVE, self._pallas),
            (_jax_partitioning.PRIMITIVE, self._partitioned),
        ]
        rules += [(r.primitive, self._registered(r)) for r in registrations() if r.primitive is not None]
        parameters = mlir.LoweringParameters(override_lowering_rules=tuple(rules))
        with self.platform.here():
            return traced.lower(lowering_platforms=(self.platform.name,), _private_parameters=parameters)

    def _pallas(self, ctx: Any, *nodes: Any, **params: Any) -> Any:
        if self.only_types:
            return _emit(ctx, nodes, "").results
        made = Blocked.of(params, ctx.avals_in, self.platform)
        if made is None:
            return _jax_pallas.lower_whole(ctx, *nodes, **params)
        return self._call(ctx, nodes, made.name, made.known, made)

    def _partitioned(self, ctx: Any, *nodes: Any, **params: Any) -> Any:
        if self.only_types:
            return _emit(ctx, nodes, "").results
        whole = _jax_partitioning.whole_function(params)
        # Calls that the table knows are better split by the table: they stand in the program as they are.
        if is_known(whole, _structs(ctx.avals_in), self.platform):
            return mlir.lower_fun(whole, multiple_results=True)(ctx, *nodes)
        types = _types(ctx, params["call"].in_avals), _types(ctx, params["call"].out_avals)
        made = Partitioned.of(params, types, self.platform)
        return self._call(ctx, nodes, made.name, made.known, made)

    def _registered(self, given: Registration) -> Callable[..., Any]:
        def lower(ctx: Any, *nodes: Any, **params: Any) -> Any:
            if self.only_types:
                return _emit(ctx, nodes, "").results
            call = KernelCall(given.name, tuple(map(tensor_of, ctx.avals_in)), tuple(map(tensor_of, ctx.avals_out)))
            body = _BoundPrimitive(given, params, _structs(ctx.avals_in), self.platform)
            return self._call(ctx, nodes, given.name, given.describe(call), body)

        return lower

    def _call(self, ctx: Any, nodes: Sequence[Any], name: str, known: Known, body: KernelBody) -> Any:
        key = f"{name}#{len(self.bodies)}"
        self.bodies[key] = body
        op = _emit(ctx, nodes, key)
        op.attributes[RULE] = rule_attribute(known.rule, op.context)
        write_kernel(op, known_kernel(name, known))
        return op.results


@dataclass(frozen=True, slots=True)
class _BoundPrimitive:
    """A registered primitive on a device's part of its operands, with the parameters it has on whole ones."""

    given: Registration
    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    platform: Platform

    def local(
        self, mesh: Mesh, shapes: Sequence[Sequence[int]], operands: Sequence[Dims], results: Sequence[Dims]
    ) -> bytes:
        """See `rhino.kernels.bodies.KernelBody`."""
        whole = tuple(jax.ShapeDtypeStruct(tuple(s), a.dtype) for s, a in zip(shapes, self.operands, strict=True))
        primitive = self.given.primitive

        def part(*arrays: Any) -> Any:
            made = primitive.bind(*arrays, **self.params)
            return tuple(made) if primitive.multiple_results else (made,)

        try:
            return local_module(part, whole, mesh, operands, results, self.platform)
        except (TypeError, ValueError) as error:
            raise RhinoError(
                f"primitive '{self.given.name}' cannot be bound to local operands: {first_line(error)}",
                "its parameters hold shapes: register the function around it with jax.custom_partitioning",
            ) from None


def _emit(ctx: Any, nodes: Sequence[Any], key: str) -> Any:
    """The call of a body."""
    return stablehlo.CustomCallOp(
        _types(ctx, ctx.avals_out),
        list(nodes),
        call_target_name=ir.StringAttr.get(TARGET),
        has_side_effect=ir.BoolAttr.get(False),
        backend_config=ir.StringAttr.get(key),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
    )


def _structs(avals: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)


def _types(ctx: Any, avals: Sequence[Any]) -> list[ir.Type]:
    found, _ = mlir.ir_tree_registry.flatten([mlir.aval_to_ir_types(ctx.module_context, a) for a in avals])
    return list(found)


@contextlib.contextmanager
def as_on(target: str) -> Iterator[None]:
    """While it lasts, jax's tracing takes the GPU of a target ("h100") for its own, and cuDNN for installed.

    That is what it asks about while it traces a fused attention; without a GPU it takes the CPU's word, and refuses.
    Where a GPU is here, that one answers. On "cpu" there is no cuDNN, even where its library is installed. What jax's
    attention refuses there keeps its type, and is told for which device the step was traced.
    """
    if jax.default_backend() == "gpu" or target not in ("cpu", *DEVICELESS):
        yield
        return
    kept = {name: getattr(cudnn, name) for name in _ASKED}
    try:
        for name, answer in zip(_ASKED, _answers(target), strict=True):
            setattr(cudnn, name, answer)
        yield
    except Exception as error:
        if any(frame.f_code.co_filename == cudnn.__file__ for frame, _ in traceback.walk_tb(error.__traceback__)):
            error.add_note(
                f"jax's attention in cuDNN refuses this while the step is traced for {target}, which is planned for; "
                "give that call another implementation, or plan for a cluster whose devices have it"
            )
        raise
    finally:
        for name, function in kept.items():
            setattr(cudnn, name, function)


# What jax's attention asks of the GPU: cuDNN's version, whether it has a compute capability, and exactly that one.
_ASKED = ("check_cudnn_version", "check_compute_capability", "is_cuda_compute_capability_equal")


def _answers(target: str) -> tuple[Callable[..., Any], ...]:
    """Answers to what is `_ASKED`, of a GPU or of the CPU."""
    if target == "cpu":

        def missing() -> int:
            raise RuntimeError("cuDNN is not detected.")

        return missing, lambda wanted: False, lambda wanted: False
    capability, version = gpu_versions(target)

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split("."))

    return (
        lambda: version,
        lambda wanted: capability >= numbers(wanted),
        lambda wanted: capability == numbers(wanted),
    )

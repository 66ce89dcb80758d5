"""Functions with a partitioner of their own (`jax.custom_partitioning`): jax's, Transformer Engine's, users'.

Owns their rule, what of it their partitioner really does, and a device's part of them. One of the files that may use
jax's private modules: the primitive and its parameters are. Tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax._src.custom_partitioning import custom_partitioning_p
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding

from rhino.compile.local_kernels import Mesh, Platform, abstract_mesh, arithmetic, local_module, spec, tensor_of
from rhino.errors import RhinoError, first_line
from rhino.kernels.data import KernelCall, Known, Refused
from rhino.kernels.registered import registered
from rhino.kernels.rules import whole_rule
from rhino.kernels.table import find
from rhino.program.data import Dims, Rule
from rhino.sharding.problem import leading

PRIMITIVE = custom_partitioning_p


@dataclass(frozen=True, slots=True)
class Partitioned:
    """One call of such a function: a `rhino.kernels.bodies.KernelBody`.

    Attributes:
      whole: the function on whole arrays, flat.
      operands, results: `ShapeDtypeStruct`s.
    """

    name: str
    known: Known
    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    platform: Platform

    @classmethod
    def of(cls, params: Mapping[str, Any], types: tuple[list[Any], list[Any]], platform: Platform) -> Partitioned:
        """The function of an equation, with what its partitioner does with each factor of its rule, tried out.

        Args:
          types: the MLIR types of operands and results; a rule may be made from them.

        Raises:
          RhinoError: it is registered with a rule that does not suit its arrays.
        """
        call = params["call"]
        name = str(call.jaxpr.debug_info.func_name)
        operands, results = _structs(call.in_avals), _structs(call.out_avals)
        static = {"static_args": params["static_args"]}
        seen = KernelCall(name, tuple(map(tensor_of, operands)), tuple(map(tensor_of, results)), static)
        given, entry = registered(name), find(name)
        name = entry.name if entry is not None else name
        flops = arithmetic(call.jaxpr)
        if given is not None or entry is not None:
            try:
                known = given.describe(seen) if given is not None else entry.describe(seen)  # type: ignore[union-attr]
            except Refused as refused:
                rule, names = whole_rule([o.shape for o in operands], [r.shape for r in results])
                whole = dict.fromkeys(names, refused.message)
                known = Known(rule, names, flops, seen.nbytes, seen.operands[0].dtype, "tensor", whole)
        else:
            rule = _own_rule(params, types)
            rate = "tensor" if flops else "vector"
            names = tuple(f"f{i}" for i in range(len(rule.factor_sizes)))
            known = Known(rule, names, flops, seen.nbytes, seen.operands[0].dtype if operands else "f32", rate)
        made = cls(name, known, params, operands, results, platform)
        return replace(made, known=made._tried())

    @property
    def whole(self) -> Callable[..., Any]:
        return whole_function(self.params)

    def local(
        self, mesh: Mesh, shapes: Sequence[Sequence[int]], operands: Sequence[Dims], results: Sequence[Dims]
    ) -> bytes:
        """See `KernelBody`."""
        whole = tuple(jax.ShapeDtypeStruct(tuple(s), a.dtype) for s, a in zip(shapes, self.operands, strict=True))
        if not any(axes for dims in (*operands, *results) for axes in dims):
            return local_module(self.whole, whole, mesh, operands, results, self.platform)
        made = tuple(jax.eval_shape(self.whole, *whole)) if whole != self.operands else self.results
        part = self._part(mesh, whole, made, operands, results)
        return local_module(part, whole, mesh, operands, results, self.platform)

    def _part(
        self, mesh: Mesh, whole: Sequence[Any], made: Sequence[Any], operands: Sequence[Dims], results: Sequence[Dims]
    ) -> Callable[..., Any]:
        """What the partitioner has a device compute, as a function of flat local arrays.

        Raises:
          RhinoError: the partitioner refuses, or wants its operands or results otherwise.
        """
        params, over = self.params, abstract_mesh(mesh)

        def placed(structs: Sequence[Any], dims: Sequence[Dims]) -> list[Any]:
            return [
                jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(over, spec(d)))
                for s, d in zip(structs, dims, strict=True)
            ]

        read = jax.tree.unflatten(params["in_tree"], placed(whole, operands))
        write = jax.tree.unflatten(params["out_tree"], placed(made, results))
        try:
            _, function, out_shardings, in_shardings = params["partition"](*params["static_args"], over, read, write)
        except Exception as error:  # a user's function may fail in any way
            raise RhinoError(f"its partitioner refuses: {first_line(error)}") from None
        reads = ("operand", in_shardings, operands, params["in_tree"])
        for what, given, dims, tree in (reads, ("result", out_shardings, results, params["out_tree"])):
            for i, (sharding, want) in enumerate(zip(tree.flatten_up_to(given), dims, strict=True)):
                if sharding is not None and _dims(sharding, len(want)) != tuple(want):
                    raise RhinoError(f"its partitioner wants {what} {i} otherwise")

        def part(*arrays: Any) -> Any:
            return tuple(jax.tree.leaves(function(*jax.tree.unflatten(params["in_tree"], arrays))))

        return part

    def _tried(self) -> Known:
        """The rule without what the partitioner refuses, alone or together with a factor before."""
        known, why = self.known, dict(self.known.whole)
        rule = known.rule
        good: list[int] = []
        for f in _splittable(rule):
            problem = self._problem((f,)) or next(filter(None, (self._problem((g, f)) for g in good)), "")
            if problem:
                why[known.names[f]] = problem
                rule = replace(rule, replicate=tuple(sorted({*rule.replicate, f})))
            else:
                good.append(f)
        return replace(known, rule=rule, whole=why)

    def _problem(self, factors: tuple[int, ...]) -> str:
        """What the partitioner says to splitting these factors, each over an axis of its own; empty if it does so."""
        rule = self.known.rule
        axes = {f: (f"f{f}", _divisor(rule.factor_sizes[f])) for f in factors}
        dims = [
            [tuple((axes[g][0],) if (g := leading(rule, d)) in axes else () for d in m) for m in side]
            for side in (rule.operands, rule.results)
        ]
        try:
            part = self._part(tuple(axes.values()), self.operands, self.results, dims[0], dims[1])
            self._check(part, tuple(axes.values()), dims)
        except RhinoError as error:
            return error.message
        return ""

    def _check(self, part: Callable[..., Any], mesh: Mesh, dims: Sequence[Sequence[Dims]]) -> None:
        """Raises RhinoError unless a device's part gives what it should."""
        try:
            over = abstract_mesh(mesh)
            mapped = jax.shard_map(
                part,
                mesh=over,
                in_specs=tuple(map(spec, dims[0])),
                out_specs=tuple(map(spec, dims[1])),
                check_vma=False,
            )
            with jax.sharding.use_abstract_mesh(over):
                made = jax.eval_shape(mapped, *self.operands)
        except Exception as error:  # a user's function may fail in any way
            raise RhinoError(f"its part cannot be traced: {first_line(error)}") from None
        wanted = [(r.shape, r.dtype) for r in self.results]
        if [(m.shape, m.dtype) for m in made] != wanted:
            raise RhinoError("its part has another shape than the rule says")


def whole_function(params: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of an equation on whole arrays, flat."""
    return lambda *arrays: tuple(jaxpr_as_fun(params["call"])(*arrays))


def _structs(avals: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)


def _own_rule(params: Mapping[str, Any], types: tuple[list[Any], list[Any]]) -> Rule:
    """The Shardy rule that the function brings. What its partitioner sums by itself stays whole: nobody prices that."""
    from rhino.ir.kernel_calls import read_rule, safe

    given = params["sharding_rule"]
    if callable(given):
        given = given(*params["static_args"], abstract_mesh(()), *types)
        if isinstance(given, list | tuple) and len(given) == 2:
            text, options = given
            given = str_to_sdy_sharding_rule(text, **options)
    if isinstance(given, str):
        given = str_to_sdy_sharding_rule(given)
    if given is None:
        call = params["call"]
        return whole_rule([a.shape for a in call.in_avals], [a.shape for a in call.out_avals])[0]
    rule = read_rule(sdy_sharding_rule_to_mlir(given, *types))
    return safe(replace(rule, reduction=(), replicate=tuple(sorted({*rule.replicate, *rule.reduction}))))


def _splittable(rule: Rule) -> Iterator[int]:
    for f, size in enumerate(rule.factor_sizes):
        if size > 1 and f not in (*rule.replicate, *rule.permutation, *rule.reduction):
            places = [dim for m in (*rule.operands, *rule.results) for dim in m if f in dim]
            if places and all(leading(rule, dim) == f for dim in places):
                yield f


def _divisor(size: int) -> int:
    """The smallest prime that divides it."""
    return next(n for n in range(2, size + 1) if size % n == 0)


def _dims(sharding: Any, rank: int) -> Dims:
    """A `NamedSharding` as axes per dimension."""
    given = getattr(sharding, "spec", None)
    if given is None:
        return ((),) * rank
    dims = tuple(() if p is None else (p,) if isinstance(p, str) else tuple(p) for p in given)
    # Of more entries than dimensions the last say nothing: jax's cuDNN attention gives such.
    return (*dims, *((),) * (rank - len(dims)))[: max(rank, len(dims) if any(dims[rank:]) else rank)]

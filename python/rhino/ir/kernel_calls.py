"""Kernel calls in IR: which operations are some, what the table of kernels wants to know of them, and their rules.

Owns reading and writing calls. What is known of a kernel is `rhino.kernels`' business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.dialect.attributes import RhinoKernel
from rhino.dialect.sdy import sharding_rule
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError
from rhino.kernels.compiled import TARGETS as COMPILED
from rhino.kernels.data import KernelCall, KernelTensor, Known
from rhino.kernels.registered import registered
from rhino.program.data import Kernel, KernelMemory, Rule
from rhino.program.operations import PLACEMENT
from rhino.schema.records import write

RULE = "sdy.sharding_rule"
CUSTOM_CALL = "stablehlo.custom_call"
# Calls that only the process that traced them can partition: jax's own, and those Rhino makes of them.
PARTITIONED_BY_JAX = "CustomSPMDPartitioning"
# Marks and callbacks: XLA places them itself.
_LEFT_TO_XLA = (
    "Sharding",
    "SPMD",
    "xla.sdy.",
    "xla_",
    PLACEMENT,
    "MoveTo",
    "LayoutConstraint",
    "mhlo.",
)
_CONFIG = "mhlo.backend_config"


def kernel_of(op: ir.Operation) -> Kernel:
    """What rhino-describe-kernels wrote on an operation. Raises PassError where that is malformed, or not there."""
    try:
        found = RhinoKernel.of(op)
    except RhinoError as error:
        raise PassError(op, error.message, ["let rhino-describe-kernels write it"]) from None
    if found is None:
        raise PassError(op, "the call is not described", ["run rhino-describe-kernels"])
    kernel: Kernel = RhinoKernel.schema.read(found)
    return kernel


def write_kernel(op: ir.Operation, kernel: Kernel) -> None:
    """Writes what `kernel_of` reads."""
    RhinoKernel.attach(op, write(kernel))


def known_kernel(name: str, known: Known) -> Kernel:
    """What is known of a call, with the factors as `rule_attribute` numbers them."""
    kernel = Kernel(
        name, known.flops, known.nbytes, known.dtype, known.rate,
        maxima=known.maxima, ordered=known.ordered, held=known.held,
    )  # fmt: skip
    return renumbered(kernel, known.rule)


def renumbered(kernel: Kernel, rule: Rule) -> Kernel:
    """The kernel with factors of a rule as `rule_attribute` numbers them."""
    numbers = spelled_numbers(rule)
    held = (KernelMemory(tuple(numbers[f] for f in m.factors if f in numbers), m.nbytes) for m in kernel.held)
    ordered = (numbers[f] for f in kernel.ordered if f in numbers)
    return replace(kernel, sums=tuple(shared_sums(rule)), ordered=tuple(ordered), held=tuple(held))


def target_of(op: ir.Operation) -> str:
    """What a kernel call is a call of: the target of a custom call, the name of any other operation.

    Compiled kernels have one target for all; one that a user registered goes by its own name.
    """
    if op.name != CUSTOM_CALL:
        return str(op.name)
    own = own_name(op)
    return own if own and registered(own) is not None else str(op.attributes["call_target_name"].value)


def own_name(op: ir.Operation) -> str:
    """The name of a compiled kernel; empty where the call does not say it, and of all other calls."""
    if str(op.attributes["call_target_name"].value) not in COMPILED:
        return ""
    if "kernel_name" in op.attributes:
        return str(_plain(op.attributes["kernel_name"]))
    return str(_config(op).get("name", ""))


def is_opaque(op: ir.Operation) -> bool:
    """Whether an operation is a call whose insides XLA does not see, and does not place by itself."""
    return op.name == CUSTOM_CALL and not target_of(op).startswith(_LEFT_TO_XLA)


def without_tuple(op: ir.Operation) -> ir.Operation:
    """The call with a result for each element of the tuple that it makes; the same one if it makes none.

    Only where all that is done with the tuple is taking its elements.
    """
    if op.name != CUSTOM_CALL or len(op.results) != 1 or not isinstance(op.results[0].type, ir.TupleType):
        return op
    kind = ir.TupleType(op.results[0].type)
    kinds = [kind.get_type(i) for i in range(kind.num_types)]
    takers = [use.owner.operation for use in op.results[0].uses]
    tensors = all(isinstance(k, ir.RankedTensorType) for k in kinds)
    if not tensors or any(taker.name != "stablehlo.get_tuple_element" for taker in takers):
        return op
    attributes = {name: op.attributes[name] for name in op.attributes if name != "xla_shape"}
    made = ir.Operation.create(op.name, kinds, list(op.operands), attributes, loc=op.location, ip=ir.InsertionPoint(op))
    for taker in takers:
        taker.results[0].replace_all_uses_with(made.results[ir.IntegerAttr(taker.attributes["index"]).value])
        taker.erase()
    op.erase()
    return made


def read_call(op: ir.Operation) -> KernelCall:
    """The call as the table of kernels sees it."""
    return KernelCall(target_of(op), _tensors(op.operands), _tensors(op.results), _config(op))


def _tensors(values: Sequence[ir.Value]) -> tuple[KernelTensor, ...]:
    return tuple(tensor_of(v.type) for v in values)


def tensor_of(kind: ir.Type) -> KernelTensor:
    """Shape and element type of a tensor type; of any other no dimensions, and its text."""
    if not isinstance(kind, ir.RankedTensorType):
        return KernelTensor((), str(kind))
    return KernelTensor(tuple(kind.shape), str(kind.element_type))


def _config(op: ir.Operation) -> Mapping[str, Any]:
    if op.name != CUSTOM_CALL:
        return {name: _plain(op.attributes[name]) for name in op.attributes}
    if _CONFIG in op.attributes:
        found = _plain(op.attributes[_CONFIG])
        return found if isinstance(found, dict) else {}
    if "backend_config" not in op.attributes:
        return {}
    given = op.attributes["backend_config"]
    if isinstance(given, ir.DictAttr):
        return {named.name: _plain(named.attr) for named in given}
    text = _plain(given) if isinstance(given, ir.StringAttr) else ""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
    return {}


def _plain(attribute: ir.Attribute) -> Any:
    """The attribute as plain data where it is that, else its text."""
    if isinstance(attribute, ir.DictAttr):
        return {named.name: _plain(named.attr) for named in attribute}
    if isinstance(attribute, ir.ArrayAttr):
        return [_plain(one) for one in attribute]
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.StringAttr):
        try:
            return attribute.value_bytes.decode()
        except UnicodeDecodeError:  # compiled code
            return ""
    if isinstance(attribute, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr):
        return attribute.value
    return str(attribute)


def write_config(op: ir.Operation, changes: Mapping[tuple[str, ...], Any]) -> None:
    """Changes values in a call's configuration, by the keys that lead to them."""
    if not changes:
        return
    if _CONFIG in op.attributes:
        op.attributes[_CONFIG] = _changed(op.attributes[_CONFIG], changes)
        return
    given = op.attributes["backend_config"]
    if isinstance(given, ir.DictAttr):
        op.attributes["backend_config"] = _changed(given, changes)
        return
    data = json.loads(given.value)
    for path, value in changes.items():
        at = data
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
    op.attributes["backend_config"] = ir.StringAttr.get(json.dumps(data), op.context)


def _changed(attribute: ir.Attribute, changes: Mapping[tuple[str, ...], Any]) -> ir.Attribute:
    """A dictionary with other values, each with the type of the one that it replaces."""
    entries = {named.name: named.attr for named in ir.DictAttr(attribute)}
    for path, value in changes.items():
        key, *rest = path
        entries[key] = _changed(entries[key], {tuple(rest): value}) if rest else _like(entries[key], value)
    return ir.DictAttr.get(entries, attribute.context)


def _like(old: ir.Attribute, value: Any) -> ir.Attribute:
    context = old.context
    if isinstance(old, ir.IntegerAttr):
        return ir.IntegerAttr.get(old.type, int(value))
    if isinstance(old, ir.FloatAttr):
        return ir.FloatAttr.get(old.type, float(value))
    if isinstance(old, ir.BoolAttr):
        return ir.BoolAttr.get(bool(value), context)
    if isinstance(old, ir.DenseI64ArrayAttr):
        return ir.DenseI64ArrayAttr.get([int(v) for v in value], context)
    if isinstance(old, ir.ArrayAttr):
        return ir.ArrayAttr.get([_like(o, v) for o, v in zip(old, value, strict=True)], context)
    return ir.StringAttr.get(str(value), context)


def rule_attribute(rule: Rule, context: ir.Context) -> ir.Attribute:
    """A rule as `#sdy.op_sharding_rule`, which cannot say that a factor is summed in some results only."""
    shared = shared_sums(rule)
    rule = _spelled(rule)
    reduction = [f for f in rule.reduction if f not in shared]
    with context:
        return sharding_rule(
            rule.factor_sizes, rule.operands, rule.results, reduction, rule.replicate, rule.permutation
        )


def shared_sums(rule: Rule) -> list[int]:
    """The factors that some results have, and that are summed in the others, as `rule_attribute` numbers them."""
    rule = _spelled(rule)
    made = {f for m in rule.results for dim in m for f in dim}
    return [f for f in rule.reduction if f in made]


def spelled_numbers(rule: Rule) -> dict[int, int]:
    """The factors of a rule that `rule_attribute` keeps, and how it numbers them."""
    used = {f for m in (*rule.operands, *rule.results) for dim in m for f in _spelled_dim(rule, dim)}
    return {f: i for i, f in enumerate(sorted(used))}


def _spelled_dim(rule: Rule, factors: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(f for f in factors if rule.factor_sizes[f] != 1) or factors[:1]


def _spelled(rule: Rule) -> Rule:
    """The rule as Shardy wants it: no factor of one element beside others of its dimension, none that is not there."""
    number = spelled_numbers(rule)

    def renumbered(side: tuple[tuple[tuple[int, ...], ...], ...]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(tuple(number[f] for f in _spelled_dim(rule, dim)) for dim in m) for m in side)

    def kept(factors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[f] for f in factors if f in number)

    return Rule(
        tuple(rule.factor_sizes[f] for f in number), renumbered(rule.operands), renumbered(rule.results),
        kept(rule.reduction), kept(rule.replicate), kept(rule.permutation),
    )  # fmt: skip


def rule_of(op: ir.Operation) -> Rule:
    """The rule of a described call, with what Shardy's cannot say of it."""
    rule = read_rule(op.attributes[RULE])
    sums = kernel_of(op).sums
    return replace(rule, reduction=(*rule.reduction, *sums)) if sums else rule


def read_rule(attribute: ir.Attribute) -> Rule:
    """`#sdy.op_sharding_rule` as plain data."""
    rule = sdy.OpShardingRuleAttr(attribute)

    def mappings(tensors: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(
            tuple(tuple(sdy.DimMappingAttr(d).factor_indices) for d in sdy.TensorMappingAttr(t).dim_mappings)
            for t in tensors
        )

    return Rule(
        factor_sizes=tuple(rule.factor_sizes),
        operands=mappings(rule.operand_mappings),
        results=mappings(rule.result_mappings),
        reduction=tuple(rule.reduction_factors),
        replicate=tuple(rule.need_replication_factors),
        permutation=tuple(rule.permutation_factors),
    )


def safe(rule: Rule) -> Rule:
    """The rule without splits that leave each device a part which nothing puts together."""
    read = {f for m in rule.operands for dim in m for f in dim}
    made = {f for m in rule.results for dim in m for f in dim}
    lost = {f for f in range(len(rule.factor_sizes)) if f not in rule.reduction and (f not in read or f not in made)}
    return replace(rule, replicate=tuple(sorted({*rule.replicate, *lost})))

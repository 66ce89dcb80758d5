"""Seconds of each instruction of XLA's optimized program, by the model of the device that plans are priced by.

Owns which product or kernel an instruction is. What it moves is `hlo_traffic`'s, in which order `timeline`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from rhino.compile.collectives import Site
from rhino.compile.hlo import Computation, HloModule, HloTensor, Instruction, called_computations
from rhino.compile.hlo_traffic import is_fusion, work_of
from rhino.kernels.data import KernelCall, KernelTensor, Refused
from rhino.kernels.table import describe
from rhino.machine import Cluster
from rhino.machine.collectives import group_seconds
from rhino.machine.roofline import (
    arithmetic_seconds,
    host_seconds,
    kernel_seconds,
    launch_s,
    memory_bytes_s,
    moving_seconds,
    product_times,
    slowly_moved,
)
from rhino.program.element_types import element_type
from rhino.program.products import MatrixProduct, feature_slowness

# They name or view what is there.
FREE = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency", "partition-id",
     "replica-id", "opt-barrier", "domain")
)  # fmt: skip
# They hand on what computations that they call read.
_REFERRING = FREE | {"while", "conditional", "call", "async-start"}
# Copies between the memories of a device and its host; each way they come one after the other.
FROM_HOST, TO_HOST = "from-host", "to-host"
_WHOLE: frozenset[int] = frozenset()
_MANY = 1 << 30
_CONVOLUTION = re.compile(r"dim_labels=\w+_(\w+)->\w+")


@dataclass(frozen=True, slots=True)
class Priced:
    """What one execution of an instruction is: a "product", a "kernel" of the table, or what "moves" bytes."""

    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy between the memories of a device and its host: "from-host" or "to-host", and how many bytes."""

    kind: str
    nbytes: int


def host_copy_of(computation: Computation, one: Instruction) -> HostCopy | None:
    """The copy that an instruction is, or starts, of a whole array or of a slice that is in the host's memory."""
    operands = computation.operand_tensors(one)
    if (
        one.opcode in _REFERRING
        or one.opcode.endswith(("-done", "-update"))
        or not any(t.hosted for t in operands + one.result)
    ):
        return None
    if one.opcode == "copy-start":
        made, read = one.result[:2]
        kind = TO_HOST if made.hosted else FROM_HOST
        return HostCopy(kind, made.size_bytes) if made.hosted != read.hosted else None
    # What is started names what it reads before what it makes.
    made = one.result[len(operands) if one.opcode.endswith("-start") else 0]
    if not made.hosted:
        return HostCopy(FROM_HOST, made.size_bytes)
    row = next((t for t in operands if not t.hosted), None)
    return HostCopy(TO_HOST, row.size_bytes) if row is not None else None


class HloTimes:
    """Prices instructions of one module on a cluster's device."""

    def __init__(self, module: HloModule, cluster: Cluster) -> None:
        self.module, self.cluster = module, cluster
        self._known: dict[tuple[Any, ...], float] = {}

    def compute(self, computation: Computation, instruction: Instruction) -> Priced | None:
        """What the device does in one execution; None for what costs nothing. Sends and loops are not asked for."""
        if instruction.opcode in FREE:
            return None
        work = work_of(self.module, computation, instruction)
        bytes_s = memory_bytes_s(self.cluster)
        moved_s = work.nbytes / bytes_s
        found = product_in(self.module, computation, instruction)
        if found is not None:
            product, name = found
            flops = 2 * product.batch * product.rows * product.columns * product.depth
            arithmetic_s = arithmetic_seconds(self.cluster, flops, product.dtype, name)
            tensors = (*computation.operand_tensors(instruction), *instruction.result)
            slower_s = (
                sum((slowly_moved(self.cluster, t.shape, t.element_bytes) - 1) * t.size_bytes for t in tensors)
                / bytes_s
            )
            times = product_times(self.cluster, product, name, 1, arithmetic_s, ((_WHOLE, moved_s + slower_s),))
            return Priced("product", times.seconds())
        if instruction.opcode == "custom-call" and (kernel_s := self._kernel(computation, instruction)) is not None:
            return Priced("kernel", kernel_s)
        return Priced("moves", launch_s(self.cluster) + moving_seconds(self.cluster, work))

    def sent(self, site: Site, full_bytes: int) -> float:
        """Seconds of one execution of a collective of a full tensor of so many bytes."""
        key = (site.kind, site.groups, full_bytes)
        if key not in self._known:
            largest = max(map(len, site.groups))
            groups = [group for group in site.groups if len(group) == largest]
            self._known[key] = group_seconds(self.cluster, site.kind, groups, full_bytes)
        return self._known[key]

    def copied(self, copy: HostCopy) -> float:
        """Seconds of one execution of a copy between the memories of the device and its host."""
        return launch_s(self.cluster) + host_seconds(self.cluster, copy.nbytes)

    # --- what an instruction is -------------------------------------------------------------------------------------

    def _kernel(self, computation: Computation, instruction: Instruction) -> float | None:
        """Seconds of a call that the table of kernels knows."""
        call = KernelCall(
            _target(instruction),
            tuple(
                KernelTensor(t.shape, element_type(t.dtype) or t.dtype)
                for t in computation.operand_tensors(instruction)
            ),
            tuple(KernelTensor(t.shape, element_type(t.dtype) or t.dtype) for t in instruction.result),
            _config(instruction),
        )
        try:
            found = describe(call)
        except Refused:
            return None
        if found is None:
            return None
        known = found[1]
        shapes = [tensor.shape for tensor in call.operands]
        arithmetic_s = kernel_seconds(self.cluster, known.rate, known.dtype, known.flops, shapes)
        return launch_s(self.cluster) + max(arithmetic_s, known.nbytes / memory_bytes_s(self.cluster))


def is_convolution(instruction: Instruction) -> bool:
    """Whether it calls a library's convolution."""
    return instruction.opcode == "custom-call" and _target(instruction).startswith("__cudnn$conv")


def product_in(
    module: HloModule, computation: Computation, instruction: Instruction
) -> tuple[MatrixProduct, str] | None:
    """The dot or convolution that an instruction is, or that a fusion has inside; and its name in StableHLO."""
    if is_fusion(instruction):
        for name in called_computations(instruction).get("calls", ()):
            inside = module.computations[name]
            for one in inside.instructions.values():
                if (found := product_in(module, inside, one)) is not None:
                    return found
        return None
    operands = [
        computation.instructions[name].result[0] for name in instruction.operands[:2] if _has_result(computation, name)
    ]
    if instruction.opcode == "dot" and len(operands) == 2:
        return _dot(operands, lambda name: _dims(instruction.attributes, name)), "stablehlo.dot_general"
    if instruction.opcode == "custom-call" and len(operands) == 2:
        target = _target(instruction)
        if target.startswith("__cublas$"):
            numbers = _find(_config(instruction), "dot_dimension_numbers")
            if isinstance(numbers, Mapping):
                return _dot(operands, lambda name: _numbers(numbers, name)), "stablehlo.dot_general"
        if target.startswith("__cudnn$conv"):
            return _convolution(instruction, operands, target), "stablehlo.convolution"
    if instruction.opcode == "convolution" and len(operands) == 2:
        return _convolution(instruction, operands, ""), "stablehlo.convolution"
    return None


def _has_result(computation: Computation, name: str) -> bool:
    return bool(computation.instructions[name].result)


# --- products ---------------------------------------------------------------------------------------------------------


def _dot(operands: Sequence[HloTensor], dims: Callable[[str], Sequence[int]]) -> MatrixProduct:
    left, right = operands
    batch, summed = set(dims("lhs_batch")), set(dims("lhs_contracting"))
    other = {*dims("rhs_batch"), *dims("rhs_contracting")}
    return _product_of(
        left.dtype,
        prod(left.shape[d] for d in batch),
        prod(n for d, n in enumerate(left.shape) if d not in batch | summed),
        prod(n for d, n in enumerate(right.shape) if d not in other),
        prod(left.shape[d] for d in summed),
    )


def _convolution(instruction: Instruction, operands: Sequence[HloTensor], target: str) -> MatrixProduct:
    """A convolution, or one of its gradients, which multiply as much: by its image, its kernel and what it makes."""
    made = instruction.result[0]
    kernel = made if target.endswith("BackwardFilter") else operands[1]
    outcome = (
        operands[0] if target.endswith("BackwardInput") else operands[1] if target.endswith("BackwardFilter") else made
    )
    labels = _CONVOLUTION.search(instruction.attributes)
    columns = kernel.shape[labels.group(1).index("o")] if labels else kernel.shape[-1]
    rows, depth = prod(outcome.shape) // max(1, columns), prod(kernel.shape) // max(1, columns)
    features = kernel.shape[labels.group(1).index("i")] if labels else _MANY
    slower = feature_slowness(features, operands[0].element_bytes)
    if target.endswith("BackwardFilter"):
        rows, depth = depth, rows
    return _product_of(operands[0].dtype, 1, rows, columns, depth, slower)


def _product_of(dtype: str, batch: int, rows: int, columns: int, depth: int, slower: float = 1.0) -> MatrixProduct:
    return MatrixProduct(element_type(dtype) or dtype, batch, rows, columns, depth, (_WHOLE,) * 4, slower)


def _dims(attributes: str, name: str) -> list[int]:
    found = re.search(rf"\b{name}_dims=\{{([0-9,\s]*)\}}", attributes)
    return [int(part) for part in found.group(1).split(",") if part.strip()] if found else []


def _numbers(numbers: Mapping[str, Any], name: str) -> list[int]:
    return [int(part) for part in numbers.get(f"{name}_dimensions", ())]


# --- custom calls -----------------------------------------------------------------------------------------------------


def _target(instruction: Instruction) -> str:
    found = re.search(r'custom_call_target="([^"]*)"', instruction.raw_attributes)
    return found.group(1) if found else ""


def _config(instruction: Instruction) -> Mapping[str, Any]:
    """A call's configuration as plain data, empty where it is not JSON."""
    start = instruction.raw_attributes.find("backend_config=")
    if start < 0:
        return {}
    text = instruction.raw_attributes[start + len("backend_config=") :]
    try:
        found = json.JSONDecoder().raw_decode(json.loads(text) if text.startswith('"') else text)[0]
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _find(config: Any, key: str) -> Any:
    """The value of a key, wherever in the configuration."""
    if isinstance(config, Mapping):
        if key in config:
            return config[key]
        return next((found for inner in config.values() if (found := _find(inner, key)) is not None), None)
    return None

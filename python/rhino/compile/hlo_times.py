"""Seconds of each instruction of XLA's optimized program, by the model of the device that plans are priced by.

Owns what an instruction computes, moves and sends. Knows no order, which is `rhino.compile.timeline`'s.
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
from rhino.kernels.data import KernelCall, KernelTensor, Refused
from rhino.kernels.table import describe
from rhino.machine import Cluster
from rhino.machine.collectives import group_seconds
from rhino.machine.roofline import arithmetic_seconds, kernel_seconds, launch_s, memory_bytes_s, product_times
from rhino.program.element_types import element_type
from rhino.program.products import MatrixProduct

# They name or view what is there.
FREE = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency", "partition-id",
     "replica-id", "opt-barrier", "domain")
)  # fmt: skip
_WHOLE: frozenset[int] = frozenset()
_SLICING = ("dynamic-slice", "slice", "gather")
_CONVOLUTION = re.compile(r"dim_labels=\w+_(\w+)->\w+")


@dataclass(frozen=True, slots=True)
class Work:
    """What one execution of an instruction is: a "product", a "kernel" of the table, or what "moves" bytes."""

    kind: str
    seconds: float


class HloTimes:
    """Prices instructions of one module on a cluster's device."""

    def __init__(self, module: HloModule, cluster: Cluster) -> None:
        self.module, self.cluster = module, cluster
        self._known: dict[tuple[Any, ...], float] = {}

    def compute(self, computation: Computation, instruction: Instruction) -> Work | None:
        """What the device does in one execution; None for what costs nothing. Sends and loops are not asked for."""
        if instruction.opcode in FREE:
            return None
        moved_s = self._moved(computation, instruction) / memory_bytes_s(self.cluster)
        found = product_in(self.module, computation, instruction)
        if found is not None:
            product, name = found
            flops = 2 * product.batch * product.rows * product.columns * product.depth
            arithmetic_s = arithmetic_seconds(self.cluster, flops, product.dtype, name)
            times = product_times(self.cluster, product, name, 1, arithmetic_s, ((_WHOLE, moved_s),))
            return Work("product", times.seconds())
        if instruction.opcode == "custom-call" and (kernel_s := self._kernel(computation, instruction)) is not None:
            return Work("kernel", kernel_s)
        return Work("moves", launch_s(self.cluster) + moved_s)

    def sent(self, site: Site, full_bytes: int) -> float:
        """Seconds of one execution of a collective of a full tensor of so many bytes."""
        key = (site.kind, site.groups, full_bytes)
        if key not in self._known:
            largest = max(map(len, site.groups))
            groups = [group for group in site.groups if len(group) == largest]
            self._known[key] = group_seconds(self.cluster, site.kind, groups, full_bytes)
        return self._known[key]

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

    # --- what it moves ----------------------------------------------------------------------------------------------

    def _moved(self, computation: Computation, instruction: Instruction) -> float:
        """Bytes that one execution reads and writes: of what it only takes a slice of, that slice."""
        operands = [computation.instructions[name] for name in instruction.operands]
        written = _bytes(instruction.result)
        if instruction.opcode in _SLICING:
            return 2.0 * written
        if instruction.opcode == "dynamic-update-slice":
            return 2.0 * _bytes(operands[1].result)
        read = [float(_bytes(operand.result)) for operand in operands]
        called = called_computations(instruction).get("calls", ()) if instruction.opcode == "fusion" else ()
        for name in called:
            inside = self.module.computations[name]
            read = [_read(inside, i, whole) for i, whole in enumerate(read)]
            written = _written(inside, written)
        return sum(read) + written


def product_in(
    module: HloModule, computation: Computation, instruction: Instruction
) -> tuple[MatrixProduct, str] | None:
    """The dot or convolution that an instruction is, or that a fusion has inside; and its name in StableHLO."""
    if instruction.opcode == "fusion":
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


def _bytes(tensors: Sequence[HloTensor]) -> int:
    return sum(t.size_bytes for t in tensors)


def _read(inside: Computation, number: int, whole: float) -> float:
    """Bytes of a fusion's operand that it reads: slices, if all its readers take slices of it."""
    taken, names = 0, set()
    for one in inside.instructions.values():
        if one.opcode == "parameter" and one.literal == str(number):
            names.add(one.name)
        elif names.intersection(one.operands):
            if one.opcode == "bitcast":
                names.add(one.name)
            elif one.opcode in _SLICING and one.operands[0] in names:
                taken += _bytes(one.result)
            elif one.opcode == "dynamic-update-slice" and one.operands[0] in names:
                continue  # in place: what is kept is not read
            else:
                return whole
    return min(whole, float(taken))


def _written(inside: Computation, whole: int) -> int:
    """Bytes that a fusion writes: of what it updates in place, the update."""
    roots = [inside.instructions[inside.root]]
    if roots[0].opcode == "tuple":
        roots = [inside.instructions[name] for name in roots[0].operands]
    saved = 0
    for root in roots:
        while root.opcode == "bitcast":
            root = inside.instructions[root.operands[0]]
        if root.opcode == "dynamic-update-slice":
            saved += _bytes(root.result) - _bytes(inside.instructions[root.operands[1]].result)
    return whole - saved


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
    if target.endswith("BackwardFilter"):
        rows, depth = depth, rows
    return _product_of(operands[0].dtype, 1, rows, columns, depth)


def _product_of(dtype: str, batch: int, rows: int, columns: int, depth: int) -> MatrixProduct:
    return MatrixProduct(element_type(dtype) or dtype, batch, rows, columns, depth, (_WHOLE,) * 4)


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

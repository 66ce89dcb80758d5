"""In which memory a program keeps what: of devices, or of their hosts, as jax writes it.

Owns the attributes of arguments, results and calls that say so. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir

from rhino.program.operations import PLACEMENT

# jax's kinds of memory.
HOST, DEVICE = "pinned_host", "device"
KIND = "mhlo.memory_kind"
_FRONTEND, _BUFFER = "mhlo.frontend_attributes", "_xla_buffer_placement"


def host_kind(attributes: Mapping[str, ir.Attribute]) -> str:
    """The kind of the host's memory that an argument or a result is in, "" where it is in the device's."""
    kind = str(ir.StringAttr(attributes[KIND]).value) if KIND in attributes else ""
    return kind if is_host(kind) else ""


def is_host(kind: str) -> bool:
    """Whether a kind of memory is a host's."""
    return kind.endswith("_host")


def placed_in(call: ir.Operation) -> str:
    """The kind of memory that a `PLACEMENT` call gives its operand in, "" where it does not say."""
    given = ir.DictAttr(call.attributes[_FRONTEND]) if _FRONTEND in call.attributes else {}
    return str(ir.StringAttr(given[_BUFFER]).value) if _BUFFER in given else ""


def place(value: ir.Value, kind: str) -> ir.Value:
    """A value in a kind of memory, by a call at the insertion point, as `jax.device_put` writes it in a step."""
    text = ir.StringAttr.get
    attributes = {
        "call_target_name": text(PLACEMENT),
        "backend_config": text(""),
        "has_side_effect": ir.BoolAttr.get(True),
        _FRONTEND: ir.DictAttr.get({_BUFFER: text(kind)}),
    }
    call = ir.Operation.create("stablehlo.custom_call", results=[value.type], operands=[value], attributes=attributes)
    return call.results[0]

"""The C++ passes that jaxlib registers and that are useful here: a sentence each, and their errors made readable.

Owns the catalogue for --help and for spelling suggestions: MLIR's Python bindings cannot list what is registered. Any
other registered C++ pass works too.
"""

from __future__ import annotations

import re

NEEDS_FUNCTION = "this pass runs on 'func.func': nest it as func.func(...)"

_CORE = {
    "canonicalize": "Simplify operations to their canonical form, greedily.",
    "cse": "Merge operations that compute the same value.",
    "inline": "Replace calls by the body of the function called.",
    "symbol-dce": "Remove private functions that nothing calls.",
    "strip-debuginfo": "Replace every location by the unknown one.",
    "symbol-privatize": "Make functions private.",
    "topological-sort": "Order operations so that values are defined before they are used.",
    "print-op-stats": "Count operations by name, on standard error.",
    "loop-invariant-code-motion": "Move operations out of loops that do not need to be inside.",
    "sccp": "Propagate constants, through branches and calls.",
}
_SDY = {
    "sdy-propagation-pipeline": "Propagate shardings through the module, from import to conflict resolution.",
    "sdy-import-pipeline": "Prepare a module for propagation: constraints, data-flow edges, sharding groups.",
    "sdy-export-pipeline": "Remove what only propagation needed; close shardings.",
    "sdy-user-priority-propagate": "Propagate shardings by user priority, then by op priority.",
    "sdy-op-priority-propagate": "Propagate shardings, element-wise ops first.",
    "sdy-aggressive-propagate": "Propagate shardings and resolve conflicts by factor.",
    "sdy-basic-propagate": "Propagate shardings as far as they agree.",
    "sdy-populate-op-sharding-rules": "Write each op's factor mapping as `sdy.sharding_rule` (functions).",
    "sdy-drop-sharding-rules": "Remove `sdy.sharding_rule` (functions).",
    "sdy-insert-explicit-reshards": "Insert `sdy.reshard` and `sdy.all_reduce` where needed (functions, once).",
    "sdy-reshard-to-collectives": "Turn each `sdy.reshard` into sdy collectives (functions).",
    "sdy-convert-global-to-local": "Rewrite the program to the shapes one device holds.",
    "sdy-apply-sharding-constraints": "Move `sdy.sharding_constraint` onto the values constrained.",
    "sdy-sharding-constraint-to-reshard": "Turn `sdy.sharding_constraint` into `sdy.reshard` (functions).",
    "sdy-add-data-flow-edges": "Insert `sdy.data_flow_edge` at region operations.",
    "sdy-sink-data-flow-edges": "Remove `sdy.data_flow_edge`, keeping its sharding (functions).",
    "sdy-close-shardings": "Close open dimensions and drop replicated axes.",
    "sdy-constant-or-scalar-splitter": "Give every use of a constant its own copy.",
    "sdy-constant-or-scalar-merger": "Merge constants with equal shardings (functions).",
    "sdy-inline-meshes": "Write meshes into the shardings that name them.",
    "sdy-lift-inlined-meshes": "Give inlined meshes a symbol again.",
    "sdy-drop-sharding-and-mesh": "Remove all shardings and meshes.",
    "sdy-update-non-divisible-input-output-shardings": "Drop axes that do not divide an input or output evenly.",
}
_STABLEHLO = {
    "chlo-legalize-to-stablehlo": "Decompose chlo operations, which have no sharding rules (functions).",
    "stablehlo-canonicalize-dynamism": "Make dynamic operations static where their shapes are constant (functions).",
    "stablehlo-refine-shapes": "Replace dynamic result shapes by the inferred ones.",
    "stablehlo-legalize-composite-to-call": "Replace composites by calls of their decompositions (functions).",
    "stablehlo-refine-arguments": "Give the arguments of @main the types listed in its option.",
    "stablehlo-legalize-to-vhlo": "Convert to the versioned dialect for serialization.",
    "vhlo-legalize-to-stablehlo": "Convert back from the versioned dialect.",
}
# Group title -> {name: sentence}.
GROUPS = {"MLIR": _CORE, "Shardy": _SDY, "StableHLO": _STABLEHLO}
PASSES = {name: doc for group in GROUPS.values() for name, doc in group.items()}


def reason(name: str, error: str, stderr: str) -> str:
    """One sentence for MLIR's refusal of the pass `name`, from the exception's text and what C++ wrote to stderr."""
    said = f"{error}\n{stderr}"
    if "does not refer to a registered pass" in said:
        return f"unknown pass '{name}'"
    if found := re.search(r"no such option ([\w-]+)", said):
        return f"'{name}' has no option '{found[1]}'"
    # A bad value and a bad nesting may come together; the value is what the user must repair.
    if found := re.search(
        r"for the --([\w-]+) option: '?(.*?)'? (?:is invalid value for|value invalid for) (\w+)", said
    ):
        wanted = {"boolean": "true or false", "long": "an integer", "uint": "a natural number"}.get(
            found[3], f"a {found[3]}"
        )
        return f"'{name}': option '{found[1]}' is '{found[2]}' but must be {wanted}"
    if "restricted to 'func.func'" in said:
        return NEEDS_FUNCTION
    if found := re.search(r"restricted to '([\w.]+)'", said):
        return f"'{name}' runs on '{found[1]}' only"
    lines = [line for line in said.splitlines() if line.strip()]
    return f"'{name}' was refused: {lines[0].strip()}" if lines else f"'{name}' was refused"

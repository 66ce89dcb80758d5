"""Operations by what they do, under their names in StableHLO and Shardy.

Owns the lists that several parts of Rhino go by. What one pass alone looks for stays with it.
"""

from __future__ import annotations


def stablehlo(names: str) -> frozenset[str]:
    """The full names of operations, given without their dialect and with spaces between them."""
    return frozenset(f"stablehlo.{name}" for name in names.split())


# They multiply and add up what they contract, at the rate of the matrix units.
CONTRACTIONS = stablehlo("dot_general dot convolution")
# They reduce or choose within windows.
WINDOWED = stablehlo("reduce_window select_and_scatter")
# They contract, look up, sort or solve: each is computed by itself and decides for itself how it is split.
HEAVY = CONTRACTIONS | WINDOWED | stablehlo("gather scatter sort fft cholesky triangular_solve")
# What they make follows from nothing.
SOURCES = stablehlo("constant iota")
# The tag of a reshape that only takes apart what the operation behind it reads as it was.
APART = "apart"
# What a gradient goes through from its product to the stack of its layers, its elements all there.
PASSING = stablehlo("convert reshape transpose broadcast_in_dim")
BRANCHES = stablehlo("case if")
# Their regions are programs; those of others are scalar combiners.
NESTING = BRANCHES | stablehlo("while")
# They do nothing but lay a value out.
CONSTRAINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
# The target of a call that gives its operand in another memory.
PLACEMENT = "annotate_device_placement"
# What partial values are combined with: by operation the word for it.
COMBINERS = {f"stablehlo.{word}": word for word in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")}
# Collectives as the cost model, XLA and plans call them.
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

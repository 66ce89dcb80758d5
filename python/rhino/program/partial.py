"""Which results of parts XLA's back ends can combine over devices: the catalogue behind partial layouts.

Owns the table, measured with jaxlib 0.10.2 and 0.12 by `test/python/compile/test_partial_results.py`. What is not in
it must stay whole. `XLA: other-reducers-refused`.
"""

from __future__ import annotations

from rhino.program.element_types import FLOATS, INTEGERS

_COMPLEX = frozenset({"complex<f32>", "complex<f64>"})

# Of i1 NCCL would add bytes; it multiplies complex numbers as pairs of real ones; floats of a byte round each sum.
_COMBINED = {
    "add": INTEGERS | FLOATS | _COMPLEX,
    "multiply": INTEGERS | FLOATS,
    "maximum": INTEGERS | FLOATS,
    "minimum": INTEGERS | FLOATS,
    "and": frozenset({"i1"}),
    "or": frozenset({"i1"}),
}


def combined(kinds: tuple[str, ...], dtypes: tuple[str, ...]) -> bool:
    """Whether all devices' results of a reduction can be made one, on every back end.

    Args:
      kinds: what each result is combined with, as `rhino.dialect.reducers.combiners_of` names it.
      dtypes: MLIR element types of the results.
    """
    if len(kinds) > 1:
        # With the same reducer. XLA: variadic-parts-gathered
        return all(kinds)
    return all(dtype in _COMBINED.get(kind, ()) for kind, dtype in zip(kinds, dtypes, strict=True))

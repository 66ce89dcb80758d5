"""Which results of parts XLA's back ends can combine over devices: the catalogue behind partial layouts.

Owns the table, measured with jaxlib 0.10.2 and 0.12 by `test/python/compile/test_partial_results.py`. What is not in
it must stay whole. `XLA: other-reducers-refused`.
"""

from __future__ import annotations

_INTEGERS = frozenset(f"{sign}{bits}" for sign in ("i", "ui") for bits in (8, 16, 32, 64))
_FLOATS = frozenset({"bf16", "f16", "f32", "f64"})
_COMPLEX = frozenset({"complex<f32>", "complex<f64>"})

# Of i1 NCCL would add bytes; it multiplies complex numbers as pairs of real ones; floats of a byte round each sum.
_COMBINED = {
    "add": _INTEGERS | _FLOATS | _COMPLEX,
    "multiply": _INTEGERS | _FLOATS,
    "maximum": _INTEGERS | _FLOATS,
    "minimum": _INTEGERS | _FLOATS,
    "and": frozenset({"i1"}),
    "or": frozenset({"i1"}),
}


def combined(kinds: tuple[str, ...], dtypes: tuple[str, ...]) -> bool:
    """Whether all devices' results of a reduction can be made one, on every back end.

    Args:
      kinds: what each result is combined with, as `rhino.dialect.reducers.kinds` names it.
      dtypes: MLIR element types of the results.
    """
    if len(kinds) > 1:
        # With the same reducer. XLA: variadic-parts-gathered
        return all(kinds)
    return all(dtype in _COMBINED.get(kind, ()) for kind, dtype in zip(kinds, dtypes, strict=True))

"""Spellings of element types: NumPy's and HLO's are read as MLIR's, and MLIR's is written."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rhino.program.element_types import dtype_bytes, element_type, numpy_name, type_text

# MLIR's, NumPy's or ml_dtypes', HLO's.
SPELLINGS = [
    ("f32", "float32", "f32"),
    ("f64", "float64", "f64"),
    ("bf16", "bfloat16", "bf16"),
    ("i1", "bool", "pred"),
    ("i4", "int4", "s4"),
    ("i32", "int32", "s32"),
    ("ui8", "uint8", "u8"),
    ("complex<f64>", "complex128", "c128"),
    ("f8E4M3FN", "float8_e4m3fn", "f8e4m3fn"),
    ("f8E4M3B11FNUZ", "float8_e4m3b11fnuz", "f8e4m3b11fnuz"),
    ("f8E8M0FNU", "float8_e8m0fnu", "f8e8m0fnu"),
    ("f6E2M3FN", "float6_e2m3fn", "f6e2m3fn"),
    ("f4E2M1FN", "float4_e2m1fn", "f4e2m1fn"),
]


@pytest.mark.parametrize(("mlir", "numpy", "hlo"), SPELLINGS)
def test_the_three_spellings_of_a_type(mlir: str, numpy: str, hlo: str) -> None:
    assert [element_type(name) for name in (mlir, numpy, hlo)] == [mlir] * 3
    assert numpy_name(mlir) == numpy
    dtype = np.dtype(getattr(ml_dtypes, numpy, numpy))
    assert dtype.name == numpy
    if not mlir.startswith(("i4", "f4", "f6")):  # NumPy gives a byte to elements of less
        assert dtype_bytes(mlir) == dtype.itemsize


@pytest.mark.parametrize("name", ["", "int7", "f8", "float8", "float128", "F32", "tensor<f32>", "key<fry>", "token"])
def test_what_is_no_element_type(name: str) -> None:
    assert element_type(name) is None
    assert numpy_name(name) is None


def test_types_as_people_read_them() -> None:
    assert type_text("f32", (8, 16)) == "f32[8,16]"
    assert type_text(jnp.zeros(3, jnp.bfloat16).dtype, (3,)) == "bf16[3]"
    assert type_text(np.dtype("uint32"), ()) == "ui32[]"
    assert type_text(jax.random.key(0).dtype, ()) == "key<fry>[]"

"""Linear algebra, the largest elements and Fourier transforms in steps: split, nothing gathered, the same numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import linalg

import rhino

BATCH = 16
Step = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]


def _spd(a: jax.Array) -> jax.Array:
    return a @ jnp.swapaxes(a, -1, -2) + 8 * jnp.eye(a.shape[-1], dtype=a.dtype)


def _unit(a: jax.Array) -> jax.Array:
    """Lower triangles that are far from singular."""
    return jnp.tril(a) / 8 + jnp.eye(a.shape[-1], dtype=a.dtype)


def _tridiagonal(d: jax.Array, b: jax.Array) -> Any:
    last = jnp.arange(d.shape[-1]) == d.shape[-1] - 1
    off = jnp.where(last, 0, d)
    return linalg.tridiagonal_solve(jnp.roll(off, 1, -1), d + 8, off, b)


def _perturbed(d: jax.Array, b: jax.Array) -> Any:
    """Diagonals, some of whose pivots are next to nothing."""
    off = jnp.zeros_like(d)
    return linalg.tridiagonal_solve(off, jnp.where(d > 1, 0, d), off, b * 2, perturb_singular=True)


# A step, its operands, and where its kernels are split: dimensions of their first operands.
CASES: dict[str, tuple[Step, Shapes, dict[str, tuple[bool, ...]]]] = {
    "cholesky": (lambda a: jnp.linalg.cholesky(_spd(a)), ((BATCH, 8, 8),), {"cholesky": (True, False, False)}),
    "two batches": (lambda a: linalg.cholesky(_spd(a)), ((2, BATCH, 8, 8),), {"cholesky": (False, True, False, False)}),
    "qr": (
        lambda a: jnp.linalg.qr(a * 2),
        ((BATCH, 8, 6),),
        {"qr": (True, False, False), "householder-product": (True, False, False)},
    ),
    "qr pivoted": (
        lambda a: linalg.qr(a * 2, pivoting=True),
        ((BATCH, 8, 6),),
        {"qr-pivoted": (True, False, False), "householder-product": (True, False, False)},
    ),
    "lu": (lambda a: linalg.lu(a * 2), ((BATCH, 8, 6),), {"lu": (True, False, False)}),
    "solve": (
        lambda a, b: jnp.linalg.solve(_spd(a), b),
        ((BATCH, 8, 8), (BATCH, 8, 4)),
        {"lu": (True, False, False), "triangular-solve": (True, False, False)},
    ),
    "columns": (
        lambda a, b: linalg.triangular_solve(_unit(a), b * 2, left_side=True, lower=True),
        ((8, 8), (8, 640)),
        {"triangular-solve": (False, False)},
    ),
    "rows": (
        lambda a, b: linalg.triangular_solve(_unit(a), b * 2, left_side=False, lower=True, transpose_a=True),
        ((8, 8), (640, 8)),
        {"triangular-solve": (False, False)},
    ),
    "reflectors": (
        lambda a, t, c: linalg.ormqr(a, t, c * 2, left=True),
        ((8, 6), (6,), (8, 640)),
        {"householder-apply": (False, False)},
    ),
    "eigh": (lambda a: jnp.linalg.eigh(_spd(a)), ((BATCH, 8, 8),), {"eigh": (True, False, False)}),
    "eig": (lambda a: linalg.eig(a * 2), ((BATCH, 8, 8),), {"eig": (True, False, False)}),
    "schur": (lambda a: linalg.schur(a * 2), ((BATCH, 8, 8),), {"schur": (True, False, False)}),
    "hessenberg": (lambda a: linalg.hessenberg(a * 2), ((BATCH, 8, 8),), {"hessenberg": (True, False, False)}),
    "tridiagonal": (lambda a: linalg.tridiagonal(_spd(a)), ((BATCH, 8, 8),), {"tridiagonal": (True, False, False)}),
    "tridiagonal solve": (_tridiagonal, ((8,), (8, 640)), {"tridiagonal-solve": (False,)}),
    "perturbed": (_perturbed, ((BATCH, 8), (BATCH, 8, 6)), {"tridiagonal-solve": (True, False)}),
    # Of these a CPU has no kernel.
    "symmetric product": (lambda a, c: linalg.symmetric_product(a * 2, c), ((BATCH, 8, 6), (BATCH, 8, 8)), {}),
    "cholesky update": (lambda r, w: linalg.cholesky_update(_unit(r).T, w), ((8, 8), (8,)), {}),
    "svd": (lambda a: jnp.linalg.svd(a * 2), ((BATCH, 8, 6),), {"svd": (True, False, False)}),
    "singular values": (
        lambda a: linalg.svd(a * 2, compute_uv=False, algorithm=linalg.SvdAlgorithm.QR),
        ((BATCH, 8, 6),),
        {"svd": (True, False, False)},
    ),
    "top-k": (lambda x: lax.top_k(x * 2, 4), ((BATCH, 64),), {"top-k": (True, False)}),
    "approximate": (
        lambda x: lax.approx_max_k(x * 2, 4, reduction_dimension=0),
        ((64, BATCH),),
        {"approximate-top-k": (False, True)},
    ),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x * 2)), ((BATCH, 64),), {"fft": (True, False)}),
    "real fft": (lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x * 2) * 2), ((BATCH, 8, 8),), {"fft": (True, False, False)}),
    # Shardy and XLA split sorts by themselves.
    "sort": (lambda x: lax.sort_key_val(x * 2, lax.broadcasted_iota(jnp.int32, x.shape, 1)), ((BATCH, 64),), {}),
    "argsort": (lambda x: jnp.argsort(x * 2, axis=0), ((64, BATCH),), {}),
}


def _f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize("name", CASES)
def test_is_split_and_computes_what_one_device_does(name: str) -> None:
    step, shapes, wanted = CASES[name]
    rng = np.random.default_rng(0)
    given = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
    parallel = rhino.parallelize(step)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5),
        parallel(*given),
        jax.jit(step)(*given),
    )
    uses = parallel.plan(*given).kernels
    found = {use.name: tuple(bool(axes) for axes in use.dims) for use in uses}
    assert found == wanted
    assert not [use for use in uses if use.replicated]
    compiled = parallel.compile(*given)
    assert not compiled.collectives()
    # Something is split all the same, if not the first operand of the call: an eighth of the step's results.
    local = sum(t.size * t.dtype.itemsize for t in jax.tree.leaves(jax.eval_shape(step, *given))) // 8
    assert compiled.memory_analysis().output_bytes <= local + 1024


# Calls for GPUs, with the shapes that a device has of their first results.
GPU: dict[str, tuple[Step, Shapes, str, str]] = {
    "cholesky": (lambda a: linalg.cholesky(_spd(a)), ((BATCH, 8, 8),), "cusolver_potrf_ffi", "2,8,8"),
    "lu": (lambda a: linalg.lu(a * 2), ((BATCH, 8, 6),), "cusolver_getrf_ffi", "2,8,6"),
    "pivots": (lambda a: linalg.lu(a * 2), ((BATCH, 8, 6),), "cu_lu_pivots_to_permutation", "2,8"),
    "qr": (lambda a: linalg.qr(a * 2, full_matrices=False), ((BATCH, 8, 6),), "cusolver_geqrf_ffi", "2,8,6"),
    "q": (lambda a: linalg.qr(a * 2, full_matrices=False), ((BATCH, 8, 6),), "cusolver_orgqr_ffi", "2,8,6"),
    "qr pivoted": (lambda a: linalg.qr(a * 2, pivoting=True), ((BATCH, 8, 6),), "cuhybrid_geqp3", "2,8,6"),
    "reflectors": (lambda a, t, c: linalg.ormqr(a, t, c * 2), ((8, 6), (6,), (8, 640)), "cusolver_ormqr_ffi", "8,80"),
    "eigh": (lambda a: linalg.eigh(_spd(a)), ((BATCH, 8, 8),), "cusolver_syevd_ffi", "2,8,8"),
    "tridiagonal": (lambda a: linalg.tridiagonal(_spd(a)), ((BATCH, 8, 8),), "cusolver_sytrd_ffi", "2,8,8"),
    "tridiagonal solve": (_tridiagonal, ((8,), (8, 640)), "cusparse_gtsv2_ffi", "8,80"),
    "perturbed": (_perturbed, ((BATCH, 8), (BATCH, 8, 6)), "cu_tridiagonal_solve_perturbed", "2,8,6"),
    # Of one matrix at a time: whole on every device.
    "cholesky update": (
        lambda r, w: linalg.cholesky_update(_unit(r).T, w),
        ((8, 8), (8,)),
        "cu_cholesky_update_ffi",
        "8,8",
    ),
    "svd by Jacobi": (lambda a: linalg.svd(a * 2), ((BATCH, 8, 6),), "cusolver_gesvdj_ffi", "2,8,6"),
    "svd": (
        lambda a: linalg.svd(a * 2, algorithm=linalg.SvdAlgorithm.QR),
        ((BATCH, 8, 6),),
        "cusolver_gesvd_ffi",
        "2,8,6",
    ),
    "symmetric product": (linalg.symmetric_product, ((BATCH, 8, 6), (BATCH, 8, 8)), "cusolver_syrk_ffi", "2,8,8"),
    "triangular solve": (
        lambda a, b: linalg.triangular_solve(_unit(a), b * 2, left_side=True, lower=True),
        ((8, 8), (8, 640)),
        "__cublas$triangularSolve",
        "8,80",
    ),
}


@pytest.mark.parametrize("name", GPU)
def test_calls_for_gpus_are_compiled_with_local_shapes(name: str) -> None:
    """Down to XLA's executable: libraries are called at run time, so that none has to be here."""
    step, shapes, target, shape = GPU[name]
    compiled = rhino.parallelize(step, cluster="dgx-h100:1").compile(*(_f32(*s) for s in shapes))
    assert not compiled.collectives()
    results = re.findall(rf"= \(?\w+\[([\d,]*)\][^\n]*custom_call_target=\"{re.escape(target)}\"", compiled.hlo_text())
    assert results and set(results) == {shape}


@pytest.mark.parametrize(("step", "shape", "pattern"), [
    (lambda x: jnp.abs(jnp.fft.fft(x * 2)), (BATCH, 64), r"c64\[2,64\]\S* fft\("),
    (lambda x: lax.top_k(x * 2, 4), (BATCH, 64), r"\(f32\[2,64\]\S*, s32\[2,64\]\S*\) sort\("),
    (lambda x: lax.sort(x * 2), (BATCH, 64), r"\(?f32\[2,64\]\S* .*sort\("),
    # Of one device's rows XLA makes a choice of the largest in jax 0.10.2, a sort in 0.12: here as for one device.
    (
        lambda x: lax.approx_max_k(x * 2, 4),
        (BATCH, 4096),
        r"\(f32\[2,4\]\S*, s32\[2,4\]\S*\) custom-call\(.*__gpu\$TopK" if jax.__version__ < "0.12" else
        r"\(f32\[2,4096\]\S*, s32\[2,4096\]\S*\) sort\(",
    ),
])  # fmt: skip
def test_operations_for_gpus_are_compiled_with_local_shapes(step: Step, shape: tuple[int, ...], pattern: str) -> None:
    compiled = rhino.parallelize(step, cluster="dgx-h100:1").compile(_f32(*shape))
    assert not compiled.collectives()
    assert re.search(pattern, compiled.hlo_text())


def test_one_matrix_is_computed_whole_and_the_summary_says_why() -> None:
    plan = rhino.parallelize(lambda a: linalg.cholesky(_spd(a)), cluster="dgx-h100:1").plan(_f32(64, 64))
    (use,) = plan.kernels
    assert use.flops == 64**3 // 3
    text = " ".join(plan.summary().split())
    assert re.search(r"cholesky at \S*test_linalg.py:\d+:\d+ is computed whole by every device: the algorithm", text)


def test_right_hand_sides_with_perturbed_pivots_are_solved_together() -> None:
    """The largest of all columns decides how much a small pivot is changed: 1e-30 by nothing for columns of ones."""
    d, b = jnp.ones(8).at[3].set(1e-30), jnp.ones((8, 640)).at[:, 0].set(1e10)

    def step(d: jax.Array, b: jax.Array) -> Any:
        off = jnp.zeros_like(d)
        return linalg.tridiagonal_solve(off, d * 1, off, b * 1, perturb_singular=True)

    parallel = rhino.parallelize(step)
    np.testing.assert_allclose(parallel(d, b), jax.jit(step)(d, b), rtol=1e-5)
    (use,) = parallel.plan(d, b).kernels
    assert use.replicated


def _fit(params: Any, x: jax.Array) -> Any:
    """One step of gradient descent through all of it, each example by itself."""

    def loss(p: Any) -> jax.Array:
        h = jnp.tanh(x @ p["a"])
        solved = jax.scipy.linalg.solve_triangular(linalg.cholesky(_spd(h)), h @ p["b"], lower=True)
        largest = lax.top_k(jnp.abs(jnp.fft.rfft(x @ p["b"])) @ p["c"], 3)[0]
        return jnp.mean(solved**2) + jnp.mean(largest**2) / 100

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def test_micro_batches_in_a_pipeline_train_as_one_device_does() -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(32, 8, 8)), jnp.float32)
    params = {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in (("a", (8, 8)), ("b", (8, 8)))}
    params["c"] = jnp.asarray(rng.normal(size=(5, 8)), jnp.float32)
    step = rhino.parallelize(_fit, stages=2, microbatches=2)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6),
        step(params, x),
        jax.jit(_fit)(params, x),
    )
    uses = step.plan(params, x).kernels
    assert {use.name for use in uses} == {"cholesky", "triangular-solve", "fft", "top-k"}
    assert not [use for use in uses if use.count % 2 or use.replicated]

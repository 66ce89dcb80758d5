"""Linear algebra on batches of matrices: LAPACK, cuSOLVER, cuBLAS and cuSPARSE, as `jax.lax.linalg` calls them.

Owns which leading dimensions are the batch, which right-hand sides are independent of each other, and the counts of
arithmetic: those of LAPACK Working Note 41, and of Golub and Van Loan, "Matrix Computations", for eigenvalues and
singular values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.rules import make_rule

# Arithmetic of one matrix, from the sizes of what is read: m x n, and c right-hand sides.
Count = Callable[[KernelCall, int, int, int], int]

_WHOLE = "the algorithm works along the whole matrix"


def _known(call: KernelCall, core: int, count: Count, free: Mapping[tuple[str, int], int] | None = None) -> Known:
    """A call on each matrix of a batch.

    Args:
      core: how many of the first operand's last dimensions are the matrix.
      free: which dimension, counted from the end, holds independent right-hand sides, of ("operand" or "result", i).
    """
    first = call.operands[0]
    if len(first.shape) < core:
        raise Refused(f"its first operand has {len(first.shape)} dimensions, not at least {core}")
    rank = len(first.shape) - core
    batch = first.shape[:rank]
    whole: list[str] = []

    def factors(kind: str, i: int, tensor: KernelTensor) -> str:
        if not tensor.shape:
            return ""
        if tensor.shape[:rank] != batch:
            raise Refused(f"its {kind} {i} of shape {list(tensor.shape)} has not the batch {list(batch)} in front")
        named = [f"b{d}" for d in range(rank)]
        for d in range(rank, len(tensor.shape)):
            if free and free.get((kind, i)) == d - len(tensor.shape):
                named.append("c")
            else:
                whole.append(f"{kind[0]}{i}_{d}")
                named.append(whole[-1])
        return " ".join(named)

    sides = [
        ", ".join(factors(kind, i, tensor) for i, tensor in enumerate(tensors))
        for kind, tensors in (("operand", call.operands), ("result", call.results))
    ]
    rule, names = make_rule(" -> ".join(sides), call.operands, call.results, whole=whole)
    m, n = (first.shape[-2], first.shape[-1]) if core > 1 else (first.shape[-1], first.shape[-1])
    columns = rule.factor_sizes[names.index("c")] if "c" in names else 1
    # A product of complex numbers is four of real ones, and two of the additions go with them.
    each = 4 if first.dtype.startswith("complex") else 1
    return Known(
        rule=rule,
        names=names,
        flops=prod(batch) * each * count(call, m, n, columns),
        nbytes=call.nbytes,
        dtype=first.dtype,
        rate="vector",
        whole=dict.fromkeys(whole, _WHOLE),
    )


def _is(call: KernelCall, letter: str, *keys: str) -> bool:
    """Whether a part of the answer is wanted: by its letter in LAPACK's configuration, by a flag in cuSOLVER's."""
    given = [call.config[key] for key in keys if key in call.config]
    return any(g == ord(letter) if isinstance(g, int) and not isinstance(g, bool) else bool(g) for g in given)


def _lu(call: KernelCall, m: int, n: int, c: int) -> int:
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k * k + 2 * k**3 // 3


def _geqrf(call: KernelCall, m: int, n: int, c: int) -> int:
    k = min(m, n)
    return 2 * k * k * max(m, n) - 2 * k**3 // 3


def _orgqr(call: KernelCall, m: int, n: int, c: int) -> int:
    k = call.operands[1].shape[-1]
    return 4 * m * n * k - 2 * (m + n) * k * k + 4 * k**3 // 3


def _ormqr(call: KernelCall, m: int, n: int, c: int) -> int:
    k = call.operands[1].shape[-1]
    return (4 * m * k - 2 * k * k) * c


def _syevd(call: KernelCall, m: int, n: int, c: int) -> int:
    vectors = "mode" not in call.config or _is(call, "V", "mode")
    return 9 * n**3 if vectors else 4 * n**3 // 3


def _geev(call: KernelCall, m: int, n: int, c: int) -> int:
    left, right = _is(call, "V", "compute_left", "left"), _is(call, "V", "compute_right", "right")
    return (25 if left or right else 10) * n**3


def _gees(call: KernelCall, m: int, n: int, c: int) -> int:
    return (25 if _is(call, "V", "mode") else 10) * n**3


def _svd(call: KernelCall, m: int, n: int, c: int) -> int:
    large, small = max(m, n), min(m, n)
    if call.config.get("mode") == ord("N") or call.config.get("compute_uv") is False:
        return 4 * large * small**2 - 4 * small**3 // 3
    if _is(call, "A", "mode", "full_matrices"):
        return 4 * large**2 * small + 22 * small**3
    return 6 * large * small**2 + 20 * small**3


def _syrk(call: KernelCall, m: int, n: int, c: int) -> int:
    return m * (m + 1) * n


def _side(call: KernelCall) -> int:
    """The dimension of right-hand sides, from the end: columns where the matrix stands on their left, else rows."""
    for key in ("side", "left_side", "left"):
        if key in call.config:
            return -1 if call.config[key] in (True, ord("L")) else -2
    raise Refused("its configuration does not say on which side the matrix stands")


def _trsm(call: KernelCall) -> Known:
    free = _side(call)
    return _known(call, 2, lambda _, m, n, c: n * n * c, {("operand", 1): free, ("result", 0): free})


def _apply_q(call: KernelCall) -> Known:
    free = _side(call)
    return _known(call, 2, _ormqr_count(free), {("operand", 2): free, ("result", 0): free})


def _ormqr_count(free: int) -> Count:
    def count(call: KernelCall, m: int, n: int, c: int) -> int:
        other = call.operands[2].shape[-3 - free]
        return _ormqr(call, other, n, c)

    return count


def _tridiagonal_solve(call: KernelCall) -> Known:
    if len(call.operands) != 4:
        raise Refused(f"it has {len(call.operands)} operands, not three diagonals and right-hand sides")
    if len(call.operands[3].shape) != len(call.operands[0].shape) + 1:
        raise Refused("its right-hand sides have not one dimension more than its diagonals")
    result = 3 if len(call.results) > 3 else 0
    free = {("operand", 3): -1, ("result", result): -1}
    # jax's own solver changes a pivot that is too small for the largest of all right-hand sides
    # (jaxlib/tridiagonal_solve_perturbed.h): a part of them would be solved with another matrix.
    perturbed = "perturbed" in call.target
    # With pivots the upper factor has three diagonals. Of each row: a division and three operations for the factors; of
    # each right-hand side two to eliminate, four and a division to substitute back.
    return _known(call, 1, lambda call, m, n, c: n * (7 * call.operands[3].shape[-1] + 4), None if perturbed else free)


def _lapack(*names: str) -> tuple[str, ...]:
    """Targets in the four types; a name of two is that of real and of complex matrices."""
    found = []
    for name in names:
        real, _, complex_ = name.partition("/")
        found += [f"lapack_{t}{real if t in 'sd' else complex_ or real}_ffi" for t in "sdcz"]
    return tuple(found)


def _entry(name: str, targets: tuple[str, ...], what: str, count: Count, core: int = 2) -> Entry:
    doc = f"{what}, of each matrix of a batch. Splits the batch; the matrices stay whole."
    return Entry(name, targets, doc, partial(_known, core=core, count=count))


ENTRIES = (
    _entry(
        "cholesky",
        (*_lapack("potrf"), "cusolver_potrf_ffi", "stablehlo.cholesky"),
        "Cholesky's factor",
        lambda _, m, n, c: n**3 // 3,
    ),
    _entry(
        "cholesky-update",
        ("cu_cholesky_update_ffi",),
        "Cholesky's factor after an update of rank one",
        # A rotation of each row from its diagonal on, with the vector: four products and two sums for each pair.
        lambda _, m, n, c: 3 * n * (n + 1),
    ),
    _entry("lu", (*_lapack("getrf"), "cusolver_getrf_ffi"), "LU decomposition with pivots", _lu),
    _entry(
        "lu-pivots",
        ("cu_lu_pivots_to_permutation",),
        "The permutation that the pivots of an LU decomposition stand for",
        lambda _, m, n, c: 0,
        core=1,
    ),
    _entry("qr", (*_lapack("geqrf"), "cusolver_geqrf_ffi"), "QR decomposition as Householder reflectors", _geqrf),
    _entry("qr-pivoted", (*_lapack("geqp3"), "cuhybrid_geqp3"), "QR decomposition with pivots", _geqrf),
    _entry(
        "householder-product",
        (*_lapack("orgqr/ungqr"), "cusolver_orgqr_ffi"),
        "The product of Householder reflectors (its columns depend on all of them)",
        _orgqr,
    ),
    Entry(
        "householder-apply",
        (*_lapack("ormqr/unmqr"), "cusolver_ormqr_ffi"),
        "Householder reflectors applied to matrices. Splits the batch, and the columns of what they are applied to "
        "(the rows, if from the right).",
        _apply_q,
    ),
    _entry("eigh", (*_lapack("syevd/heevd"), "cusolver_syevd_ffi"), "Eigenvalues and vectors, symmetric", _syevd),
    _entry(
        "eig",
        (*_lapack("geev"), "cusolver_geev_ffi", "cuhybrid_eig_real", "cuhybrid_eig_comp"),
        "Eigenvalues and vectors",
        _geev,
    ),
    _entry("schur", _lapack("gees"), "Schur decomposition", _gees),
    _entry("hessenberg", _lapack("gehrd"), "Reduction to Hessenberg form", lambda _, m, n, c: 10 * n**3 // 3),
    _entry(
        "tridiagonal",
        (*_lapack("sytrd/hetrd"), "cusolver_sytrd_ffi"),
        "Reduction of symmetric matrices to tridiagonal form",
        lambda _, m, n, c: 4 * n**3 // 3,
    ),
    _entry(
        "svd",
        (*_lapack("gesdd", "gesvd"), "cusolver_gesvd_ffi", "cusolver_gesvdj_ffi", "cusolver_gesvdp_ffi"),
        "Singular values and vectors",
        _svd,
    ),
    _entry("symmetric-product", ("cusolver_syrk_ffi",), "The product of a matrix and its transpose, added up", _syrk),
    Entry(
        "triangular-solve",
        (*_lapack("trsm"), "stablehlo.triangular_solve"),
        "Triangular systems. Splits the batch, and the right-hand sides: their columns, or their rows if the matrix "
        "is on the right.",
        _trsm,
    ),
    Entry(
        "tridiagonal-solve",
        (*_lapack("gtsv"), "cusparse_gtsv2_ffi", "cu_tridiagonal_solve_perturbed", "tridiagonal_solve_perturbed_ffi"),
        "Tridiagonal systems. Splits the batch, and the columns of the right-hand sides unless pivots are perturbed.",
        _tridiagonal_solve,
    ),
)

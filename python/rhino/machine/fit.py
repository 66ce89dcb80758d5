"""Parameters of a device's model from what was measured: least relative errors, no parameter negative.

Owns the fit that calibration and `bench.device_model` share. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rhino.machine.rates import TILE, AttentionRates, ProductRates

_ROUNDS = 50
# Relative errors below this are as good as none.
_SETTLED = 0.01

# batch, rows, columns, depth, seconds
Measured = tuple[int, int, int, int, float]
# flops, scores, rows, seconds
MeasuredAttention = tuple[float, float, float, float]


def fit_products(samples: Sequence[Measured], multiprocessors: int, tile: int = TILE) -> ProductRates:
    """The parameters, none of them negative, with the least sum of relative errors over measured products.

    Relative errors are weighed by themselves until they settle, so that a few odd kernels do not pull all others.
    `tile` is the side of the tiles that are counted.

    Raises:
      ValueError: fewer samples than parameters.
    """
    if len(samples) < 4:
        raise ValueError(f"{len(samples)} products cannot tell 4 parameters")

    def rates(found: npt.NDArray[np.float64]) -> ProductRates:
        start_s, tile_s, tile_depth_s, depth_s = found.tolist()
        return ProductRates(start_s, tile_s, tile_depth_s, depth_s, tile)

    units = [rates(unit) for unit in np.eye(4)]
    terms = np.array([[unit.seconds(b, m, n, k, multiprocessors) for unit in units] for b, m, n, k, _ in samples])
    return rates(least_relative(terms, np.array([seconds for *_, seconds in samples])))


def fit_attention(samples: Sequence[MeasuredAttention]) -> AttentionRates:
    """The rates with the least sum of relative errors over measured attention of one direction.

    Raises:
      ValueError: fewer samples than parameters.
    """
    if len(samples) < 3:
        raise ValueError(f"{len(samples)} attentions cannot tell 3 parameters")
    found = least_relative(np.array([terms for *terms, _ in samples]), np.array([s for *_, s in samples]))
    return AttentionRates(*found.tolist())


def least_relative(terms: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Non-negative coefficients c with the least sum of |terms c / times - 1|.

    Iteratively reweighted least squares, over the terms whose coefficients are positive.

    Args:
      terms: [samples, parameters].
      times: [samples], all positive.
    """
    scaled = terms / times[:, None]
    found = nonnegative(scaled, np.ones(len(times)))
    for _ in range(_ROUNDS):
        before, weights = found, 1 / np.sqrt(np.abs(scaled @ found - 1) + _SETTLED)
        found = nonnegative(scaled * weights[:, None], weights)
        if np.allclose(found, before, rtol=1e-6, atol=0):
            break
    return found


def nonnegative(terms: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares over coefficients >= 0: of the few subsets of columns, the feasible one that fits best."""
    # Columns differ by many powers of ten.
    sizes = np.linalg.norm(terms, axis=0)
    columns = terms / np.where(sizes > 0, sizes, 1)
    gram, right = columns.T @ columns, columns.T @ wanted
    useful = np.flatnonzero(sizes)
    best, found = 0.0, np.zeros(terms.shape[1])
    for mask in range(1, 1 << len(useful)):
        chosen = useful[[bool(mask >> i & 1) for i in range(len(useful))]]
        try:
            values = np.linalg.solve(gram[np.ix_(chosen, chosen)], right[chosen])
        except np.linalg.LinAlgError:
            continue  # columns that say the same
        gain = float(values @ right[chosen])  # by how much the squared error falls
        if (values >= 0).all() and gain > best * (1 + 1e-12):
            best, found = gain, np.zeros(terms.shape[1])
            found[chosen] = values / sizes[chosen]
    return found

r"""SynExp: the layerwise densities that keep SynFlow's score largest in expectation.

SynFlow (Tanaka et al., 2020, arXiv 2006.05467) scores a weight by its part in the network's
path sum. Over random weights the expectation of what a crop keeps factorises into the
kept shares :math:`p_l` of the layers, so the PreCrop paper (arXiv 2203.02549, "SynExp") maximises

.. math:: \sum_l \log p_l \quad\text{subject to}\quad
   \sum_l a_l p_l \le B_\text{params},\; \sum_l f_l p_l \le B_\text{macs},\; 0 < p_l \le 1,

with :math:`a_l` the parameters and :math:`f_l` the multiply-adds of layer l. The problem is convex;
its optimality conditions give water-filling, :math:`p_l = \min(1, 1 / (\lambda a_l + \nu f_l))`.
Dropping :math:`p_l \le 1` widens the layers that matter (PreConfig).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precrop.scoring.scorer import LayerSize

Array = NDArray[np.float64]


def log_densities(params: Array, macs: Array, level: Array, tilt: float, widen: bool = False) -> Array:
    """Log densities of the layers along the family of solutions, one row per water level.

    ``params`` and ``macs`` are (L,), one entry per layer; ``level`` is (K,), increasing
    levels keep less. ``tilt`` in [0, 1] moves the price from parameters (0) to
    multiply-adds (1), each as a share of the network's total. Returns (K, L).

    With ``tilt`` 0 or 1 a row solves the problem of one budget; between, of both at once:
    :math:`\\lambda = level (1 - tilt) / \\sum a`, :math:`\\nu = level \\cdot tilt / \\sum f`.
    """
    price = (1 - tilt) * params / params.sum() + tilt * macs / macs.sum()
    with np.errstate(divide="ignore"):
        log_p = -np.log(level[:, None] * price[None, :])
    # A layer that costs nothing of what is capped stays whole.
    log_p[:, price == 0] = 0.0
    return np.asarray(log_p if widen else np.minimum(log_p, 0.0))


def densities(
    params: Array, macs: Array, params_budget: float | None = None, macs_budget: float | None = None
) -> Array:
    """The densities p_l in (0, 1] that solve the problem for budgets given as shares kept.

    ``params`` and ``macs`` are (L,). Both multipliers are found by bisection: the level for
    a fixed tilt, and the tilt at which both budgets are used up (0 or 1 where one never binds).
    """

    def solve(tilt: float) -> tuple[Array, float, float]:
        low, high = -50.0, 50.0
        for _ in range(200):
            middle = (low + high) / 2
            p = np.exp(log_densities(params, macs, np.exp([middle]), tilt))[0]
            over = (params_budget is not None and params @ p > params_budget * params.sum()) or (
                macs_budget is not None and macs @ p > macs_budget * macs.sum()
            )
            low, high = (middle, high) if over else (low, middle)
        p = np.exp(log_densities(params, macs, np.exp([high]), tilt))[0]
        return p, float(params @ p / params.sum()), float(macs @ p / macs.sum())

    if params_budget is None or macs_budget is None:
        return solve(0.0 if macs_budget is None else 1.0)[0]
    low, high = 0.0, 1.0
    for _ in range(50):
        tilt = (low + high) / 2
        _, kept_params, kept_macs = solve(tilt)
        # The multiply-adds are the tighter cap: raise their price.
        low, high = (tilt, high) if kept_macs / macs_budget > kept_params / params_budget else (low, tilt)
    return solve((low + high) / 2)[0]


def layer_densities(layers: Sequence[LayerSize], density: float) -> list[float]:
    """The densities that solve the problem for one budget, ``density`` of the parameters."""
    params = np.array([layer.params for layer in layers], float)
    macs = np.array([layer.macs for layer in layers], float)
    return [float(p) for p in densities(params, macs, params_budget=density)]

r"""Densities in given proportions that add up to a budget, none above 1.

.. math:: p_l = \min(1, c\,w_l), \qquad \sum_l a_l p_l = d \sum_l a_l

with :math:`w_l` the proportions and :math:`a_l` the layers' weights. Layers that reach 1 stay there, and the
others share what is left, until none goes above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def filled(proportions: Array, params: Array, kept: float) -> Array:
    """Densities (L,) in (0, 1] in the given proportions (L,) that keep ``kept`` of ``params`` (L,) weights."""
    whole = np.zeros(len(params), bool)
    while True:
        left = kept - params[whole].sum()
        scale = left / (params * proportions)[~whole].sum() if not whole.all() else 0.0
        above = ~whole & (scale * proportions >= 1)
        if not above.any():
            return np.where(whole, 1.0, scale * proportions)
        whole |= above

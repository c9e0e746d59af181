r"""ERK: a layer keeps the more, the smaller its weight is along its axes.

Erdős–Rényi-Kernel densities of RigL (Evci et al. 2020, arXiv 1911.11134, section 3), after the random graphs of
Mocanu et al. 2018: with a weight of shape (out, in, h, w),

.. math:: p_l \propto \frac{n_\text{out} + n_\text{in} + h + w}{n_\text{out}\, n_\text{in}\, h\, w}.

Layers whose share would pass 1 stay whole and the others share the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precrop.scoring.filling import filled
from precrop.scoring.scorer import LayerSize


def layer_densities(layers: Sequence[LayerSize], density: float) -> list[float]:
    """Densities in (0, 1] of the layers whose weighted mean is ``density``."""
    params = np.array([layer.params for layer in layers], float)
    proportions = np.array([sum(layer.shape) / np.prod(layer.shape, dtype=float) for layer in layers])
    return [float(p) for p in filled(proportions, params, density * params.sum())]

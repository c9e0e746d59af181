r"""Smart ratios: layers keep the less, the deeper they lie.

Su et al. 2020 ("Sanity-Checking Pruning Methods", arXiv 2009.11094, section 5): layer l of L keeps

.. math:: p_l \propto (L - l + 1)^2 + (L - l + 1),

and the final linear layer 30 %. The paper's networks end in a small classifier. Where 30 % of it would take more
than half of all the weights kept (a large classifier, a low density), it keeps the density asked; where the
other layers are whole and weights are still left, it takes those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precrop.scoring.filling import filled
from precrop.scoring.scorer import LayerSize

CLASSIFIER_KEPT = 0.3


def layer_densities(layers: Sequence[LayerSize], density: float) -> list[float]:
    """Densities in (0, 1] of the layers whose weighted mean is ``density``."""
    params = np.array([layer.params for layer in layers], float)
    depth = np.arange(len(layers), 0, -1.0)  # L - l + 1
    proportions = depth**2 + depth
    kept = density * params.sum()
    if len(layers) < 2 or len(layers[-1].shape) != 2:
        return [float(p) for p in filled(proportions, params, kept)]
    final = CLASSIFIER_KEPT if CLASSIFIER_KEPT * params[-1] <= kept / 2 else density
    others = min(kept - final * params[-1], params[:-1].sum())
    final = (kept - others) / params[-1]
    return [*(float(p) for p in filled(proportions[:-1], params[:-1], others)), min(1.0, float(final))]

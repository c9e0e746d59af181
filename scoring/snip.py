r"""SNIP: how much the loss changes when a connection is taken away.

Lee, Ajanthan and Torr 2019 (arXiv 1810.02340, equation 5). With an indicator c of connections, all 1,

.. math:: s_j = \frac{|g_j|}{\sum_k |g_k|}, \qquad
   g_j = \left.\frac{\partial L(c \odot \theta; D)}{\partial c_j}\right|_{c=1}
   = \theta_j \frac{\partial L}{\partial \theta_j},

from one batch D, in train mode (batch norms use the batch).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from precrop.scoring.gradients import loss_gradients
from precrop.scoring.scorer import Problem, Scores


def saliency(weights: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> Scores:
    """|θ ⊙ ∂L/∂θ| for each weight that has a gradient, divided by the sum over all of them."""
    scores = {name: (weights[name].detach() * gradient).abs() for name, gradient in gradients.items()}
    total = sum(float(part.sum(dtype=torch.float64)) for part in scores.values())
    return {name: part / total if total > 0 else part for name, part in scores.items()}


def score(problem: Problem) -> Scores:
    """SNIP's scores from the next batches, their gradients summed."""
    return saliency(problem.weights, loss_gradients(problem, problem.next_batches()))

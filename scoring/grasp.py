r"""GraSP: what taking a weight away does to the flow of gradients.

Wang, Zhang and Grosse 2020 (arXiv 2002.07376, equation 8). Taking weights away, a change of
:math:`\delta = -\theta`, changes the squared norm of the gradient by :math:`2\,\delta^\top H g`, so the paper scores a
weight by :math:`S = -\theta \odot H g`, and its code cuts the *highest* S: the weights without which the gradient
would be larger.

The sign here: this module returns :math:`-S = \theta \odot H g`, of which the **largest are kept**, since everywhere in
precrop a higher score means keep. The weights kept are those that the authors' code keeps.

:math:`g` is the gradient of the loss summed over all batches; then :math:`H g` is taken by a second backward
pass through :math:`\langle \partial L / \partial \theta, g \rangle` with g held constant, batch by batch, and summed.
Outputs are divided by a temperature of 200 before the loss. Train mode, as the authors run it; they also draw the
linear layers anew before scoring, which this does not.
"""

from __future__ import annotations

from typing import Any

import torch

from precrop.scoring.gradients import grad, loss_gradients
from precrop.scoring.outputs import scaled
from precrop.scoring.scorer import Problem, Scores
from precrop.scoring.smooth import twice_differentiable

TEMPERATURE = 200.0


def hessian_gradient(
    problem: Problem, batches: list[tuple[torch.Tensor, Any]], temperature: float = TEMPERATURE
) -> Scores:
    """H g by weight, with H and g of the loss at ``temperature`` summed over ``batches``."""
    with twice_differentiable():
        g = loss_gradients(problem, batches, temperature)
        total: Scores = {}
        for images, targets in batches:
            loss = problem.loss(scaled(problem.model(images), temperature), targets)
            again = grad(loss, problem.weights, create_graph=True)
            product = torch.stack([(g[name] * gradient).sum().to(images.device) for name, gradient in again.items()])
            for name, change in grad(product.sum(), problem.weights).items():
                total[name] = total[name] + change if name in total else change
    return {name: total.get(name, torch.zeros_like(gradient)) for name, gradient in g.items()}


def score(problem: Problem) -> Scores:
    """θ ⊙ H g from the next batches, divided by the absolute value of its sum as in the authors' code."""
    products = hessian_gradient(problem, problem.next_batches())
    scores = {name: problem.weights[name].detach() * product for name, product in products.items()}
    total = abs(sum(float(part.sum(dtype=torch.float64)) for part in scores.values()))
    return {name: part / total if total > 0 else part for name, part in scores.items()}

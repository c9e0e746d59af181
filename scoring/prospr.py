r"""ProsPr: SNIP's question asked of the network after a few steps of training.

Alizadeh et al. 2022 (arXiv 2202.08132, equation 5). The initial weights are masked once, :math:`\theta_0 = c \odot
\theta`, and trained by plain gradient descent for M steps; the score of a weight is

.. math:: s_j = \left|\frac{\partial L(\theta_M)}{\partial c_j}\right|_{c=1}, \qquad
   \theta_{i+1} = \theta_i - \alpha \frac{\partial L(\theta_i)}{\partial \theta_i},

differentiated through the steps. As by default in the authors' code: M = 3, :math:`\alpha = 0.1`, no momentum, the same
batch in every step, all parameters trained, train mode.
"""

from __future__ import annotations

import torch
from torch.func import functional_call

from precrop.scoring.gradients import grad
from precrop.scoring.scorer import Problem, Scores
from precrop.scoring.smooth import twice_differentiable

STEPS = 3
LEARNING_RATE = 0.1


def score(problem: Problem, steps: int = STEPS, learning_rate: float = LEARNING_RATE) -> Scores:
    """|dL/dc| after ``steps`` inner steps on the next batches, each step on all of them."""
    batches = problem.next_batches()
    masks = {name: torch.ones_like(weight).requires_grad_() for name, weight in problem.weights.items()}
    parameters: dict[str, torch.Tensor] = {
        name: p.detach().requires_grad_() for name, p in problem.model.named_parameters() if p.is_floating_point()
    }
    for name, mask in masks.items():
        parameters[name] = problem.weights[name].detach() * mask
    with twice_differentiable():
        for _ in range(steps):
            gradients = grad(_loss(problem, parameters, batches), parameters, create_graph=True)
            parameters = {
                name: p - learning_rate * gradients[name] if name in gradients else p for name, p in parameters.items()
            }
        found = grad(_loss(problem, parameters, batches), masks)
    return {name: gradient.abs() for name, gradient in found.items()}


def _loss(
    problem: Problem, parameters: dict[str, torch.Tensor], batches: list[tuple[torch.Tensor, object]]
) -> torch.Tensor:
    losses = [problem.loss(functional_call(problem.model, parameters, (x,)), y) for x, y in batches]
    return torch.stack(losses).mean()

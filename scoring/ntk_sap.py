r"""NTK-SAP: how much a weight matters for the spectrum of the neural tangent kernel, without data or labels.

Wang, Li and Sun 2023 (arXiv 2304.02840). The trace of the kernel is estimated by finite differences, from the change
of the outputs when the weights move a little; a weight's score is

.. math:: s_j = \left|\frac{\partial}{\partial m_j} \bigl\| f(x; m \odot \theta) -
   f(x; m \odot (\theta + \epsilon \Delta)) \bigr\|^2 \right|, \qquad \Delta \sim N(0, 1), \; x \sim N(0, 1).

Every round draws new inputs, new weights :math:`\theta` with the spread of the network's own, and new :math:`\Delta`
("new input, new weight"). As in the authors' code: :math:`\epsilon = 0.01`, batch norms take their statistics from the
round's inputs and are then held in eval mode, a cut weight stays cut, exponential schedule.
"""

from __future__ import annotations

import math

import torch
from torch.func import functional_call

from precrop.cropping.initialize import Spread, spread_of
from precrop.scoring.gradients import grad
from precrop.scoring.outputs import tensors_in
from precrop.scoring.scorer import Problem, Scores
from precrop.scoring.threshold import kth_highest, schedule

ROUNDS = 20
EPSILON = 0.01
IMAGES = 32


def score(problem: Problem, rounds: int = ROUNDS, epsilon: float = EPSILON, images: int = IMAGES) -> Scores:
    """The scores of the last round; weights cut before it have 0."""
    model, weights = problem.model, problem.weights
    spreads = {name: spread_of(weight) for name, weight in weights.items()}
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
    scores: Scores = {}
    for k, share in enumerate(schedule(problem.density, rounds)):
        with torch.no_grad():
            for name, weight in weights.items():
                _draw(weight, spreads[name])
                weight.mul_(masks[name])
            inputs = torch.randn(images, *problem.input_shape, dtype=problem.dtype).to(problem.device)
            _take_statistics(model, inputs)
        scores = {name: part * masks[name] for name, part in sensitivity(problem, inputs, masks, epsilon).items()}
        if not scores:
            return scores
        total = sum(part.numel() for part in scores.values())
        level = kth_highest(list(scores.values()), max(1, round(share * total)))
        masks |= {name: masks[name] & (part >= level) for name, part in scores.items()}
        problem.report(k + 1, rounds)
    return scores


def _draw(weight: torch.Tensor, spread: Spread) -> None:
    """New values of a spread, in place."""
    deviation = math.sqrt(spread.variance)
    if spread.uniform:
        weight.uniform_(spread.mean - math.sqrt(3) * deviation, spread.mean + math.sqrt(3) * deviation)
    else:
        weight.normal_(spread.mean, deviation)


def sensitivity(problem: Problem, inputs: torch.Tensor, masks: dict[str, torch.Tensor], epsilon: float) -> Scores:
    """|∂/∂m ‖f(x; m ⊙ θ) − f(x; m ⊙ (θ + εΔ))‖²| by weight, Δ drawn here, at the masks given."""
    plain = {name: weight.detach() for name, weight in problem.weights.items()}
    moved = {name: weight + epsilon * torch.randn_like(weight) for name, weight in plain.items()}
    m = {name: masks[name].to(weight.dtype).requires_grad_() for name, weight in plain.items()}
    first, second = (
        tensors_in(functional_call(problem.model, {name: m[name] * w for name, w in values.items()}, (inputs,)))
        for values in (plain, moved)
    )
    changes = [(a - b).square().sum() for a, b in zip(first, second, strict=True)]
    distance = torch.stack([change.to(problem.device) for change in changes]).sum()
    return {name: gradient.abs() for name, gradient in grad(distance, m).items()}


def _take_statistics(model: torch.nn.Module, inputs: torch.Tensor) -> None:
    """Make the statistics of every batch norm those of these inputs, and leave the network in eval mode."""
    for module in model.modules():
        if hasattr(module, "reset_running_stats") and getattr(module, "track_running_stats", False):
            module.reset_running_stats()  # type: ignore[operator]
            module.momentum = None  # type: ignore[assignment]
    model.train()
    model(inputs)
    model.eval()

"""The gradient of the loss by the weights, over some batches."""

from __future__ import annotations

from typing import Any

import torch

from precrop.scoring.outputs import scaled
from precrop.scoring.scorer import Problem, Scores


def loss_gradients(
    problem: Problem,
    batches: list[tuple[torch.Tensor, Any]],
    temperature: float = 1.0,
) -> Scores:
    """Gradients summed over ``batches``, by weight; a weight that the loss does not depend on is left out.

    The network's outputs are divided by ``temperature`` before the loss.
    """
    total: Scores = {}
    for images, targets in batches:
        loss = problem.loss(scaled(problem.model(images), temperature), targets)
        for name, gradient in grad(loss, problem.weights).items():
            total[name] = total[name] + gradient if name in total else gradient
    return total


def grad(value: torch.Tensor, weights: dict[str, Any], create_graph: bool = False) -> Scores:
    """The gradient of a scalar by each weight that it depends on."""
    if not value.requires_grad:
        return {}
    if not create_graph and all(weight.is_leaf for weight in weights.values()):
        # Plain backward, which checkpointed activations need.
        for weight in weights.values():
            weight.grad = None
        value.backward()  # type: ignore[no-untyped-call]
        gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
        for weight in weights.values():
            weight.grad = None
        return gradients
    found = torch.autograd.grad(value, list(weights.values()), create_graph=create_graph, allow_unused=True)
    return {name: gradient for name, gradient in zip(weights, found, strict=True) if gradient is not None}

"""Initializations, and the variance that each gives: what a crop's tensors are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

Shape = tuple[int, ...]


def _fans(shape: Shape) -> tuple[int, int]:
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


#: Rule of a weight: how it is drawn, its variance at a shape, and the kurtosis of its distribution.
WEIGHTS: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[Shape], float], float]] = {
    "default": (lambda w: nn.init.kaiming_uniform_(w, a=5**0.5), lambda s: 1 / (3 * _fans(s)[0]), 1.8),
    "kaiming fan_out": (
        lambda w: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
        lambda s: 2 / _fans(s)[1],
        3,
    ),
    "kaiming fan_in": (lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"), lambda s: 2 / _fans(s)[0], 3),
    "xavier": (nn.init.xavier_uniform_, lambda s: 2 / sum(_fans(s)), 1.8),
    "fixed": (lambda w: nn.init.trunc_normal_(w, std=0.02), lambda s: 0.02**2, 3),
    "uniform": (lambda w: nn.init.uniform_(w, -0.1, 0.1), lambda s: 0.1**2 / 3, 1.8),
}

#: Rule of a bias, given the shape of its weight. None: constant.
BIASES: dict[str, Callable[[torch.Tensor, Shape], object]] = {
    "default": lambda b, s: nn.init.uniform_(b, -(_fans(s)[0] ** -0.5), _fans(s)[0] ** -0.5),
    "zeros": lambda b, s: nn.init.zeros_(b),
}


def bias_variance(rule: str, weight: Shape) -> float:
    """The variance of a bias beside a weight of some shape."""
    return 1 / (3 * _fans(weight)[0]) if rule == "default" else 0.0


def initialize(model: nn.Module, weights: str, biases: str) -> None:
    """Draw every layer's weight and bias by the rules of these names."""
    with torch.no_grad():
        for weight, bias in layers(model):
            WEIGHTS[weights][0](weight)
            if bias is not None:
                BIASES[biases](bias, tuple(weight.shape))


def layers(model: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter | None]]:
    """The weight and bias of every layer: modules whose weight has two axes or more."""
    found = []
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() > 1:
            found.append((weight, module._parameters.get("bias")))
    return found

r"""SynFlow: the part of each weight in the network's path sum, cut in a hundred rounds.

Tanaka, Kunin, Yamins and Ganguli 2020 (arXiv 2006.05467, algorithm 1). With absolute weights and an input of ones, R is
the sum of the outputs, and a weight scores

.. math:: R = \mathbb{1}^\top \Bigl(\prod_l |\theta_l|\Bigr) \mathbb{1}, \qquad
   s = \Bigl|\theta \odot \frac{\partial R}{\partial \theta}\Bigr|.

Round k of 100 keeps the share density^((k + 1) / 100) of the highest scores; what is cut stays cut. In float64 and
eval mode. As in the authors' code all parameters and buffers are taken absolutely, biases and the shifts of norms too.
`precrop.scoring.linearize` says what is done about functions under which R would not depend on the weights.

A network of several hundred layers has a path sum beyond float64. Where R leaves :math:`10^{\pm 100}`, all weights are
multiplied by one factor that brings it back near 1: R is a polynomial whose mean degree is :math:`\sum_i s_i / R`,
so the factor is :math:`R^{-1/\text{degree}}`. One factor for all weights changes the ratio of two paths' products
only where their lengths differ.
"""

from __future__ import annotations

import math

import torch

from precrop.errors import ScoreError
from precrop.scoring.gradients import grad
from precrop.scoring.linearize import Linearized, linearize
from precrop.scoring.outputs import tensors_in
from precrop.scoring.scorer import Problem, Scores
from precrop.scoring.threshold import cut_, kth_highest, schedule

ROUNDS = 100
# Where R is rescaled, as a power of ten, and how often at most in a round.
_FARTHEST = 100.0
_TRIES = 60


def path_sum(problem: Problem, mode: Linearized) -> torch.Tensor:
    """R: the sum of all outputs for one image of ones. The network must have been linearized."""
    image = torch.ones(1, *problem.input_shape, dtype=problem.dtype, device=problem.device)
    with mode:
        outputs = tensors_in(problem.model(image))
    return torch.stack([output.sum().to(problem.device) for output in outputs]).sum()


def score(problem: Problem, rounds: int = ROUNDS) -> Scores:
    """The scores of the last round; weights cut before it have 0."""
    linearize(problem.model)
    mode = Linearized()
    if not grad(path_sum(problem, mode), problem.weights):
        mode = Linearized(gates=False)
    scores: Scores = {}
    for k, share in enumerate(schedule(problem.density, rounds)):
        scores = _round(problem, mode)
        if not scores:
            return scores
        total = sum(part.numel() for part in scores.values())
        level = kth_highest(list(scores.values()), max(1, round(share * total)))
        if level > 0:
            with torch.no_grad():
                for name, part in scores.items():
                    cut_(problem.weights[name], part, level)
        problem.report(k + 1, rounds)
    return scores


def _round(problem: Problem, mode: Linearized) -> Scores:
    """θ ⊙ ∂R/∂θ, after as many rescalings of the weights as R needs."""
    step, direction = 2.0, 0
    for _ in range(_TRIES):
        total = path_sum(problem, mode)
        gradients = grad(total, problem.weights)
        with torch.no_grad():
            scores = {name: part.mul_(problem.weights[name]).abs_() for name, part in gradients.items()}
        size = abs(float(total.detach()))
        power = math.log10(size) if 0 < size < math.inf else math.copysign(math.inf, size - 1)
        if abs(power) < _FARTHEST:
            return scores
        degree = sum(float(part.sum()) for part in scores.values()) / size if 0 < size < math.inf else math.nan
        if 0 < degree < math.inf:
            _rescale(problem, 10 ** (-power / degree))
            continue
        # Beyond float64: go half of the way back whenever the other end is passed.
        now = -1 if power > 0 else 1
        step = math.sqrt(step) if direction == -now else step
        direction = now
        _rescale(problem, step**now)
    if size == 0:
        raise ScoreError(
            "SynFlow's path sum is zero: no path leads from the input to the output. Check for a layer whose weights "
            "are zero, or ask for a larger density."
        )
    raise ScoreError(
        "SynFlow's path sum stays outside the range of float64 however the weights are scaled. Use scorer='synexp', "
        "its closed form."
    )


def _rescale(problem: Problem, factor: float) -> None:
    with torch.no_grad():
        for weight in problem.weights.values():
            weight.mul_(factor)

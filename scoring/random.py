"""Random: scores drawn uniformly at random. All layers keep the same share, but for chance."""

from __future__ import annotations

import torch

from precrop.scoring.scorer import Problem, Scores


def score(problem: Problem) -> Scores:
    """A draw from [0, 1) for each weight, on the CPU's generator so that the device does not matter."""
    return {name: torch.rand(weight.shape).to(weight.device) for name, weight in problem.weights.items()}

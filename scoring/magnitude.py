"""Magnitude: the absolute initial weight, ranked over the whole network.

Before training this ranks layers by the spread that they were drawn with: a layer with few inputs keeps more.
Frankle et al. 2021 (arXiv 2009.08576) use it as a baseline of pruning at initialization.
"""

from __future__ import annotations

from precrop.scoring.scorer import Problem, Scores


def score(problem: Problem) -> Scores:
    """The absolute value of each weight."""
    return {name: weight.detach().abs() for name, weight in problem.weights.items()}

"""Scoring in rounds: rank, cut a little, rank what is left.

De Jorge et al. 2021 ("Progressive Skeletonization", arXiv 2006.09081): after round k the share
density^((k + 1) / rounds) is kept, each round ranked on the network as the last round cut it.
"""

from __future__ import annotations

import torch

from precrop.scoring.gradients import loss_gradients
from precrop.scoring.scorer import Problem, Scores
from precrop.scoring.snip import saliency
from precrop.scoring.threshold import kth_highest, schedule

ROUNDS = 60


def progressive(problem: Problem, come_back: bool, rounds: int = ROUNDS) -> Scores:
    """The last round's |θ ⊙ ∂L/∂θ|, the gradient at the network as it was cut so far.

    With ``come_back`` θ are the initial weights, so a weight that was cut is ranked as well and may return
    (FORCE); without, a cut weight is 0 and scores 0 (iterative SNIP). Each round takes the next batches.
    """
    initial = {name: weight.detach().clone() for name, weight in problem.weights.items()}
    scores: Scores = {}
    for k, share in enumerate(schedule(problem.density, rounds)):
        gradients = loss_gradients(problem, problem.next_batches())
        scores = saliency(initial if come_back else problem.weights, gradients)
        if not scores:
            return scores
        total = sum(part.numel() for part in scores.values())
        level = kth_highest(list(scores.values()), max(1, round(share * total)))
        with torch.no_grad():
            for name, part in scores.items():
                problem.weights[name].copy_((initial[name] if come_back else problem.weights[name]) * (part >= level))
        problem.report(k + 1, rounds)
    return scores

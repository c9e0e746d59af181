"""Iterative SNIP: SNIP's score in rounds; a weight that is cut stays cut.

De Jorge et al. 2021 (arXiv 2006.09081, section 4), where it is the stricter sibling of FORCE. 60 rounds on the
exponential schedule, train mode, a fresh batch each round.
"""

from __future__ import annotations

from precrop.scoring.rounds import progressive
from precrop.scoring.scorer import Problem, Scores


def score(problem: Problem) -> Scores:
    """The scores of the last round; weights cut before it have 0."""
    return progressive(problem, come_back=False)

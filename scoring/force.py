r"""FORCE: foresight connection sensitivity, SNIP's score measured after the cut.

De Jorge et al. 2021 (arXiv 2006.09081, equation 6): a weight is worth

.. math:: s_j = \left|\theta_j \frac{\partial L(\bar\theta)}{\partial \theta_j}\right|

with the gradient taken at the *cut* network :math:`\bar\theta`. A weight that was cut is ranked by its initial
value, so it may come back. 60 rounds on the exponential schedule, train mode, a fresh batch each round.
"""

from __future__ import annotations

from precrop.scoring.rounds import progressive
from precrop.scoring.scorer import Problem, Scores


def score(problem: Problem) -> Scores:
    """The scores of the last round."""
    return progressive(problem, come_back=True)

"""Layerwise densities: what share of each layer's weights a budget is spent on.

A pruning-at-initialization scorer is one file and one row of `SCORERS`; `precrop.score` runs it.
"""

from precrop.scoring import (
    erk,
    force,
    grasp,
    iterative_snip,
    magnitude,
    ntk_sap,
    prospr,
    random,
    smart_ratio,
    snip,
    synexp,
    synflow,
    uniform,
)
from precrop.scoring.densities import Densities as Densities
from precrop.scoring.scorer import Scorer as Scorer

SCORERS: dict[str, Scorer] = {
    "synexp": Scorer(
        "SynFlow in expectation, in closed form", "PreCrop, arXiv 2203.02549", layers=synexp.layer_densities
    ),
    "uniform": Scorer("the same share of every layer: the control", "–", layers=uniform.layer_densities),
    "erk": Scorer(
        "share by the sum over the product of a weight's axes", "RigL, arXiv 1911.11134", layers=erk.layer_densities
    ),
    "smart-ratio": Scorer(
        "share falling with the square of the depth",
        "Su et al. 2020, arXiv 2009.11094",
        layers=smart_ratio.layer_densities,
    ),
    "random": Scorer("scores drawn at random", "–", weights=random.score),
    "magnitude": Scorer("size of the initial weight", "Frankle et al. 2021, arXiv 2009.08576", weights=magnitude.score),
    "synflow": Scorer(
        "path sum of absolute weights, 100 rounds",
        "Tanaka et al. 2020, arXiv 2006.05467",
        weights=synflow.score,
        train=False,
        double=True,
    ),
    "ntk-sap": Scorer(
        "change of the neural tangent kernel's trace, 20 rounds",
        "Wang et al. 2023, arXiv 2304.02840",
        weights=ntk_sap.score,
    ),
    "snip": Scorer(
        "sensitivity of the loss, one batch", "Lee et al. 2019, arXiv 1810.02340", weights=snip.score, needs_data=True
    ),
    "grasp": Scorer(
        "effect on the gradient's flow", "Wang et al. 2020, arXiv 2002.07376", weights=grasp.score, needs_data=True
    ),
    "iterative-snip": Scorer(
        "SNIP in 60 rounds, what is cut stays cut",
        "de Jorge et al. 2021, arXiv 2006.09081",
        weights=iterative_snip.score,
        needs_data=True,
    ),
    "force": Scorer(
        "sensitivity after the cut, 60 rounds, weights may come back",
        "de Jorge et al. 2021, arXiv 2006.09081",
        weights=force.score,
        needs_data=True,
    ),
    "prospr": Scorer(
        "sensitivity of the loss after three steps of training",
        "Alizadeh et al. 2022, arXiv 2202.08132",
        weights=prospr.score,
        needs_data=True,
    ),
}

if __name__ == "scoring":  # imported by its folder's name, in a checkout: a second copy of the package
    raise ModuleNotFoundError("scoring is a part of precrop: import precrop.scoring", name=__name__)

"""The scorers that need only the layers' sizes, against arithmetic by hand."""

import numpy as np
import pytest

from precrop.scoring import erk, smart_ratio, synexp, uniform
from precrop.scoring.filling import filled
from precrop.scoring.scorer import LayerSize


def size(name, *shape, pixels=1):
    return LayerSize(name, shape, int(np.prod(shape)), int(np.prod(shape)) * pixels)


LAYERS = [
    size("stem", 16, 3, 3, 3, pixels=1024),
    size("middle", 64, 16, 3, 3, pixels=256),
    size("deep", 128, 64, 3, 3, pixels=64),
    size("fc", 10, 128),
]
PARAMS = np.array([layer.params for layer in LAYERS], float)


def test_erk_by_hand():
    found = erk.layer_densities(LAYERS, 0.2)
    # stem (25 / 432) and fc (138 / 1280) come out whole; the other two share what is left as 86 / 9216 to 198 / 73728.
    assert found[0] == found[3] == 1
    left = 0.2 * PARAMS.sum() - PARAMS[0] - PARAMS[3]
    scale = left / (86 + 198)
    assert found[1:3] == pytest.approx([scale * 86 / 9216, scale * 198 / 73728])


def test_smart_ratios_by_hand():
    found = smart_ratio.layer_densities(LAYERS, 0.1)
    assert found[3] == 0.3
    left = 0.1 * PARAMS.sum() - 0.3 * PARAMS[3]
    scale = left / (20 * PARAMS[0] + 12 * PARAMS[1] + 6 * PARAMS[2])
    assert found[:3] == pytest.approx([scale * 20, scale * 12, scale * 6])


def test_smart_ratios_spare_a_budget_that_the_classifier_would_eat():
    layers = [LAYERS[0], size("fc", 1000, 512)]
    found = smart_ratio.layer_densities(layers, 0.05)
    assert found == pytest.approx([0.05, 0.05])
    whole = smart_ratio.layer_densities(layers, 0.8)
    assert whole[0] == 1
    assert whole[1] == pytest.approx((0.8 * 512_432 - 432) / 512_000)


@pytest.mark.parametrize("density", [0.001, 0.05, 0.3, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("scorer", [erk, smart_ratio, synexp, uniform], ids=lambda s: s.__name__.rpartition(".")[2])
def test_densities_meet_the_density(scorer, density):
    found = np.array(scorer.layer_densities(LAYERS, density))
    assert (found > 0).all() and (found <= 1).all()
    assert PARAMS @ found == pytest.approx(density * PARAMS.sum(), rel=1e-6)


def test_filling_hands_on_what_a_full_layer_cannot_take():
    found = filled(np.array([4.0, 1.0, 1.0]), np.array([10.0, 10.0, 20.0]), 25.0)
    assert found == pytest.approx([1, 0.5, 0.5])

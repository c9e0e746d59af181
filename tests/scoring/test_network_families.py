"""Networks of several families: every layer is scored, and none collapses that need not."""

import warnings

import pytest
import torch

from precrop import create_model, score
from precrop.scoring import synflow

SIZE = 64
# What a scorer rightly gives next to nothing, as parts of layers' names. SynFlow keeps one of two parallel paths: of
# a projection beside a wider branch the branch, of blocks whose weights start small (0.02) the skip. SNIP finds little
# in weights that start small, or that only a gate hangs on.
FAMILIES = {
    "timm/test_resnet": {"synflow": "downsample"},
    "torchvision/resnet18": {"synflow": "downsample"},
    "torchvision/mobilenet_v2": {},
    "torchvision/shufflenet_v2_x0_5": {},
    "timm/test_efficientnet": {},
    "timm/mobilenetv3_small_050": {},
    "timm/test_nfnet": {"synflow": "downsample", "snip": "attn"},
    "timm/test_convnext": {"synflow": "stages.3."},
    "timm/mobilevit_xxs": {"snip": "transformer"},
}
COLLAPSED = 1e-3


@pytest.mark.parametrize("scorer", ["snip", "synflow", "grasp"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_family_collapses_at_a_quarter(name, scorer, monkeypatch):
    monkeypatch.setattr(synflow.score, "__defaults__", (30,))  # enough rounds here
    model = create_model(name)
    data = [(torch.randn(8, 3, SIZE, SIZE), torch.randint(0, 1000, (8,)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        densities = score(model, scorer, 0.25, data=data, input_shape=(3, SIZE, SIZE))
    assert densities.mean == pytest.approx(0.25, abs=1e-3)
    collapsed = [layer for layer, share in densities.items() if share < COLLAPSED]
    spared = FAMILIES[name].get(scorer)
    assert not [layer for layer in collapsed if spared is None or spared not in layer]

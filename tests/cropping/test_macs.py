"""Multiply-adds of a trace beside an independent count, before and after a crop."""

import pytest
from nets_products import PRODUCTS, SHAPE, C, Identity, LowRank, MixedExperts, Queries, TwoLowRanks
from support_macs import counted_macs

from precrop import create_model, inspect, precrop


@pytest.mark.parametrize("net", PRODUCTS, ids=lambda net: net.__name__)
def test_macs_are_those_of_one_image(net):
    model = net().eval()
    graph = inspect(model, input_shape=SHAPE)
    assert graph.size(graph.original).macs == counted_macs(model, SHAPE)
    assert sum(layer.macs.evaluate(graph.values(graph.original).__getitem__) for layer in graph.layers) > 0
    if graph.widths:
        small = precrop(model, params=0.8, input_shape=SHAPE)
        assert small.crop_plan.cropped.macs == counted_macs(small, SHAPE)


@pytest.mark.parametrize("net", [LowRank, TwoLowRanks, Queries, Identity, MixedExperts])
def test_macs_do_not_depend_on_how_they_are_counted(net):
    """By hand: the count of torch and ours could be wrong in the same way."""
    places, head, stem = 81, C * 10, 81 * 3 * C * 9
    own = {
        LowRank: C * 3 * C + places * C * C,
        TwoLowRanks: 2 * C * 3 * C + places * C * C,
        Queries: 5 * C * C + 2 * 5 * C * places + 5 * C * C,
        Identity: 2 * 5 * C * C,
        MixedExperts: C * 4 + 4 * C * C * 9 + places * C * C * 9,
    }[net]
    graph = inspect(net(), input_shape=SHAPE)
    assert graph.size(graph.original).macs == stem + own + head


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("torchvision/resnet18", (3, 64, 64)),
        ("torchvision/vit_b_16", (3, 224, 224)),
        ("timm/swinv2_cr_tiny_224", (3, 224, 224)),
        ("timm/test_vit_relpos", (3, 160, 160)),
        ("timm/test_resnet", (3, 64, 64)),
        ("timm/xcit_nano_12_p16_224", (3, 224, 224)),
        ("timm/bat_resnext26ts", (3, 256, 256)),
    ],
)
def test_macs_of_families_with_products_that_no_image_changes(name, shape):
    model = create_model(name).eval()
    graph = inspect(model, input_shape=shape)
    assert graph.size(graph.original).macs == counted_macs(model, shape)

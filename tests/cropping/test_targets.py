"""Widths for an engine: aligned, narrower where images are large, under the same caps."""

import numpy as np
import pytest
import torchvision

from precrop import PrecropError, create_model, inspect, plan
from precrop.crop_plan import Budget, CropPlan
from precrop.cropping.allocate import allocate
from precrop.cropping.targets import TARGETS


@pytest.fixture(scope="module")
def mobilenet():
    return inspect(torchvision.models.mobilenet_v2(weights=None))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_widths_are_aligned_or_whole(mobilenet, target, share):
    widths, notes = allocate(mobilenet, Budget(macs=share), target=target)
    unit = TARGETS[target].unit
    assert not notes
    for w in mobilenet.widths:
        kept = widths[w.name]
        assert kept == w.size or kept % unit == 0 or (kept < unit and kept & (kept - 1) == 0)


def test_a_wide_network_is_aligned_by_default(mobilenet):
    widths, _ = allocate(mobilenet, Budget(macs=0.5))
    assert all(widths[w.name] % 16 == 0 or widths[w.name] == w.size for w in mobilenet.widths)


def test_a_narrow_network_is_aligned_for_a_target_only():
    resnet20 = create_model("precrop/resnet20")
    kept = {w.kept for w in plan(resnet20, macs=0.5).widths.values()}
    aligned = {w.kept for w in plan(resnet20, macs=0.5, target="openvino").widths.values()}
    assert any(width % 16 for width in kept)
    assert aligned <= {16, 32, 48, 64}


@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b0"])
def test_the_same_macs_with_fewer_elements_moved(name):
    graph = inspect(getattr(torchvision.models, name)(weights=None))
    whole, by_macs, by_time = (
        graph.size(widths)
        for widths in (
            graph.original,
            allocate(graph, Budget(macs=0.5))[0],
            allocate(graph, Budget(macs=0.5), target="onnxruntime")[0],
        )
    )
    assert by_macs.macs == pytest.approx(0.5 * whole.macs, rel=0.01)
    assert by_time.macs == pytest.approx(0.5 * whole.macs, rel=0.01)
    assert by_time.activations < 0.82 * by_macs.activations


@pytest.mark.parametrize("caps", [("macs",), ("params", "macs")], ids="+".join)
def test_a_larger_budget_never_gives_a_smaller_network(mobilenet, caps):
    whole, before = mobilenet.size(mobilenet.original), 0.0
    for share in np.arange(0.05, 1.0, 0.05):
        size = mobilenet.size(allocate(mobilenet, Budget(**dict.fromkeys(caps, share)), target="onnxruntime")[0])
        used = max(getattr(size, cap) / getattr(whole, cap) for cap in caps)
        assert 0.99 * share <= used <= share
        assert used >= before
        before = used


def test_a_tiny_budget_goes_below_the_unit(mobilenet):
    widths, _ = allocate(mobilenet, Budget(params=0.02), target="tensorrt")
    whole, size = mobilenet.size(mobilenet.original), mobilenet.size(widths)
    assert 0.99 * 0.02 <= size.params / whole.params <= 0.02
    assert min(widths.values()) < 32


def test_round_to_goes_before_the_target(mobilenet):
    widths, _ = allocate(mobilenet, Budget(macs=0.5), round_to=24, target="onnxruntime")
    assert all(width % 24 == 0 or width < 24 for width in widths.values())


def test_the_plan_says_what_it_was_made_for():
    crop = plan(torchvision.models.resnet18(weights=None), macs=0.5, target="openvino")
    assert CropPlan.from_json(crop.to_json()).target == "openvino"
    assert "for openvino" in str(crop)


def test_an_unknown_target_is_named():
    with pytest.raises(
        PrecropError, match=r"unknown target 'onnx-runtime'\. Did you mean 'onnxruntime'\? .*'tensorrt'"
    ):
        plan(torchvision.models.resnet18(weights=None), 0.5, target="onnx-runtime")

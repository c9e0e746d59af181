"""Networks whose forward takes something else than one batch of images."""

import pytest
import torch
import torchvision
from torch import nn

import precrop
from precrop.cropping import forwards
from precrop.errors import PrecropError, TraceError

SIDE = 64


class Pair(nn.Module):
    """Two images, one after another through one body."""

    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3))
        self.head = nn.Linear(2 * width, 5)

    def forward(self, left, right):
        return self.head((self.body(left) - self.body(right)).mean((2, 3)))


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setattr(forwards, "FORWARDS", dict(forwards.FORWARDS))


def test_a_registered_forward_is_traced_and_the_own_one_runs():
    model = Pair()
    with pytest.raises(TraceError, match=r"missing 1 required positional argument.*precrop\.register_forward"):
        precrop.precrop(model, 0.5)
    precrop.register_forward(Pair, lambda pair, images: pair(images, images))
    small = precrop.precrop(model, 0.5)
    assert small.body[0].out_channels < 16
    assert [f.layer for f in small.crop_plan.fixed] == ["head"]
    assert small(torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)).shape == (2, 5)
    # Both passes count.
    weight = model.body[0].weight.numel()
    assert small.crop_plan.layers[0].macs_original == 2 * weight * 222 * 222


def test_it_holds_for_subclasses():
    class Triple(Pair):
        pass

    precrop.register_forward(Pair, lambda pair, images: pair(images, images))
    assert precrop.precrop(Triple(), 0.5).crop_plan.params_ratio <= 0.5


@pytest.mark.parametrize(
    "wrong", [("Pair", print), (Pair(), print), (Pair, "forward")], ids=["name", "object", "attribute"]
)
def test_what_cannot_be_registered(wrong):
    with pytest.raises(PrecropError, match=r"got .*expected a .*\(model, images\)"):
        precrop.register_forward(*wrong)


def targets(side):
    corners = torch.tensor([[side * 0.1, side * 0.1, side * 0.9, side * 0.9]])
    return [{"boxes": corners, "labels": torch.tensor([1])}] * 2


def test_a_detector_crops_whole():
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=7
    )
    small = precrop.precrop(model, params=0.5)
    plan = small.crop_plan
    assert plan.input_shape == (3, 320, 320)
    assert plan.fixed_share == 0
    assert {fixed.reason for fixed in plan.fixed} == {"the network's output"}
    assert 0.99 * 0.5 <= plan.params_ratio <= 0.5
    assert sum(p.numel() for p in small.parameters()) == plan.cropped.params
    losses = small.train()([torch.rand(3, 320, 320)] * 2, targets(320))
    sum(losses.values()).backward()
    with torch.no_grad():
        found = small.eval()([torch.rand(3, SIDE, SIDE)])
    assert set(found[0]) == {"boxes", "labels", "scores"}


def test_a_two_stage_detector_counts_its_heads():
    with torch.device("meta"):
        model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=7)
    plan = precrop.plan(model, params=0.25)
    assert plan.input_shape == (3, 800, 800)
    assert plan.fixed_share == 0
    rows = {row.name: row for row in plan.layers}
    box, mask = rows["roi_heads.box_head.fc6"], rows["roi_heads.mask_predictor.conv5_mask"]
    assert box.macs_original == 1000 * box.params_original  # of the thousand proposals kept for an image
    assert box.out_kept < box.out_original
    assert mask.out_kept < mask.out_original


def test_the_hidden_state_of_raft_is_free():
    with torch.device("meta"):
        model = torchvision.models.optical_flow.raft_small()
    plan = precrop.plan(model, params=0.25, input_shape=(3, 128, 128))
    assert {fixed.layer for fixed in plan.fixed} == {"feature_encoder.conv", "update_block.flow_head.conv2"}
    assert plan.fixed_share == 0
    assert plan.params_ratio >= 0.99 * 0.25

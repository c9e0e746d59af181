import pytest
import timm
import torch
from nets import Head, cbr
from torch import nn

import precrop
from precrop.cropping import layers

SHAPE = (3, 64, 64)


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenetv3_small_050", "efficientnet_b0", "fasternet_t0", "hrnet_w18_small"]
)
def test_timm_numbers_follow_the_crop(name):
    model = timm.create_model(name)
    small = precrop.precrop(model, 0.3, input_shape=SHAPE).eval()
    assert small.num_features < model.num_features
    with torch.no_grad():
        features = small.forward_features(torch.randn(1, *SHAPE))
        assert features.shape[1] == small.num_features
        assert small.forward_head(features, pre_logits=True).shape[1] == small.head_hidden_size
    before, after = ([entry["num_chs"] for entry in m.feature_info] for m in (model, small))
    assert after < before
    assert all(entry["num_chs"] == n for entry, n in zip(model.feature_info, before, strict=True))
    outputs = {}
    for entry in small.feature_info:
        module = dict(small.named_modules()).get(entry["module"])
        if module is not None and "hrnet" not in name:
            module.register_forward_hook(lambda m, a, out, key=entry["module"]: outputs.update({key: out.shape[1]}))
    with torch.no_grad():
        small(torch.randn(1, *SHAPE))
    assert outputs == {e["module"]: e["num_chs"] for e in small.feature_info if e["module"] in outputs}


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "hrnet_w18_small"])
def test_feature_extractors_crop_their_outputs(name):
    model = timm.create_model(name, features_only=True)
    small = precrop.precrop(model, 0.3, input_shape=SHAPE)
    assert small.crop_plan.fixed == ()
    with torch.no_grad():
        maps = small.eval()(torch.randn(1, *SHAPE))
    assert small.feature_info.channels() == [m.shape[1] for m in maps]
    assert sum(small.feature_info.channels()) < sum(model.feature_info.channels())


def test_pooled_features_keep_their_size():
    model = timm.create_model("resnet18", num_classes=0, in_chans=1)
    small = precrop.precrop(model, 0.5)
    assert small.crop_plan.input_shape == (1, 224, 224)
    assert small(torch.randn(2, 1, 64, 64)).shape == (2, 512)
    assert small.num_features == 512


class Block(nn.Module):
    """Keeps its sizes under the usual names; ``forward`` reads none of them."""

    def __init__(self, i, o):
        super().__init__()
        self.in_channels, self.out_channels = i, o
        self.conv = cbr(i, o)

    def forward(self, x):
        return self.conv(x)


class Reads(Block):
    """Reads one of them, as a size."""

    def forward(self, x):
        return self.conv(x).view(x.shape[0], self.out_channels, -1).unflatten(2, x.shape[2:])


class Branches(Block):
    """Takes a branch on them: after a crop the branch must be the same."""

    def forward(self, x):
        y = self.conv(x)
        return y if self.in_channels != self.out_channels else x + y


@pytest.mark.parametrize("kind", [Block, Reads])
def test_usual_names_follow(kind):
    model = nn.Sequential(kind(3, 16), kind(16, 32), Head(32))
    small = precrop.precrop(model, 0.4, input_shape=(3, 8, 8))
    for block in small[:2]:
        assert block.in_channels == block.conv[0].in_channels
        assert block.out_channels == block.conv[0].out_channels
    assert small[1].out_channels < 32
    small(torch.randn(2, 3, 8, 8))


def test_a_number_that_decides_a_branch_stays():
    model = nn.Sequential(Branches(3, 16), Branches(16, 24), Branches(24, 24), Head(24))
    small = precrop.precrop(model, 0.4, input_shape=(3, 8, 8))
    assert (small[1].in_channels, small[1].out_channels) == (16, 24)
    assert small[2].conv[0].in_channels == small[2].conv[0].out_channels
    small(torch.randn(2, 3, 8, 8))


class Halves(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.half = channels // 2

    def forward(self, x):
        return x[:, : self.half] * x[:, self.half :].sigmoid()


def halved():
    return nn.Sequential(cbr(3, 16), Halves(16), cbr(8, 16), Head(16))


def test_a_class_of_ones_own_is_registered(monkeypatch):
    monkeypatch.setattr(layers, "SIZE_ATTRIBUTES", dict(layers.SIZE_ATTRIBUTES))
    fixed = {f.layer: f.reason for f in precrop.inspect(halved(), input_shape=(3, 8, 8)).fixed}
    assert "self.half" in fixed["0.0"]
    precrop.register_size_attributes(Halves, "half")
    small = precrop.precrop(halved(), params=0.5, input_shape=(3, 8, 8))
    assert small[0][0].out_channels == 2 * small[1].half < 16
    assert small[2][0].in_channels == small[1].half
    small(torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("cls", "names"), [("Halves", ("half",)), (Halves, ()), (Halves, ("no name",)), (int, ("real",))]
)
def test_bad_registrations(cls, names):
    with pytest.raises(precrop.PrecropError, match="expected"):
        precrop.register_size_attributes(cls, *names)

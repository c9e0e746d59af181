import math

import pytest
import timm
import torch
import torchvision
from nets import Chain, LayerScale, Residual
from torch import nn

from precrop import PrecropWarning, precrop
from precrop.cropping.initialize import candidates, fans_of, spread_of

SHAPE = (3, 8, 8)
init = nn.init


def spread(tensor):
    return spread_of(tensor)


@pytest.mark.parametrize(
    ("rule", "fill", "uniform"),
    [
        ("default", lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)), True),
        ("kaiming fan_out", lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), False),
        ("kaiming fan_in", lambda w: init.kaiming_normal_(w, mode="fan_in", nonlinearity="relu"), False),
        ("kaiming fan_in", lambda w: init.kaiming_uniform_(w, nonlinearity="relu"), True),
        ("xavier", init.xavier_uniform_, True),
        ("xavier", init.xavier_normal_, False),
        ("lecun fan_in", lambda w: init.kaiming_normal_(w, nonlinearity="linear"), False),
    ],
)
def test_the_rule_is_read_off_the_tensor(rule, fill, uniform):
    weight = torch.empty(80, 32, 3, 3)
    fill(weight)
    found = spread_of(weight)
    # Without groups the rule per group is the same rule.
    assert set(candidates(found, fans_of(weight.shape))) - {"kaiming fan_out per group"} == {rule}
    assert found.uniform == uniform


def test_a_fixed_spread_fits_no_rule():
    weight = init.normal_(torch.empty(1000, 512), 0, 0.01)
    assert candidates(spread_of(weight), fans_of(weight.shape)) == []


@pytest.mark.parametrize(
    "build",
    [
        torchvision.models.resnet18,
        torchvision.models.mobilenet_v2,
        lambda: timm.create_model("efficientnet_b0"),
    ],
)
def test_a_crop_is_initialized_like_a_network_built_at_that_size(build):
    """Every weight of a crop has the spread that its layer's own rule gives at the new fans."""
    model = build()
    small = precrop(model, params=0.4)
    seen = 0
    for (name, old), new in zip(model.named_parameters(), small.parameters(), strict=True):
        if old.dim() < 2 or old.shape == new.shape or new.numel() < 4000:
            continue
        seen += 1
        was, now = spread_of(old), spread_of(new)
        groups = 1 if old.shape[1] > 1 else old.shape[0]
        fits = candidates(was, fans_of(old.shape, groups))
        if fits:
            new_groups = 1 if new.shape[1] > 1 else new.shape[0]
            assert set(fits) & set(candidates(now, fans_of(new.shape, new_groups))), name
        else:
            assert now.variance == pytest.approx(was.variance, rel=0.1), name
    assert seen > 10


def test_constants_stay_constants():
    model = Residual()
    nn.init.zeros_(model.down[1].weight)
    nn.init.constant_(model.head.fc.bias, 0.25)
    small = precrop(model, 0.5, input_shape=SHAPE)
    assert small.down[1].weight.eq(0).all()
    assert small.up[1].weight.eq(1).all()
    assert small.up[1].running_var.eq(1).all()
    assert small.head.fc.bias.eq(0.25).all()
    assert precrop(LayerScale(), 0.5, input_shape=SHAPE).gamma.eq(torch.tensor(1e-2)).all()


def test_weights_are_drawn_from_the_global_random_state():
    def crop(seed):
        torch.manual_seed(seed)
        return precrop(model, 0.5, input_shape=SHAPE).two[0].weight

    model = Chain()
    assert torch.equal(crop(1), crop(1))
    assert not torch.equal(crop(1), crop(2))


def test_dtype_mode_and_requires_grad_are_kept():
    model = Chain().double().eval()
    model.one.requires_grad_(False)
    small = precrop(model, 0.5, input_shape=SHAPE)
    assert {p.dtype for p in small.parameters()} == {torch.float64}
    assert not small.training
    assert [p.requires_grad for p in small.parameters()] == [p.requires_grad for p in model.parameters()]


def test_a_model_without_any_gradient_crops_too():
    assert precrop(Chain().requires_grad_(False), 0.5, input_shape=SHAPE).crop_plan.params_ratio <= 0.5


def test_a_trained_model_is_cropped_with_a_warning_and_fresh_weights():
    model = Chain()
    model(torch.randn(8, *SHAPE))
    model.head.fc.weight.data.fill_(7.0)
    with pytest.warns(PrecropWarning, match="training is not carried over"):
        small = precrop(model, 0.5, input_shape=SHAPE)
    assert small.one[1].running_mean.eq(0).all()
    assert not small.head.fc.weight.eq(7).any()


def test_shared_parameters_stay_shared():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.one, self.two = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
            self.two.weight = self.one.weight
            self.fc = nn.Linear(16, 10)

        def forward(self, x):
            return self.fc(self.two(self.one(self.stem(x))).mean((2, 3)))

    small = precrop(Tied(), 0.5, input_shape=SHAPE)
    assert small.one.weight is small.two.weight
    assert small.crop_plan.cropped.params == sum(p.numel() for p in small.parameters())
    small(torch.randn(2, *SHAPE)).sum().backward()


def test_meta_models_crop_without_memory():
    with torch.device("meta"):
        model = torchvision.models.resnet18()
    small = precrop(model, 0.5)
    assert all(p.is_meta for p in small.parameters())

import pytest
import torch
import torchvision
from nets import Chain, LayerScale, Residual
from torch import nn

from precrop import PrecropWarning, precrop

SHAPE = (3, 8, 8)


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

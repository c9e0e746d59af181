import math

import pytest
import torch
from torch import nn

from precrop.zoo import ZOO

# Counted by hand from the papers' tables, for 10 classes and 3 channels.
PARAMS = {
    # 3x3 convolutions (first, three stages, stage entries) + projections + BatchNorm + classifier
    "resnet20": 432 + 9 * (6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2)
    + (16 * 32 + 32 * 64) + 2 * (16 * 7 + 32 * 7 + 64 * 7) + 650,
    "resnet32": 432 + 9 * (10 * 16**2 + 16 * 32 + 9 * 32**2 + 32 * 64 + 9 * 64**2)
    + (16 * 32 + 32 * 64) + 2 * (16 * 11 + 32 * 11 + 64 * 11) + 650,
    "resnet56": 432 + 9 * (18 * 16**2 + 16 * 32 + 17 * 32**2 + 32 * 64 + 17 * 64**2)
    + (16 * 32 + 32 * 64) + 2 * (16 * 19 + 32 * 19 + 64 * 19) + 650,
    "vgg16_bn": 9 * (3 * 64 + 64**2 + 64 * 128 + 128**2 + 128 * 256 + 2 * 256**2 + 256 * 512 + 5 * 512**2)
    + 2 * (2 * 64 + 2 * 128 + 3 * 256 + 6 * 512) + 5130,
    "mobilenet_v2": 2_223_872 + 12_810,
    "shufflenet_v2": 1_253_604 + 10_250,
}  # fmt: skip

# Pixels along a side of the last feature map before pooling, for 32x32 input.
LAST_SIDE = {
    "resnet20": 8,
    "resnet32": 8,
    "resnet56": 8,
    "vgg16_bn": 2,
    "mobilenet_v2": 4,
    "shufflenet_v2": 4,
}


def last_conv(model: nn.Module) -> nn.Conv2d:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)][-1]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_the_tables_cover_the_zoo():
    assert set(PARAMS) == set(LAST_SIDE) == set(ZOO)


@pytest.mark.parametrize("name", ZOO)
def test_parameter_count(name):
    model = ZOO[name]()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMS[name]
    assert f"{PARAMS[name]:,} parameters" in ZOO[name].__doc__


@pytest.mark.parametrize("name", ZOO)
def test_strides_are_those_of_cifar(name):
    model = ZOO[name]().eval()
    sides = []
    last_conv(model).register_forward_hook(lambda _, __, out: sides.append(tuple(out.shape[2:])))
    model(torch.randn(1, 3, 32, 32))
    assert sides == [(LAST_SIDE[name], LAST_SIDE[name])]


@pytest.mark.parametrize(
    ("name", "side"),
    [*((name, 16) for name in ZOO), ("resnet20", 8), ("mobilenet_v2", 32), ("vgg16_bn", 32)],
)
def test_trains_on_images_of_any_size(name, side):
    model = ZOO[name](num_classes=7, in_chans=1)
    logits = model(torch.randn(2, 1, side, side))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("name", ZOO)
def test_starts_kaiming_normal(name):
    for key, module in ZOO[name]().named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weight = module.weight
            expected = math.sqrt(2 / weight[0].numel())
            # Five standard errors of a normal sample's spread.
            assert weight.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * weight.numel())), key
            assert module.bias is None or not module.bias.any(), key
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all(), key
            assert not module.bias.any(), key


@pytest.mark.parametrize("name", ["resnet20", "shufflenet_v2"])
def test_the_seed_decides_the_weights(name):
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(torch.cat([parameter.flatten() for parameter in ZOO[name]().parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])

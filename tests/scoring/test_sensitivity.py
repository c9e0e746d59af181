"""SNIP, GraSP and ProsPr against slow, direct evaluations on a three-layer net in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precrop import score
from precrop.scoring.grasp import TEMPERATURE
from precrop.scoring.prospr import LEARNING_RATE, STEPS

SHAPE = (2, 5, 5)
NAMES = ("0.weight", "3.weight", "7.weight")


def three_layers():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Conv2d(4, 3, 3),
        nn.Softplus(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()


def batches(count):
    torch.manual_seed(2)
    return [(torch.randn(6, *SHAPE, dtype=torch.float64), torch.arange(6) % 3) for _ in range(count)]


def loss_of(net, data, temperature=1.0):
    return sum(F.cross_entropy(net.train()(x) / temperature, y) for x, y in data)


def gradient(net, data, temperature=1.0):
    weights = [net.get_parameter(name) for name in NAMES]
    return torch.autograd.grad(loss_of(net, data, temperature), weights)


def agree(found, expected):
    """Every score to 1e-5 of the largest of its layer."""
    for name, wanted in expected.items():
        error = (found[name] - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-5, f"{name}: {error:.1e}"


@pytest.mark.parametrize("count", [1, 3])
def test_snip_is_the_change_of_the_loss_by_each_connection(count):
    """Central differences of the loss in each c_j, one weight at a time."""
    net, data, step = three_layers(), batches(count), 1e-5
    expected = {}
    with torch.no_grad():
        for name in NAMES:
            weight = net.get_parameter(name).view(-1)
            slopes = torch.empty_like(weight)
            for j in range(len(weight)):
                value = weight[j].item()
                losses = []
                for c in (1 + step, 1 - step):
                    weight[j] = c * value
                    losses.append(loss_of(net, data))
                weight[j] = value
                slopes[j] = (losses[0] - losses[1]).abs() / (2 * step)
            expected[name] = slopes.view_as(net.get_parameter(name))
    total = sum(part.sum() for part in expected.values())
    found = score(net, "snip", 0.3, data=data, batches=count, input_shape=SHAPE, keep_scores=True).scores
    agree(found, {name: part / total for name, part in expected.items()})
    assert sum(float(part.sum()) for part in found.values()) == pytest.approx(1)


@pytest.mark.parametrize("count", [1, 3])
def test_grasp_is_the_weight_times_the_hessian_gradient_product(count):
    """H g by central differences of the gradient along g; the largest θ·Hg are kept."""
    net, data = three_layers(), batches(count)
    g = gradient(net, data, TEMPERATURE)
    step = 1e-4 / float(torch.stack([part.norm() for part in g]).norm())
    moved = []
    for sign in (1, -1):
        shifted = copy.deepcopy(net)
        with torch.no_grad():
            for name, part in zip(NAMES, g, strict=True):
                shifted.get_parameter(name).add_(part, alpha=sign * step)
        moved.append(gradient(shifted, data, TEMPERATURE))
    expected = {
        name: net.get_parameter(name).detach() * (up - down) / (2 * step)
        for name, up, down in zip(NAMES, *moved, strict=True)
    }
    total = abs(sum(part.sum() for part in expected.values()))
    densities = score(net, "grasp", 0.4, data=data, batches=count, input_shape=SHAPE, keep_scores=True)
    agree(densities.scores, {name: part / total for name, part in expected.items()})
    # What is kept by the authors' rule: cut the highest of −θ·Hg.
    everything = torch.cat([-part.flatten() for part in expected.values()])
    cut = everything.topk(round(0.6 * len(everything))).values.min()
    for layer, part in zip(densities, expected.values(), strict=True):
        assert densities[layer] == pytest.approx(float((-part < cut).double().mean()), abs=1.01 / part.numel())


def test_grasp_predicts_what_taking_a_weight_away_does_to_the_gradient():
    """To first order ‖g‖² changes by −2 θ·Hg: keeping the largest keeps the gradient's norm."""
    net, data = three_layers(), batches(1)
    scores = score(net, "grasp", 0.4, data=data, input_shape=SHAPE, keep_scores=True).scores["3.weight"]
    norm = sum(part.square().sum() for part in gradient(net, data, TEMPERATURE))
    changes = []
    for place in (scores.argmax(), scores.argmin()):
        shrunk = copy.deepcopy(net)
        with torch.no_grad():
            shrunk.get_parameter("3.weight").view(-1)[place] *= 0.999
        changes.append(sum(part.square().sum() for part in gradient(shrunk, data, TEMPERATURE)) - norm)
    assert changes[0] < changes[1]


def test_prospr_is_the_change_of_the_loss_after_three_steps():
    """Train the masked network by hand, and difference the final loss in each c_j."""
    net, data, step = three_layers(), batches(1), 1e-4

    def final_loss(name, j, c):
        trained = copy.deepcopy(net)
        with torch.no_grad():
            trained.get_parameter(name).view(-1)[j] *= c
        for _ in range(STEPS):
            parameters = list(trained.parameters())
            slopes = torch.autograd.grad(loss_of(trained, data), parameters)
            with torch.no_grad():
                for parameter, slope in zip(parameters, slopes, strict=True):
                    parameter -= LEARNING_RATE * slope
        return float(loss_of(trained, data).detach())

    found = score(net, "prospr", 0.3, data=data, input_shape=SHAPE, keep_scores=True).scores
    for name in NAMES:
        for j in (0, 5, 17):
            slope = abs(final_loss(name, j, 1 + step) - final_loss(name, j, 1 - step)) / (2 * step)
            assert float(found[name].view(-1)[j]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("activation", [nn.Hardsigmoid, nn.Hardswish])
def test_activations_without_a_second_derivative(activation):
    net = nn.Sequential(nn.Conv2d(2, 4, 3), activation(), nn.Flatten(), nn.Linear(36, 3))
    for name in ("grasp", "prospr"):
        assert score(net, name, 0.3, data=batches(1), input_shape=SHAPE).mean == pytest.approx(0.3, abs=0.02)


def test_fused_attention_has_a_second_derivative():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.qkv, self.fc = nn.Conv2d(2, 8, 1), nn.Linear(8, 24), nn.Linear(8, 3)

        def forward(self, x):
            q, k, v = self.qkv(self.stem(x).flatten(2).transpose(1, 2)).unflatten(-1, (3, 1, 8)).permute(2, 0, 3, 1, 4)
            return self.fc(F.scaled_dot_product_attention(q, k, v).mean((1, 2)))

    for name in ("grasp", "prospr", "synflow"):
        assert score(Attention(), name, 0.3, data=batches(1), input_shape=SHAPE).mean == pytest.approx(0.3, abs=0.02)

"""SynFlow: published densities, its algorithm written out slowly, and the functions that it linearizes."""

import copy
import math

import pytest
import torch
from nets import Residual
from torch import nn
from torch.nn import functional as F

import precrop
from precrop import inspect, score
from precrop.scoring import synflow
from precrop.scoring.linearize import Linearized, linearize
from precrop.scoring.prepare import prunable_weights, scoring_copy
from precrop.scoring.scorer import Problem
from precrop.scoring.synflow import path_sum

SHAPE = (3, 8, 8)
# Densities of the layers in the SynFlow authors' published runs: VGG16-BN for CIFAR-100.
PUBLISHED = {
    0.10: (0.03, ".9965 .8966 .8050 .6437 .4354 .2477 .2351 .1219 .0598 .0604 .0564 .0540 .0602 .8572"),
    0.01: (0.07, ".9398 .3019 .1526 .0792 .0387 .0197 .0193 .0098 .0050 .0048 .0046 .0043 .0048 .2006"),
}


@pytest.mark.slow
@pytest.mark.parametrize("density", PUBLISHED)
def test_the_published_densities_of_vgg16(density):
    tolerance, text = PUBLISHED[density]
    published = torch.tensor([float(word) for word in text.split()], dtype=torch.float64)
    found = torch.zeros_like(published)
    for seed in range(3):
        torch.manual_seed(seed)
        densities = score(precrop.create_model("precrop/vgg16_bn", num_classes=100), "synflow", density)
        found += torch.tensor(list(densities.values()), dtype=torch.float64) / 3
    assert (found / published - 1).abs().max() < tolerance


def narrow(channels=24):
    """A plain chain of convolutions, norms and ReLUs with a classifier."""
    layers, wide = [], (channels, channels, 2 * channels)
    for i, o in zip((3, *wide), wide, strict=False):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, 10))


def slow_synflow(net, density, rounds=100):
    """The algorithm of the paper with masks, whole sorts and no shortcuts: kept weights by layer."""
    net = copy.deepcopy(net).double().eval()
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.abs_()
    weights = [m.weight for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    whole = [weight.detach().clone() for weight in weights]
    masks = [torch.ones_like(weight) for weight in weights]
    for k in range(rounds):
        with torch.no_grad():
            for weight, value, mask in zip(weights, whole, masks, strict=True):
                weight.copy_(value * mask)
        gradients = torch.autograd.grad(net(torch.ones(1, *SHAPE).double()).sum(), weights)
        scores = [(weight * g).abs() for weight, g in zip(weights, gradients, strict=True)]
        ranked = torch.cat([part.flatten() for part in scores]).sort(descending=True).values
        level = ranked[round(density ** ((k + 1) / rounds) * len(ranked)) - 1]
        masks = [(part >= level).double() for part in scores]
    return [int(mask.sum()) for mask in masks]


@pytest.mark.parametrize("density", [0.3, 0.02])
def test_the_algorithm_written_out(density):
    net = narrow()
    densities = score(net, "synflow", density, input_shape=SHAPE)
    kept = [round(share * densities.weights[layer]) for layer, share in densities.items()]
    assert kept == slow_synflow(net, density)


def prepared(net, shape=SHAPE):
    copied = scoring_copy(net, double=True)
    weights, _ = prunable_weights(copied, inspect(net, input_shape=shape).layers)
    linearize(copied)
    return Problem(copied, weights, shape, 0.5, None, lambda *at: None)


def test_the_path_sum_of_two_layers_by_hand():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    problem = prepared(net, (3,))
    first, second = net[1].weight.detach().double().abs(), net[3].weight.detach().double().abs()
    total = path_sum(problem, Linearized())
    assert float(total.detach()) == pytest.approx(float((second @ first).sum()))
    scores = synflow._round(problem, Linearized())
    assert torch.allclose(scores["1.weight"], first * second.sum(0)[:, None])
    assert torch.allclose(scores["3.weight"], second * first.sum(1))


def test_every_layer_of_a_chain_has_the_whole_flow():
    """Conservation: without biases, the scores of each layer sum to R."""
    net = narrow()
    for module in net.modules():
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    problem = prepared(net)
    total = float(path_sum(problem, Linearized()).detach())
    for part in synflow._round(problem, Linearized()).values():
        assert float(part.sum()) == pytest.approx(total, rel=1e-9)


def test_a_path_sum_beyond_float64_is_rescaled():
    """A chain of 300 wide layers: R is infinite, and densities come out all the same."""

    class Deep(nn.Module):
        def __init__(self, spread):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(300))
            for layer in self.layers:
                nn.init.uniform_(layer.weight, 0.9 * spread, 1.1 * spread)

        def forward(self, x):
            x = x.flatten(1)
            for layer in self.layers:
                x = torch.relu(layer(x))
            return x

    shallow = synflow.score.__defaults__
    synflow.score.__defaults__ = (3,)
    try:
        for spread in (1.0, 1e-4):
            assert abs(300 * math.log10(64 * spread)) > 330, "outside float64"
            densities = score(Deep(spread), "synflow", 0.5, input_shape=(64, 1, 1))
            assert densities.mean == pytest.approx(0.5, abs=1e-3)
            assert min(densities.values()) > 0.2 and max(densities.values()) < 0.8
    finally:
        synflow.score.__defaults__ = shallow


def test_rescaling_changes_no_score_of_a_chain():
    """All paths of a chain have one length, so one factor for all weights scales every score alike."""
    net = narrow()
    for module in net.modules():
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    plain, other = prepared(net), prepared(net)
    synflow._rescale(other, 1e3)
    a, b = (synflow._round(problem, Linearized()) for problem in (plain, other))
    ratios = [float((b[name] / a[name]).nan_to_num(1e12).std() / 1e12) for name in a]
    assert max(ratios) < 1e-9


NORMS = {
    "batch": nn.BatchNorm2d(16),
    "batch without statistics": nn.BatchNorm2d(16, track_running_stats=False),
    "group": nn.GroupNorm(4, 16),
    "instance": nn.InstanceNorm2d(16, affine=True),
    "layer": nn.LayerNorm((16, 8, 8)),
    "rms": nn.RMSNorm((8,)),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(),
    "tanh": nn.Tanh(),
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms_and_limits_let_the_flow_through(kind):
    """Each acts as its fresh scale of 1: the densities are those of the chain without it."""
    middle = copy.deepcopy(NORMS[kind])
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.Identity(), nn.Conv2d(16, 32, 3), nn.Flatten(), nn.Linear(1152, 4)
    )
    plain = score(net, "synflow", 0.1, input_shape=SHAPE)
    net[1] = middle
    assert score(net, "synflow", 0.1, input_shape=SHAPE) == plain


def test_statistics_of_a_trained_network_play_no_part():
    net = narrow()
    plain = score(net, "synflow", 0.1, input_shape=SHAPE)
    net[1].running_mean.fill_(3)
    net[1].running_var.fill_(1e-3)
    assert score(net, "synflow", 0.1, input_shape=SHAPE) == plain


def test_the_signs_of_weights_play_no_part():
    net = narrow()
    plain = score(net, "synflow", 0.1, input_shape=SHAPE)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(torch.randint(0, 2, parameter.shape) * 2 - 1)
    assert score(net, "synflow", 0.1, input_shape=SHAPE) == plain


def test_weight_standardization_keeps_positive_paths():
    """Standardized weights would sum to zero; the spread stays and the centre does not."""

    class Standardized(nn.Conv2d):
        def forward(self, x):
            weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True)
            return self._conv_forward(x, weight.reshape_as(self.weight), self.bias)

    net = nn.Sequential(Standardized(3, 16, 3), nn.ReLU(), Standardized(16, 32, 3), nn.Flatten(), nn.Linear(512, 4))
    problem = prepared(net)
    scores = synflow._round(problem, Linearized())
    assert all((part > 0).all() for part in scores.values())
    first = problem.weights["0.weight"].detach()
    alone = Linearized()
    with alone:
        out = problem.model[0](torch.ones(1, *SHAPE).double())
    by_hand = (first / first.var((1, 2, 3), correction=0, keepdim=True).add(1e-5).sqrt()).sum((1, 2, 3))
    assert torch.allclose(out[0, :, 0, 0], by_hand + problem.model[0].bias)


def test_gates_are_constant_and_what_lies_behind_them_keeps_the_density():
    from nets import Gate

    densities = score(Gate(a=64, squeezed=8), "synflow", 0.2, input_shape=SHAPE)
    assert densities["down"] == densities["up"] == 0.2
    assert densities["stem.0"] != 0.2
    assert densities.mean == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Softmax(1), nn.LogSoftmax(1)], ids=lambda m: type(m).__name__)
def test_a_network_that_ends_in_a_gate(last):
    net = narrow()
    plain = score(net, "synflow", 0.2, input_shape=SHAPE)
    assert list(score(nn.Sequential(*net, last), "synflow", 0.2, input_shape=SHAPE).values()) == list(plain.values())


def test_outputs_of_any_form_are_summed():
    class Forms(Residual):
        def forward(self, x):
            y = super().forward(x)
            return {"logits": y, "more": (y * 2, [y]), "count": torch.tensor(3)}

    torch.manual_seed(0)
    plain = Residual()
    forms = Forms()
    forms.load_state_dict(plain.state_dict())
    assert score(forms, "synflow", 0.2, input_shape=SHAPE) == score(plain, "synflow", 0.2, input_shape=SHAPE)

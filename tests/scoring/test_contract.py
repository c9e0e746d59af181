"""What holds for every row of SCORERS."""

import random

import numpy as np
import pytest
import torch
from kinds_weights import OldWeightNorm, SpectralNorm, WeightNorm
from nets import Auxiliary, BareWeight, Chain, Gate, LayerScale, Residual, Standardized, Twice
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import precrop
from precrop import PrecropWarning, inspect, score
from precrop.scoring import SCORERS

SHAPE = (3, 8, 8)
LAYERWISE = [name for name, row in SCORERS.items() if row.layers is not None]
RANKED = [name for name, row in SCORERS.items() if row.weights is not None]


class Dropping(nn.Module):
    """Dropout, a frozen layer, and a norm in eval mode within a network in train mode."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.two, self.drop, self.fc = nn.Conv2d(16, 24, 3, padding=1), nn.Dropout(0.3), nn.Linear(24, 10)
        self.two.requires_grad_(False)
        self.norm.eval()

    def forward(self, x):
        x = torch.relu(self.two(torch.relu(self.norm(self.one(x)))))
        return self.fc(self.drop(x.mean((2, 3))))


def loader(shuffle=True):
    images = TensorDataset(torch.randn(32, *SHAPE), torch.arange(32) % 10)
    return DataLoader(images, 8, shuffle=shuffle)


@pytest.mark.parametrize("name", SCORERS)
def test_the_network_and_the_random_states_stay(name):
    model, data = Dropping(), loader()
    model(torch.randn(4, *SHAPE)).sum().backward()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    gradients = {key: None if p.grad is None else p.grad.clone() for key, p in model.named_parameters()}
    versions = {key: p._version for key, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    densities = score(model, name, 0.3, data=data, input_shape=SHAPE)

    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert {key: p._version for key, p in model.named_parameters()} == versions
    for key, p in model.named_parameters():
        assert (p.grad is None) == (gradients[key] is None)
        assert p.grad is None or torch.equal(p.grad, gradients[key])
    assert [p.requires_grad for p in model.two.parameters()] == [False, False]
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert all(0 < share <= 1 for share in densities.values())


@pytest.mark.parametrize("name", [name for name in RANKED if name not in ("random", "magnitude")])
def test_the_state_stays_when_scoring_fails(name):

    class Failing(Chain):
        def forward(self, x):
            if torch.is_grad_enabled():  # the trace has none
                self.head.fc.in_features = torch.randn(1)
                raise RuntimeError("deliberate")
            return super().forward(x)

    model, data = Failing().eval(), loader()
    state = torch.get_rng_state()
    with pytest.raises(precrop.PrecropError, match="deliberate"):
        score(model, name, 0.3, data=data, input_shape=SHAPE)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert not model.training
    assert model.head.fc.in_features == 32


@pytest.mark.parametrize("name", SCORERS)
def test_one_seed_gives_one_result(name):
    model, data = Dropping(), loader()
    first = score(model, name, 0.3, data=data, input_shape=SHAPE, seed=3, keep_scores=True)
    torch.rand(5)
    again = score(model, name, 0.3, data=data, input_shape=SHAPE, seed=3, keep_scores=True)
    assert first == again
    for key, part in (first.scores or {}).items():
        assert torch.equal(part, again.scores[key])
    if name in ("random", "snip"):
        assert score(model, name, 0.3, data=data, input_shape=SHAPE, seed=4) != first


@pytest.mark.parametrize("density", [0.02, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("name", SCORERS)
def test_densities_cover_the_layers_and_meet_the_density(name, density):
    model = Residual()
    graph = inspect(model, input_shape=SHAPE)
    densities = score(model, name, density, data=loader(), input_shape=SHAPE)
    assert list(densities) == [layer.name for layer in graph.layers]
    assert densities.weights == {layer.name: model.get_parameter(layer.weight).numel() for layer in graph.layers}
    assert all(0 < share <= 1 for share in densities.values())
    total = sum(densities.weights.values())
    slack = len(densities) if name in RANKED else 1e-6 * total
    assert densities.mean * total == pytest.approx(density * total, abs=slack)
    assert (densities.scorer, densities.density, densities.input_shape) == (name, density, SHAPE)
    if density == 1:
        assert set(densities.values()) == {1.0}


@pytest.mark.parametrize("name", RANKED)
def test_raw_scores_are_shaped_like_the_weights(name):
    model = Residual()
    densities = score(model, name, 0.3, data=loader(), input_shape=SHAPE, keep_scores=True)
    for key, part in densities.scores.items():
        assert part.shape == model.get_parameter(key).shape
        assert not part.requires_grad
    assert score(model, name, 0.3, data=loader(), input_shape=SHAPE).scores is None


@pytest.mark.parametrize(
    "net", [Auxiliary, BareWeight, Gate, LayerScale, Standardized, Twice], ids=lambda n: n.__name__
)
@pytest.mark.parametrize("name", RANKED)
def test_unusual_networks_are_scored(name, net):
    densities = score(net(), name, 0.3, data=loader(), input_shape=SHAPE)
    assert densities.mean == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("net", [OldWeightNorm, SpectralNorm, WeightNorm], ids=lambda n: n.__name__)
@pytest.mark.parametrize("name", RANKED)
def test_weights_that_are_computed_are_scored_as_they_are_used(name, net):
    """The copy holds the computed weight; the original still computes its own."""
    model, image = net().eval(), torch.randn(2, *SHAPE)
    expected = model(image)
    densities = score(model, name, 0.05, data=loader(), input_shape=SHAPE, keep_scores=True)
    assert list(densities) == list(dict.fromkeys(layer.name for layer in inspect(model, input_shape=SHAPE).layers))
    assert all(part.shape == model.get_parameter(key).shape for key, part in densities.scores.items())
    assert densities.mean == pytest.approx(0.05, abs=0.01)
    assert torch.equal(model(image), expected)


@pytest.mark.parametrize("name", SCORERS)
def test_data_is_read_only_where_it_is_needed(name):
    class Untouchable:
        def __iter__(self):
            raise AssertionError("read")

    if SCORERS[name].needs_data:
        with pytest.raises(precrop.errors.ScoreError, match=f"scorer '{name}' needs data.*DataLoader"):
            score(Chain(), name, 0.3, input_shape=SHAPE)
    else:
        assert score(Chain(), name, 0.3, data=Untouchable(), input_shape=SHAPE)


@pytest.mark.parametrize("name", SCORERS)
def test_a_crop_by_name_is_a_crop_by_densities(name):
    model, data = Residual(), loader()
    by_name = precrop.plan(model, params=0.3, scorer=name, data=data, input_shape=SHAPE)
    assert by_name.scorer == name
    assert by_name.params_ratio <= 0.3
    if name not in precrop.cropping.paths.PATHS:
        densities = score(model, name, 0.3, data=data, input_shape=SHAPE)
        assert precrop.plan(model, params=0.3, scorer=densities) == by_name


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["snip", "grasp", "synflow", "ntk-sap", "prospr"])
def test_types_of_numbers(name, kind):
    """Half precision is scored in float32, so it gives what the same weights give there."""
    model, data = Chain().to(kind), loader(shuffle=False)
    densities = score(model, name, 0.3, data=data, input_shape=SHAPE, keep_scores=True)
    same = Chain()
    same.load_state_dict(model.state_dict())
    if kind != torch.float64:
        assert densities == score(same, name, 0.3, data=data, input_shape=SHAPE)
    wanted = torch.float64 if kind == torch.float64 or name == "synflow" else torch.float32
    assert {part.dtype for part in densities.scores.values()} == {wanted}


def test_gradients_are_taken_whatever_the_caller_has_set():
    model, data = Chain(), loader()
    plain = score(model, "snip", 0.3, data=data, input_shape=SHAPE)
    with torch.no_grad():
        assert score(model, "snip", 0.3, data=data, input_shape=SHAPE) == plain
    with torch.inference_mode():
        assert score(model, "snip", 0.3, data=data, input_shape=SHAPE) == plain
    with torch.autocast("cpu", torch.bfloat16):
        assert score(model, "snip", 0.3, data=data, input_shape=SHAPE) == plain


def test_iterative_scorers_report_their_rounds():
    for name, rounds in (("synflow", 100), ("force", 60), ("iterative-snip", 60), ("ntk-sap", 20)):
        seen = []
        score(Chain(), name, 0.3, data=loader(), input_shape=SHAPE, progress=lambda *at, seen=seen: seen.append(at))
        assert seen == [(k + 1, rounds) for k in range(rounds)]


def test_a_layer_that_would_be_emptied_is_named():
    """Behind a dead activation every score is zero: the layer collapses, and one weight stays."""

    class Dead(Chain):
        def forward(self, x):
            x = self.one(x)
            return self.head(self.two(x) * 0 + x.mean(1, keepdim=True))

    model = Dead()
    with pytest.warns(PrecropWarning, match=r"layer collapse: at density 0\.05, snip keeps no weight of two\.0 "):
        densities = score(model, "snip", 0.05, data=loader(), input_shape=SHAPE)
    assert densities["two.0"] == 1 / densities.weights["two.0"]


def test_the_package_lists_every_scorer():
    assert len(LAYERWISE) == 4
    assert set(SCORERS) == {*LAYERWISE, *RANKED}
    for row in SCORERS.values():
        assert (row.layers is None) != (row.weights is None)
        assert row.summary and row.source

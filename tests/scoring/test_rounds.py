"""Iterative SNIP, FORCE and NTK-SAP."""

from itertools import pairwise

import pytest
import torch
from nets import Chain
from torch import nn

from precrop import score
from precrop.scoring.ntk_sap import sensitivity
from precrop.scoring.rounds import progressive
from precrop.scoring.scorer import Problem

SHAPE = (3, 8, 8)


def problem(density=0.1):
    """A single linear layer, whose gradient does not depend on its weights: every round ranks alike."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=False))
    batch = torch.randn(5, 6), None

    class Data:
        def next(self, device, dtype):
            return batch

    weights = {"1.weight": net[1].weight}
    return Problem(net, weights, (6,), density, lambda y, _: y.sum(), lambda *at: None, Data()), batch[0]


def test_where_gradients_are_constant_rounds_change_nothing():
    for come_back in (False, True):
        case, x = problem(0.5)
        before = case.weights["1.weight"].detach().clone()
        scores = progressive(case, come_back, rounds=5)["1.weight"]
        full = (before * x.sum(0)).abs()
        kept = full >= full.flatten().kthvalue(13).values
        assert torch.equal(case.weights["1.weight"].detach() != 0, kept)
        if come_back:
            assert torch.allclose(scores, full / full.sum())
        else:
            assert torch.equal(scores.argmax(), (full * kept).argmax())


def test_iterative_snip_never_brings_a_weight_back_and_force_does():
    """Record the masks of all rounds: nested for the one, not for the other."""
    masks = {}
    data = [(torch.randn(8, *SHAPE), torch.arange(8)) for _ in range(4)]
    for name in ("iterative-snip", "force"):
        seen = masks[name] = []

        class Watched(Chain):
            def forward(self, x, seen=seen):
                if torch.is_grad_enabled():
                    seen.append(self.two[0].weight.detach() != 0)
                return super().forward(x)

        torch.manual_seed(0)
        score(Watched(), name, 0.05, data=data, input_shape=SHAPE)
    nested = {
        name: all(not (later & ~earlier).any() for earlier, later in pairwise(seen)) for name, seen in masks.items()
    }
    assert nested == {"iterative-snip": True, "force": False}
    assert len(masks["force"]) == 60


def test_rounds_take_the_loader_s_batches_in_turn():
    seen = []

    class Counting(Chain):
        def forward(self, x):
            if torch.is_grad_enabled():
                seen.append(round(float(x.mean())))
            return super().forward(x)

    data = [(torch.full((4, *SHAPE), float(k)) + torch.randn(4, *SHAPE) * 0.01, torch.arange(4)) for k in range(3)]
    score(Counting(), "force", 0.3, data=data, input_shape=SHAPE)
    assert seen == [0, 1, 2] * 20
    seen.clear()
    score(Counting(), "force", 0.3, data=iter(data), batches=2, input_shape=SHAPE)
    assert seen == [0, 1, 2] * 40


def test_ntk_sap_s_sensitivity_by_differences():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4)).double().requires_grad_(False)
    weights = {name: net.get_parameter(name) for name in ("0.weight", "3.weight")}
    case = Problem(net, weights, (2, 5, 5), 0.5, None, None)
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    masks = {name: torch.rand_like(weight) < 0.8 for name, weight in weights.items()}
    torch.manual_seed(5)
    found = sensitivity(case, x, masks, 0.1)
    torch.manual_seed(5)
    moved = {name: weight + 0.1 * torch.randn_like(weight) for name, weight in weights.items()}

    def distance(m):
        outputs = [
            torch.func.functional_call(net, {n: m[n] * w for n, w in values.items()}, (x,))
            for values in (weights, moved)
        ]
        return float((outputs[0] - outputs[1]).square().sum())

    for name in weights:
        for j in range(0, weights[name].numel(), 5):
            ends = []
            for step in (1e-5, -1e-5):
                m = {n: mask.double() for n, mask in masks.items()}
                m[name].view(-1)[j] += step
                ends.append(distance(m))
            assert float(found[name].view(-1)[j]) == pytest.approx(abs(ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-9)

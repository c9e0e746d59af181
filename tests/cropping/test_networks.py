"""The networks that the README promises, each at four budgets."""

import sys
from pathlib import Path

import pytest
import torch

from precrop import apply, plan

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from networks import NETWORKS, build

BUDGETS = ({"params": 0.5}, {"params": 0.25}, {"macs": 0.5}, {"params": 0.5, "macs": 0.5})


@pytest.mark.parametrize("name", NETWORKS)
def test_crop_meets_the_budget_and_trains(name):
    model = build(name)
    names = [n for n, _ in model.named_parameters()]
    size = 96 if "googlenet" in name else 64
    for budget in BUDGETS:
        crop = plan(model, **budget)
        assert not [f for f in crop.fixed if f.reason != "the network's output"], "every other width is free"
        shares = {"params": crop.params_ratio, "macs": crop.macs_ratio}
        used = max(shares[kind] / cap for kind, cap in budget.items())
        assert 0.99 <= used <= 1, f"{budget} met to {used:.4f}"

        small = apply(model, crop)
        assert type(small) is type(model)
        assert [n for n, _ in small.named_parameters()] == names
        assert sum(p.numel() for p in small.parameters()) == crop.cropped.params
        optimizer = torch.optim.SGD(small.parameters(), 0.01)
        output = small.train()(torch.randn(2, 3, size, size))
        logits = output if isinstance(output, torch.Tensor) else sum(output)
        assert logits.shape == (2, 1000)
        torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2])).backward()
        assert all(p.grad is not None for p in small.parameters())
        optimizer.step()

        again = apply(model, crop)
        again.load_state_dict(small.state_dict())
        image = torch.randn(1, 3, size, size)
        with torch.no_grad():
            assert torch.equal(again.eval()(image), small.eval()(image))

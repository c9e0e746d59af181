import pytest
import torch

from precrop.scoring import threshold
from precrop.scoring.threshold import cut_, kept_counts, kth_highest, schedule

DRAWS = {
    "normal": lambda n: torch.randn(n),
    "positive": lambda n: torch.rand(n, dtype=torch.float64),
    "masked": lambda n: torch.rand(n) * (torch.rand(n) < 0.02),
    "heavy": lambda n: torch.randn(n).mul(30).exp(),
    "few values": lambda n: torch.randint(-2, 3, (n,)).float(),
    "zero": lambda n: torch.zeros(n),
    "negative": lambda n: -torch.rand(n),
    "ordered": lambda n: torch.arange(n).float(),
}


@pytest.mark.parametrize("few", [1, 1 << 18], ids=["bracketed", "sorted"])
@pytest.mark.parametrize("kind", DRAWS)
def test_the_kth_highest_is_exact(kind, few, monkeypatch):
    monkeypatch.setattr(threshold, "_FEW", 3000 if few == 1 else few)
    parts = [DRAWS[kind](n).reshape(-1, 2) for n in (40_000, 20, 7_000, 12_980)]
    values = torch.cat([part.flatten() for part in parts]).sort(descending=True).values
    for k in (1, 2, 37, 600, 1201, 30_000, 59_000, 59_999, 60_000):
        assert kth_highest(parts, k) == float(values[k - 1])


def test_counts_add_up_and_are_those_of_the_highest():
    parts = {"a": torch.tensor([5.0, 1.0, 3.0]), "b": torch.tensor([[4.0], [2.0]])}
    assert kept_counts(parts, 1) == {"a": 1, "b": 0}
    assert kept_counts(parts, 3) == {"a": 2, "b": 1}
    assert kept_counts(parts, 5) == {"a": 3, "b": 2}


def test_equal_scores_are_shared_out_in_proportion():
    parts = {"a": torch.zeros(60), "b": torch.zeros(30), "c": torch.tensor([1.0] * 10)}
    assert kept_counts(parts, 40) == {"a": 20, "b": 10, "c": 10}
    assert sum(kept_counts(parts, 41).values()) == 41
    assert kept_counts(parts, 5) == {"a": 0, "b": 0, "c": 5}


def test_the_schedule_is_exponential_and_ends_at_the_density():
    steps = schedule(0.01, 4)
    assert steps == pytest.approx([0.01**0.25, 0.1, 0.01**0.75, 0.01])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_cut_keeps_what_is_at_the_level_and_above(kind):
    scores = torch.rand(7, 9, dtype=kind)
    weight = torch.randn(7, 9, dtype=kind)
    level = float(scores[3, 3])
    expected = weight * (scores >= level)
    cut_(weight, scores, level)
    assert torch.equal(weight, expected)
    assert weight[3, 3] != 0

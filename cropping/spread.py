"""What the values of a tensor look like: where they lie, how far they spread, and the shape of their distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

# Enough for a relative error of a variance of one percent or two, and quick on any tensor.
_SAMPLE = 8192
_PIECES = 16


@dataclass(frozen=True)
class Spread:
    """Moments and ends of a tensor's values; a constant has the variance 0.

    ``kurtosis`` is the fourth central moment over the squared variance: 1.8 of a uniform distribution, 3 of a normal
    one. ``zeros`` and ``ends`` are the shares of values that are exactly 0, and exactly ``high``. ``grain`` is the
    relative rounding of the tensor's type.
    """

    samples: int
    mean: float
    variance: float
    low: float = 0.0
    high: float = 0.0
    kurtosis: float = 3.0
    zeros: float = 0.0
    ends: float = 0.0
    grain: float = 0.0

    @property
    def uniform(self) -> bool:
        """Whether a uniform distribution gives the values a higher likelihood than a normal one."""
        half = (self.high - self.low) / 2
        return self.variance > 0 and half < math.sqrt(math.pi * math.e / 2 * self.variance)


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """Up to 8192 of a tensor's values, as a vector in pieces from all over it; in the order of its memory."""
    flat = tensor.detach()
    if not flat.is_contiguous():  # channels last, say: the order is of no concern, a copy would be
        flat = flat.permute(sorted(range(flat.dim()), key=flat.stride, reverse=True))
    flat = flat.reshape(-1)
    if flat.numel() <= _SAMPLE:
        return flat
    return flat.unfold(0, _SAMPLE // _PIECES, (flat.numel() - _SAMPLE // _PIECES) // (_PIECES - 1)).reshape(-1)


def spread_of(tensor: torch.Tensor) -> Spread:
    """Measure a tensor of floating point numbers (a sample of it, where it is large)."""
    values = sample_of(tensor)
    count, grain = values.numel(), torch.finfo(tensor.dtype).eps
    if count == 0:
        return Spread(0, 0.0, 0.0)
    values = values if values.dtype == torch.float64 else values.float()
    low, high = torch.stack(torch.aminmax(values)).tolist()
    if low == high:
        if tensor.numel() == count or bool((tensor.detach() == low).all()):
            return Spread(count, low, 0.0, low, high, zeros=float(low == 0), ends=1.0, grain=grain)
        values = tensor.detach().reshape(-1)  # a few other values, far apart: a large identity
        values, count = (values if values.dtype == torch.float64 else values.float()), tensor.numel()
        low, high = (float(end) for end in torch.aminmax(values))
    mean = values.mean()
    # In units of the range, so that the fourth power of the smallest spreads is still a number.
    squares = ((values - mean) / (high - low)).square_()
    measured = [mean, squares.mean(), squares.dot(squares), torch.count_nonzero(values), (values == high).sum()]
    mean_, second, fourth, nonzero, highs = torch.stack(measured).tolist()
    return Spread(
        samples=count,
        mean=mean_,
        variance=second * (high - low) ** 2,
        low=low,
        high=high,
        kurtosis=fourth / count / second**2,
        zeros=1 - nonzero / count,
        ends=highs / count,
        grain=grain,
    )

r"""One threshold over all weights: how many weights of each layer are among the best.

With scores :math:`s_i` of N weights and a density d, the :math:`k = \operatorname{round}(d N)` highest are kept.
Where scores are equal at the threshold (dead weights, all zero), the places left are shared out in
proportion to the layers' equal scores, so that k is met and no layer's name decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

# Up to this many, sorting is quick enough to need no bracket; a sample of more has about this many.
_FEW = 1 << 16


def kept_counts(scores: Mapping[str, torch.Tensor], keep: int) -> dict[str, int]:
    """How many of each tensor's scores are among the ``keep`` highest of all; they add up to ``keep``."""
    level = kth_highest(list(scores.values()), keep)
    above = {name: int(torch.count_nonzero(part > level)) for name, part in scores.items()}
    equal = {name: int(torch.count_nonzero(part == level)) for name, part in scores.items()}
    left, ties = keep - sum(above.values()), sum(equal.values())
    due = {name: left * count / ties for name, count in equal.items()}
    counts = {name: above[name] + math.floor(due[name]) for name in scores}
    rest = keep - sum(counts.values())
    for name in sorted(due, key=lambda n: math.floor(due[n]) - due[n])[:rest]:
        counts[name] += 1
    return counts


def kth_highest(parts: Sequence[torch.Tensor], k: int) -> float:
    """The k-th highest value of all tensors together (k from 1), exactly.

    A sample brackets the value, so that only the few values in the bracket are sorted: on ResNet-50's
    25 million weights this takes a tenth of the time of sorting them. Where scores are zero or above, the
    zeros, of which masked networks are full, are not sorted either.
    """
    flat = [part.detach().flatten() for part in parts]
    total = sum(part.numel() for part in flat)
    if total <= _FEW:
        return _sorted_kth(flat, k)
    stride = total // _FEW + 1
    while math.gcd(stride, 2 * 3 * 5 * 7) > 1:  # not always the same place of each kernel
        stride += 1
    sample = torch.cat([part[::stride].cpu() for part in flat]).sort(descending=True).values
    n = len(sample)
    # Five standard deviations of a quantile's place in a sample of n.
    middle, spread = k / total * n, 2.5 * math.sqrt(n) + 1
    high = float(sample[int(middle - spread)]) if middle - spread >= 1 else math.inf
    low = float(sample[int(middle + spread)]) if middle + spread < n else -math.inf
    if low <= 0 < high:
        low = 5e-324  # the least positive number: leave out zeros
    count, inside = 0, []
    for part in flat:
        above = part > high
        count += int(torch.count_nonzero(above))
        inside.append(_chosen(part, above ^ (part >= low)))
    if count < k <= count + sum(len(part) for part in inside):
        return _sorted_kth(inside, k - count)
    return _sorted_kth(flat, k)  # among zeros, or a sample that misled


def _chosen(part: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``part[mask]`` for a mask that is mostly false: eight places are passed over at once."""
    even = len(part) // 8 * 8
    words = mask[:even].view(torch.int64).nonzero().squeeze(1)
    near, hit = part[:even].view(-1, 8)[words], mask[:even].view(-1, 8)[words]
    return torch.cat([near[hit], part[even:][mask[even:]]])


def _sorted_kth(parts: Sequence[torch.Tensor], k: int) -> float:
    values = torch.cat([part.to(parts[0].device) for part in parts])
    return float(values.kthvalue(values.numel() - k + 1).values)


def cut_(weight: torch.Tensor, scores: torch.Tensor, level: float) -> None:
    """Set a weight to zero, in place, wherever its score is below ``level`` (which is above zero).

    The kernel behind ReLU's gradient does just that, several times faster than a masked fill.
    """
    bounds = torch.tensor([level, -math.inf], dtype=scores.dtype)
    below = float(torch.nextafter(bounds[0], bounds[1]))
    torch.ops.aten.threshold_backward.grad_input(weight, scores, below, grad_input=weight)


def schedule(density: float, rounds: int) -> list[float]:
    """The densities of an exponential schedule: density^((k + 1) / rounds) after round k."""
    return [density ** ((k + 1) / rounds) for k in range(rounds)]

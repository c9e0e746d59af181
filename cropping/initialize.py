r"""Fresh initial values at a new size, by the rule that the original tensor was drawn with.

Which rule that was can be read off the tensor: its variance times a fan is 1/3, 1 or 2
under the usual ones.

======================  ==========================================  ===================
rule                    variance                                    used by
======================  ==========================================  ===================
PyTorch's default       :math:`1 / (3\,\text{fan}_\text{in})`       ``reset_parameters``
LeCun                   :math:`1 / \text{fan}`
Kaiming (He)            :math:`2 / \text{fan}`                      most CNNs
Xavier (Glorot)         :math:`2 / (\text{fan}_\text{in} + \text{fan}_\text{out})`
======================  ==========================================  ===================

A variance that fits none of them is a fixed spread and stays. Where a tensor fits more than one (equal
fans), the rule that most of the network's tensors follow decides. A constant (a zero gamma) stays
the constant it is. Uniform draws stay uniform, normal ones normal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

# Enough for a relative error of the variance near one percent, and quick on any layer.
_SAMPLE = 16384


@dataclass(frozen=True)
class Fans:
    """Incoming and outgoing connections of one unit of a layer, and its groups."""

    incoming: int
    outgoing: int
    groups: int = 1


def fans_of(weight: torch.Size | tuple[int, ...], groups: int = 1) -> Fans:
    """Fans of a weight of shape (out, in / groups, *kernel), as `torch.nn.init` counts them."""
    receptive = math.prod(weight[2:])
    return Fans(weight[1] * receptive, weight[0] * receptive, groups)


Rule = Callable[[Fans], float]

#: Rule name to the variance that it gives at some fans.
RULES: dict[str, Rule] = {
    "default": lambda fans: 1 / (3 * fans.incoming),
    "kaiming fan_out": lambda fans: 2 / fans.outgoing,
    "kaiming fan_out per group": lambda fans: 2 * fans.groups / fans.outgoing,
    "kaiming fan_in": lambda fans: 2 / fans.incoming,
    "lecun fan_in": lambda fans: 1 / fans.incoming,
    "lecun fan_out": lambda fans: 1 / fans.outgoing,
    "xavier": lambda fans: 2 / (fans.incoming + fans.outgoing),
}


@dataclass(frozen=True)
class Spread:
    """What a tensor's values look like: a constant, or a distribution of some mean and variance."""

    mean: float
    variance: float
    uniform: bool
    samples: int


def spread_of(tensor: torch.Tensor) -> Spread:
    """Measure a tensor (a sample of it, where it is large)."""
    values = tensor.detach().reshape(-1)[:_SAMPLE]
    low, high = (float(end) for end in torch.aminmax(values))
    if low == high:
        return Spread(low, 0.0, False, values.numel())
    variance, mean = (float(moment) for moment in torch.var_mean(values.float()))
    # A uniform draw ends at sqrt(3) standard deviations; a normal one of this size goes beyond two.
    uniform = max(high - mean, mean - low) < 1.85 * math.sqrt(variance)
    return Spread(mean, variance, uniform, values.numel())


def candidates(spread: Spread, fans: Fans) -> list[str]:
    """The rules that a spread agrees with, within the error of measuring it."""
    tolerance = 0.01 + 4 * math.sqrt((0.8 if spread.uniform else 2) / spread.samples)
    return [name for name, rule in RULES.items() if abs(spread.variance / rule(fans) - 1) < tolerance]


class Initializer:
    """Draws tensors at new sizes as the tensors of ``model`` were drawn."""

    def __init__(self, model: nn.Module) -> None:
        self.spreads: dict[int, Spread] = {}
        self.fits: dict[int, list[str]] = {}
        self.fans: dict[int, Fans] = {}
        self.votes: Counter[str] = Counter()
        for module in model.modules():
            weight = module._parameters.get("weight")
            if weight is None or weight.dim() < 2 or weight.is_meta:
                continue
            fans = fans_of(weight.shape, int(getattr(module, "groups", 1)))
            self.fits[id(weight)] = candidates(self._spread(weight), fans)
            for name in self.fits[id(weight)]:
                self.votes[name] += 1
            bias = module._parameters.get("bias")
            for parameter in (weight, bias):
                if parameter is not None:
                    self.fans[id(parameter)] = fans

    def _spread(self, tensor: torch.Tensor) -> Spread:
        if id(tensor) not in self.spreads:
            self.spreads[id(tensor)] = spread_of(tensor)
        return self.spreads[id(tensor)]

    def draw(self, old: torch.Tensor, shape: tuple[int, ...], fans: Fans | None) -> torch.Tensor:
        """A tensor of ``shape`` with the device and type of ``old``, drawn by its rule.

        ``fans`` are those of the layer at its new size. Uses torch's global random state.
        """
        new = torch.empty(shape, dtype=old.dtype, device=old.device)
        if old.is_meta or not old.is_floating_point():
            return new.zero_()
        spread = self._spread(old)
        if spread.variance == 0:
            return new.fill_(spread.mean)
        variance = spread.variance
        if fans is not None and id(old) in self.fans:
            fits = self.fits.get(id(old)) or candidates(spread, self.fans[id(old)])
            if fits:
                variance = RULES[max(fits, key=lambda name: self.votes[name])](fans)
        mean = spread.mean if abs(spread.mean) > 5 * math.sqrt(spread.variance / spread.samples) else 0.0
        deviation = math.sqrt(variance)
        if spread.uniform:
            return new.uniform_(mean - math.sqrt(3) * deviation, mean + math.sqrt(3) * deviation)
        return new.normal_(mean, deviation)


def looks_trained(model: nn.Module) -> bool:
    """Whether the statistics of a batch norm have moved from where they start."""
    for module in model.modules():
        mean = module._buffers.get("running_mean")
        if mean is not None and not mean.is_meta and bool(mean.any()):
            return True
    return False

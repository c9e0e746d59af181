"""Fresh initial values at a new size, by the rule that drew the original's.

Weights and biases are judged apart, each over all layers of the network together (`precrop.cropping.laws`); values
that are no independent draws keep their pattern (`precrop.cropping.patterns`). A constant (a zero gamma) stays the
constant it is. Where the network's tensors leave open which rule it was, the choice is named in
`Initializer.undecided`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from precrop.cropping.laws import CUT, OTHER, Fans, Rule, Sample, Verdict, explain, fans_of
from precrop.cropping.patterns import Pattern, computed, pattern_of, recut, repeated
from precrop.cropping.spread import Spread, sample_of, spread_of

__all__ = ["Fans", "Initializer", "Spread", "fans_of", "spread_of"]


class Initializer:
    """Draws tensors at new sizes as the tensors of ``model`` were drawn.

    ``undecided`` says of which tensors the rule could not be told, after they are drawn: one sentence each.
    """

    def __init__(self, model: nn.Module) -> None:
        """Note the role of every parameter; nothing is measured before it is needed."""
        self.undecided: list[str] = []
        self.names: dict[int, str] = {}
        self.roles: dict[int, str] = {}
        self.fans: dict[int, Fans] = {}
        self.kinds: dict[int, str] = {}
        self.members: dict[str, list[torch.Tensor]] = {}
        self.spreads: dict[int, Spread] = {}
        self.verdicts: dict[int, Verdict] = {}
        for path, module in model.named_modules():
            fans = layer_fans(module, {})
            for leaf, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self.names:
                    self.names[id(parameter)] = f"{path}.{leaf}" if path else leaf
                    self._note(module, leaf, parameter, fans)

    def _note(self, module: nn.Module, leaf: str, parameter: torch.Tensor, fans: Fans | None) -> None:
        if leaf != "bias" and parameter.dim() > 1:
            role = "weight"
            fans = fans if fans is not None and leaf == "weight" else fans_of(parameter.shape)
        elif leaf == "bias" and fans is not None:
            role = "bias"
        else:  # a scale or a shift of a norm, a table of a class of its own
            role, fans = f"{type(module).__name__}.{leaf}", None
        if fans is not None:
            self.fans[id(parameter)] = fans
        self.roles[id(parameter)], self.kinds[id(parameter)] = role, _kind(module, fans)
        if parameter.is_floating_point() and not parameter.is_meta:
            self.members.setdefault(role, []).append(parameter)

    def spread(self, tensor: torch.Tensor) -> Spread:
        """A tensor's measured spread."""
        if id(tensor) not in self.spreads:
            self.spreads[id(tensor)] = spread_of(tensor)
        return self.spreads[id(tensor)]

    def verdict(self, tensor: torch.Tensor) -> Verdict:
        """The rule that a parameter was drawn with, judged over all of its role."""
        if id(tensor) not in self.verdicts:
            members = {id(member): member for member in (*self.members.get(self.roles.get(id(tensor), ""), ()), tensor)}
            drawn = [member for member in members.values() if self.is_drawn(member)]
            samples = [Sample(self.spread(m), self.fans.get(id(m)), self.kinds.get(id(m), "")) for m in drawn]
            self.verdicts |= {id(m): verdict for m, verdict in zip(drawn, explain(samples), strict=True)}
        return self.verdicts[id(tensor)]

    def is_drawn(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor holds numbers, and not the same everywhere."""
        return tensor.is_floating_point() and not tensor.is_meta and 0 < self.spread(tensor).variance < math.inf

    def follows(self, old: torch.Tensor, fans: Fans | None) -> bool:
        """Whether a tensor of the same shape has another spread at the new fans: a bias behind fewer inputs."""
        before = self.fans.get(id(old))
        if fans is None or before is None or before == fans or not self.is_drawn(old):
            return False
        rule = self.verdict(old).rule
        return not math.isclose(rule.variance(before), rule.variance(fans))

    def draw(self, old: torch.Tensor, shape: tuple[int, ...], fans: Fans | None) -> torch.Tensor:
        """A tensor of ``shape`` with the device and type of ``old``, drawn by its rule.

        ``fans`` are those of the layer at its new size. Uses torch's global random state.
        """
        if old.is_meta or not old.is_floating_point():
            return torch.zeros(shape, dtype=old.dtype, device=old.device)
        spread = self.spread(old)
        if spread.variance == 0:
            return torch.full(shape, spread.mean, dtype=old.dtype, device=old.device)
        if id(old) in self.fans and len(shape) > 1 and (fans is None or self._leaf(old) != "weight"):
            fans = fans_of(shape)
        # Drawn in single precision at least, as a network is before it is cast to a narrow type.
        new = torch.empty(shape, dtype=torch.promote_types(old.dtype, torch.float32), device=old.device)
        groups = self.fans[id(old)].groups if id(old) in self.fans else 1
        pattern: Pattern | None = pattern_of(old, spread, groups)
        if pattern is not None:
            return pattern.fill(new, fans.groups if fans is not None else 1).to(old.dtype)
        if tuple(old.shape) != shape and repeated(old, shape):
            return recut(old, shape)
        if not math.isfinite(spread.variance) or (self._is_singular(old) and computed(old, spread)):
            self._say(old, "looks computed rather than drawn, so the crop has its first values")
            return recut(old, shape)
        return self._independent(old, new, fans)

    def _is_singular(self, tensor: torch.Tensor) -> bool:
        """Whether no law of the fans explains a tensor, as it does nearly all that are drawn."""
        verdict = self.verdict(tensor)
        return verdict.rule.law == "fixed" or not verdict.shared

    def _leaf(self, tensor: torch.Tensor) -> str:
        return self.names.get(id(tensor), "").rpartition(".")[2]

    def _independent(self, old: torch.Tensor, new: torch.Tensor, fans: Fans | None) -> torch.Tensor:
        verdict = self.verdict(old)
        before = self.fans.get(id(old))
        fans = fans if before is not None else None
        if before != fans and not verdict.shared:
            self._say(old, "has a spread that no rule over the network's layers gives, so it keeps its spread")
        elif verdict.disputed(fans):
            self._say(old, f"was drawn by a rule that its layers leave open; taken: {_described(verdict.rule)}")
        drawn = _sampled(new, verdict.rule, verdict.rule.variance(fans), old, self.spread(old))
        return drawn.to(old.dtype)

    def _say(self, tensor: torch.Tensor, what: str) -> None:
        self.undecided.append(f"{self.names.get(id(tensor), 'a tensor')} {what}.")


def layer_fans(module: nn.Module, shapes: Mapping[str, tuple[int, ...]], groups: int | None = None) -> Fans | None:
    """Fans of a layer's weight, None for a module without one of two axes or more.

    ``shapes`` and ``groups`` are those of a new size, of what has one: the names are those of the module's tensors,
    and ``weight_shape`` where the weights of several experts are rows (timm's ``CondConv2d``).
    """
    weight: Any = module._parameters.get("weight")
    shape = shapes.get("weight", () if weight is None else tuple(weight.shape))
    mixed = getattr(module, "weight_shape", None)
    if isinstance(mixed, (tuple, list)) and len(mixed) > 1:
        shape = shapes.get("weight_shape", tuple(mixed))
    if len(shape) < 2:
        return None
    return fans_of(shape, int(getattr(module, "groups", 1)) if groups is None else groups)


def _kind(module: nn.Module, fans: Fans | None) -> str:
    """Layers that are usually initialized alike: a class, and whether its convolutions are depthwise."""
    depthwise = fans is not None and fans.groups > 1 and fans.groups == getattr(module, "in_channels", 0)
    return f"{'depthwise ' * depthwise}{type(module).__name__}"


def _sampled(new: torch.Tensor, rule: Rule, variance: float, old: torch.Tensor, spread: Spread) -> torch.Tensor:
    """Independent values in place, by a rule's family, mean and variance."""
    deviation, mean = math.sqrt(variance), rule.mean
    if rule.family == "uniform":
        return new.uniform_(mean - math.sqrt(3) * deviation, mean + math.sqrt(3) * deviation)
    if rule.family == "truncated":
        whole = deviation / CUT
        return nn.init.trunc_normal_(new, mean, whole, mean - 2 * whole, mean + 2 * whole)
    if rule.family == OTHER:
        values = sample_of(old).to(new.dtype)
        index = torch.randint(values.numel(), tuple(new.shape), device=new.device)
        second = spread.variance + (spread.mean - mean) ** 2
        return new.copy_((values[index] - mean) * (deviation / math.sqrt(second)) + mean)
    return new.normal_(mean, deviation)


def _described(rule: Rule) -> str:
    if rule.law == "fixed":
        return f"{rule.family}, a fixed spread"
    return f"{rule.family}, variance {math.exp(rule.log_gain):.3g} / {rule.law}"

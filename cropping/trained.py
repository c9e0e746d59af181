"""Whether a network has been trained, and how it starts afresh.

BatchNorm's statistics tell. Without them it shows in the values that start as constants or by a rule that many layers
share: training moves each by an amount of its own, so that scales and shifts of norms spread a little, biases have
spreads that nobody writes down, and uniform weights pass the bound that they were drawn within. No initializer of
timm or torchvision does any of these.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from precrop.cropping.initialize import Initializer
from precrop.cropping.patterns import pattern_of
from precrop.words import some_of

# The share of values of one role that must show no initializer's work: training spares none, though a few steps leave
# the largest weights nearly what they were.
_SHARE = 0.5
_SHARE_OF_WEIGHTS = 0.3
# Scales that spread by less than this share of their mean have been constants.
_SCALE = 0.01
# Scales and shifts both drawn, by one rule with a spread above this: an initializer of somebody's own.
_WIDE = 0.15
# A step of training moves biases further than this; some initializers draw them with a deviation of 1e-6.
_TINY = 5e-6
# Biases below this deviation are drawn with a power of ten, twice or five times that, or not at all.
_NARROW = 0.0075
# Rules beyond the first cost are seldom written down by people, beyond the second never.
_UNUSUAL = 4.0
_UNHEARD = 5.0
# How far past their bound, as a ratio, training takes uniform weights that still look uniform.
_PASSED = 1.25


def looks_trained(model: nn.Module, initializer: Initializer) -> str:
    """What shows that a network has been trained; empty for a fresh one."""
    if statistics_moved(model):
        return "its BatchNorm statistics have moved"
    if tracks_statistics(model):
        return ""
    return values_moved(model, initializer)


def statistics_moved(model: nn.Module) -> bool:
    """Whether a norm's running mean is not where it starts."""
    means = (module._buffers.get("running_mean") for module in model.modules())
    return any(mean is not None and not mean.is_meta and bool(mean.any()) for mean in means)


def tracks_statistics(model: nn.Module) -> bool:
    """Whether a norm counts the batches that it has seen: training would show there."""
    return any(module._buffers.get("num_batches_tracked") is not None for module in model.modules())


def values_moved(model: nn.Module, initializer: Initializer) -> str:
    """What scales, shifts, biases and uniform weights show of training; empty for nothing."""
    norms, scales, biases, weights = _values(model, initializer)
    checks: tuple[tuple[str, list[Any], Callable[[Any], bool], float], ...] = (
        ("the scales and shifts of its norms have moved", norms, lambda pair: _moved(initializer, *pair), _SHARE),
        ("its scales have moved", scales, lambda scale: _slightly(initializer, scale), _SHARE),
        ("its biases have moved", biases, lambda bias: _astray(initializer, bias), _SHARE),
        ("its weights have moved", weights, lambda weight: _strange(initializer, weight), _SHARE_OF_WEIGHTS),
    )
    for words, values, shows, share in checks:
        if values and sum(map(shows, values)) >= share * len(values):
            return words
    return ""


def _values(
    model: nn.Module, initializer: Initializer
) -> tuple[list[tuple[nn.Parameter, nn.Parameter]], list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """Scales with their shifts; of what is no constant, scales alone, biases, and layers' weights."""
    norms, scales, biases, weights = [], [], [], []
    for module in model.modules():
        weight, bias = (module._parameters.get(leaf) for leaf in ("weight", "bias"))
        for leaf, parameter in module._parameters.items():
            if parameter is None or parameter.is_meta or not parameter.is_floating_point():
                continue
            drawn = initializer.is_drawn(parameter)
            if id(parameter) in initializer.fans:
                if drawn and leaf == "bias":
                    biases.append(parameter)
                elif drawn and leaf == "weight":
                    weights.append(parameter)
            elif leaf == "weight" and bias is not None and weight is not None and weight.numel() > 1:
                norms.append((weight, bias))
            elif drawn and leaf != "bias":
                scales.append(parameter)
    return norms, scales + [w for w, _ in norms if initializer.is_drawn(w)], biases, weights


def _moved(initializer: Initializer, scale: nn.Parameter, shift: nn.Parameter) -> bool:
    if not (initializer.is_drawn(scale) and initializer.is_drawn(shift)):
        return False
    verdicts = [initializer.verdict(scale), initializer.verdict(shift)]
    wide = all(verdict.rule.variance(None) > _WIDE**2 for verdict in verdicts)
    return not (wide and all(verdict.shared for verdict in verdicts))


def _slightly(initializer: Initializer, scale: nn.Parameter) -> bool:
    spread = initializer.spread(scale)
    return math.sqrt(spread.variance) < _SCALE * abs(spread.mean)


def _astray(initializer: Initializer, bias: nn.Parameter) -> bool:
    verdict = initializer.verdict(bias)
    if initializer.spread(bias).variance < _TINY**2:
        return False
    if not verdict.shared or verdict.rule.cost > _UNHEARD:
        return True
    # Of the gains that are measured, a bias behind a fan has PyTorch's or none.
    narrow = initializer.spread(bias).variance < _NARROW**2
    return verdict.rule.cost > _UNUSUAL and (narrow or verdict.rule.law != "fixed")


def _strange(initializer: Initializer, weight: nn.Parameter) -> bool:
    """Whether a weight is off centre, of no rule, or has the shape of PyTorch's default and ends a little beyond it."""
    spread, fans, verdict = initializer.spread(weight), initializer.fans[id(weight)], initializer.verdict(weight)
    off_centre = 0 < abs(verdict.rule.mean) < math.sqrt(spread.variance)
    if spread.samples >= 100 and (off_centre or not verdict.shared):
        return pattern_of(weight, spread, fans.groups) is None
    beyond = max(spread.high, -spread.low) * math.sqrt(fans.incoming)
    uniform = spread.samples >= 100 and abs(spread.kurtosis - 1.8) < 0.3
    usual = verdict.shared and verdict.rule.cost <= _UNUSUAL
    return uniform and not usual and 1 + 2 * spread.grain + 1e-5 < beyond < _PASSED


def initialize_anew(model: nn.Module) -> list[str]:
    """Give a network fresh values: each module's own initialization, children first, and running statistics' start.

    A parameter of a module without one can keep no more than its mean, if it is a vector, or its spread. Returns a
    sentence for each such class.
    """
    left: dict[type[nn.Module], list[str]] = defaultdict(list)
    initializer = Initializer(model)
    done: set[int] = set()
    for path, module in reversed(list(model.named_modules())):
        reset = _own_initialization(module)
        if reset is not None:
            reset()
            done |= {id(parameter) for parameter in module._parameters.values()}
            continue
        for tensor, start in _norm_values(module):
            tensor.detach().fill_(start)
            done.add(id(tensor))
        for leaf, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in done:
                done.add(id(parameter))
                left[type(module)].append(f"{path}.{leaf}" if path else leaf)
                _redraw(initializer, parameter)
    return [
        f"{cls.__name__} has no reset_parameters, so {some_of(names, 3)} start at the mean or with the spread "
        "that training gave them; initialize them before you train the crop."
        for cls, names in ((cls, names[::-1]) for cls, names in left.items())
    ]


def _own_initialization(module: nn.Module) -> Callable[[], None] | None:
    """A module's method that initializes it, where it can be called without arguments."""
    for name in ("reset_parameters", "_reset_parameters"):
        method = getattr(module, name, None)
        if callable(method):
            needed = (
                p
                for p in inspect.signature(method).parameters.values()
                if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            )
            if not any(needed):
                return cast(Callable[[], None], method)
    return None


def _norm_values(module: nn.Module) -> Iterator[tuple[torch.Tensor, float]]:
    """The values of a norm that cannot initialize itself (a frozen BatchNorm's are buffers), with their starts."""
    if "norm" not in type(module).__name__.lower():
        return
    own = {**module._parameters, **module._buffers}
    for name, start in {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}.items():
        tensor = own.get(name)
        if tensor is not None and tensor.dim() == 1:
            yield tensor, start


@torch.no_grad()
def _redraw(initializer: Initializer, parameter: nn.Parameter) -> None:
    if not initializer.is_drawn(parameter):
        return
    spread = initializer.spread(parameter)
    if parameter.numel() == max(parameter.shape):
        parameter.fill_(spread.mean)
    else:
        parameter.normal_(spread.mean, math.sqrt(spread.variance))

"""What a user hands in, checked: models, budgets, input shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from precrop.crop_plan import Budget, CropPlan
from precrop.cropping.layers import check_size_attributes
from precrop.cropping.targets import TARGETS
from precrop.errors import BudgetError, PlanError, PrecropError
from precrop.plain import number, whole
from precrop.refusals import EXPORTED, refusal
from precrop.scoring.densities import Densities
from precrop.scoring.run import scorer_named

_CONVENTION = (
    "It is the share kept, 0 < ratio <= 1, the density of the pruning-at-initialization literature "
    "(for 4x compression pass 0.25)."
)
_DEFAULT_SIZE = 224


def checked_budget(ratio: float | None, params: float | None, macs: float | None) -> Budget:
    """The caps asked for; raises `BudgetError` that explains the convention."""
    if ratio is not None and (params is not None or macs is not None):
        raise BudgetError(
            f"got ratio={ratio!r} and {'params' if params is not None else 'macs'}= as well. Expected one or the "
            "other: ratio caps parameters and MACs alike, params= and macs= cap one or both by name."
        )
    if ratio is None and params is None and macs is None:
        raise BudgetError(f"no budget was given. Pass a ratio, or params= or macs= or both. {_CONVENTION}")
    if ratio is not None:
        share = checked_share("ratio", ratio)
        return Budget(params=share, macs=share)
    return Budget(
        params=None if params is None else checked_share("params", params),
        macs=None if macs is None else checked_share("macs", macs),
    )


def checked_share(name: str, value: Any) -> float:
    """A share in (0, 1] as a float; raises `BudgetError`."""
    share = number(value)
    if share is None:
        raise BudgetError(f"{name} is {value!r}, a {type(value).__name__}; expected a number. {_CONVENTION}")
    if not (math.isfinite(share) and 0 < share <= 1):
        raise BudgetError(f"{name} is {value!r}. {_CONVENTION}")
    return share


def checked_model(model: Any) -> nn.Module:
    """The model, if it is one that can be copied and traced; raises `PrecropError`."""
    if not isinstance(model, nn.Module):
        raise PrecropError(_no_module(model))
    if reason := refusal(model):
        raise PrecropError(reason)
    check_size_attributes(model)
    return model


def _no_module(model: Any) -> str:
    if isinstance(model, type):
        return (
            f"got the class {model.__name__} where a torch.nn.Module was expected. Build the network first: "
            f"{model.__name__}(...)."
        )
    if isinstance(model, torch.export.ExportedProgram):
        return f"got an ExportedProgram; expected a torch.nn.Module: {EXPORTED}."
    return (
        f"got a {type(model).__name__} where a torch.nn.Module was expected. Build the network first, or pass its "
        "name to precrop.create_model."
    )


def input_shapes(model: nn.Module, input_shape: Iterable[int] | None) -> list[tuple[int, ...]]:
    """One image's shape (C, H, W): the one given, else those worth trying, the likeliest first.

    A cropped model has it in its plan, a timm model the size in ``pretrained_cfg``, a torchvision detector the size
    that it resizes to; else it is the first convolution's channels at 224 by 224. Raises `PrecropError` where none of
    these helps.
    """
    if input_shape is not None:
        return [_checked_shape(input_shape)]
    plan = getattr(model, "crop_plan", None)
    if plan is not None:
        return [tuple(plan.input_shape)]
    resized = _detector_size(model)
    if resized is not None:
        return [(3, *resized)]
    config = getattr(model, "pretrained_cfg", None) or {}
    size = tuple(config.get("input_size") or ())
    modules = dict(model.named_modules())
    named = config.get("first_conv")
    first = modules.get(named) if isinstance(named, str) else None
    if not isinstance(first, nn.Conv2d):
        first = next((m for m in modules.values() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))), None)
    shapes = []
    if isinstance(first, nn.Conv2d):
        shapes.append((first.in_channels, *(size[1:] or (_DEFAULT_SIZE, _DEFAULT_SIZE))))
    if size and size not in shapes:
        shapes.append(size)  # before its first convolution such a network turns pixels into channels
    if not shapes and not any(parameter.dim() > 1 for parameter in model.parameters()):
        raise PrecropError(
            f"this {type(model).__name__} has no layer that can be cropped. Expected at least one convolution or "
            "linear layer."
        )
    if not shapes:
        raise PrecropError(
            f"cannot tell what {type(model).__name__} takes as input: it has no two-dimensional convolution to start "
            "with. Pass input_shape=, one sample's shape without the batch."
        )
    return shapes


def _checked_shape(input_shape: Any) -> tuple[int, ...]:
    sizes = list(input_shape) if isinstance(input_shape, (Iterable, torch.Tensor)) and _has_length(input_shape) else []
    shape = [whole(size) for size in sizes]
    checked = tuple(size for size in shape if size is not None and size > 0)
    if not checked or len(checked) < len(shape):
        raise PrecropError(
            f"input_shape is {input_shape!r}; expected positive integers without the batch, such as (3, 224, 224)."
        )
    return checked


def _has_length(value: Any) -> bool:
    """Whether a value can be gone through: a tensor of one number says that it can, and cannot."""
    return getattr(value, "ndim", 1) > 0


def _detector_size(model: nn.Module) -> tuple[int, int] | None:
    """The (H, W) that a torchvision detector resizes its images to; square, where only the shorter side is set."""
    transform = getattr(model, "transform", None)
    fixed, shorter = getattr(transform, "fixed_size", None), getattr(transform, "min_size", None)
    if fixed:
        return int(fixed[1]), int(fixed[0])
    return (int(shorter[-1]), int(shorter[-1])) if isinstance(shorter, (list, tuple)) and shorter else None


def checked_round_to(round_to: Any) -> int | None:
    """The unit of the widths; raises `PrecropError`."""
    if round_to is None:
        return None
    unit = whole(round_to)
    if unit is None or unit < 1:
        raise PrecropError(
            f"round_to is {round_to!r}; expected a positive integer, such as 8, or None for the default."
        )
    return unit


def checked_target(target: Any) -> None:
    """The engine that a crop is made for; raises `PrecropError` that lists all."""
    if target is not None and not (isinstance(target, str) and target in TARGETS):
        near = get_close_matches(str(target), TARGETS, n=1)
        raise PrecropError(
            f"unknown target {target!r}.{f' Did you mean {near[0]!r}?' if near else ''} Expected one of "
            f"{', '.join(map(repr, TARGETS))}, or None for widths that suit most engines."
        )


def checked_names(ignore: Any) -> tuple[str, ...]:
    """The layer names to leave alone, none for None; raises `PrecropError`."""
    if ignore is None:
        return ()
    if isinstance(ignore, str):
        ignore = (ignore,)
    names = tuple(ignore) if isinstance(ignore, Iterable) and _has_length(ignore) else (None,)
    if not all(isinstance(name, str) and name for name in names):
        raise PrecropError(f"ignore is {ignore!r}; expected layer names, such as ['conv1'].")
    return names


def checked_flag(name: str, value: Any) -> bool:
    """True or false; raises `PrecropError` for what only counts as one of them."""
    if type(value).__name__ not in ("bool", "bool_"):  # Python's and NumPy's
        raise PrecropError(f"{name} is {value!r}; expected True or False.")
    return bool(value)


def checked_scorer(scorer: Any) -> str | Mapping[str, float]:
    """A scorer's name, or the densities of layers as plain numbers; raises `PrecropError`.

    Which of the names are the network's layers, and which densities a budget allows, is checked when widths are chosen.
    """
    if not isinstance(scorer, Mapping):
        scorer_named(scorer)
        return str(scorer)
    densities = {}
    for layer, density in scorer.items():
        share = number(density)
        if not isinstance(layer, str) or share is None or not (0 < share < math.inf):
            raise PrecropError(
                f"the density of {layer} is {density!r}; expected a mapping of layer names to the kept share of each "
                "layer's weights, 0 < density <= 1."
            )
        densities[layer] = share
    return scorer if isinstance(scorer, Densities) else densities


def checked_plan(plan: Any) -> CropPlan:
    """A plan; raises `PlanError` that says how one is read from a file."""
    if not isinstance(plan, CropPlan):
        raise PlanError(
            f"got a {type(plan).__name__} as the plan; expected the CropPlan that precrop.plan returns, or "
            "precrop.CropPlan.load(path) reads."
        )
    return plan


def checked_seed(seed: Any) -> int:
    """What random numbers start from; raises `PrecropError`."""
    value = whole(seed)
    if value is None:
        raise PrecropError(f"seed is {seed!r}; expected a whole number of 64 bits, such as 0.")
    return value


def checked_count(name: str, value: Any) -> int | None:
    """A positive number of something, or None for the default; raises `PrecropError`."""
    if value is None:
        return None
    count = whole(value)
    if count is None or count < 1:
        raise PrecropError(f"{name} is {value!r}; expected a positive number of {name}.")
    return count


def checked_function(name: str, value: Any, of: str) -> None:
    """Raise `PrecropError` for what cannot be called; None is the default."""
    if value is not None and not callable(value):
        raise PrecropError(f"{name} is {_shown(value)}; expected a function of {of}.")


def _shown(value: Any) -> str:
    """A value as errors print it: not the whole of a network."""
    return f"a {type(value).__name__}" if isinstance(value, (nn.Module, torch.Tensor)) else repr(value)

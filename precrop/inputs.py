"""What a user hands in, checked: models, budgets, input shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

import torch
from torch import nn

from precrop.crop_plan import Budget
from precrop.cropping.targets import TARGETS
from precrop.errors import BudgetError, PrecropError

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
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BudgetError(f"{name} is {value!r}, a {type(value).__name__}; expected a number. {_CONVENTION}")
    share = float(value)
    if not (math.isfinite(share) and 0 < share <= 1):
        raise BudgetError(f"{name} is {value!r}. {_CONVENTION}")
    return share


def checked_model(model: Any) -> nn.Module:
    """The model, if it is one that can be copied and traced; raises `PrecropError`."""
    if not isinstance(model, nn.Module):
        raise PrecropError(
            f"got a {type(model).__name__} where a torch.nn.Module was expected. Build the network first, or pass its "
            "name to precrop.create_model."
        )
    for kind, inner in _WRAPPERS:
        if type(model).__name__ == kind:
            raise PrecropError(
                f"the model is wrapped in {kind}. Crop the network inside it (model.{inner}) and wrap the result again."
            )
    if isinstance(model, torch.jit.ScriptModule):
        raise PrecropError("the model is a ScriptModule, whose Python code is gone. Crop it before torch.jit.script.")
    return model


_WRAPPERS = (
    ("OptimizedModule", "_orig_mod"),
    ("DataParallel", "module"),
    ("DistributedDataParallel", "module"),
)


def input_shapes(model: nn.Module, input_shape: Sequence[int] | None) -> list[tuple[int, ...]]:
    """One image's shape (C, H, W): the one given, else those worth trying, the likeliest first.

    A cropped model has it in its plan, a timm model the size in ``pretrained_cfg``, a torchvision detector the size
    that it resizes to; else it is the first convolution's channels at 224 by 224. Raises `PrecropError` where none of
    these helps.
    """
    if input_shape is not None:
        shape = tuple(input_shape)
        if not shape or not all(isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in shape):
            raise PrecropError(
                f"input_shape is {input_shape!r}; expected positive integers without the batch, such as (3, 224, 224)."
            )
        return [shape]
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
    if isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1:
        raise PrecropError(
            f"round_to is {round_to!r}; expected a positive integer, such as 8, or None for the default."
        )
    return round_to


def checked_target(target: Any) -> None:
    """The engine that a crop is made for; raises `PrecropError` that lists all."""
    if target is not None and target not in TARGETS:
        near = get_close_matches(str(target), TARGETS, n=1)
        raise PrecropError(
            f"unknown target {target!r}.{f' Did you mean {near[0]!r}?' if near else ''} Expected one of "
            f"{', '.join(map(repr, TARGETS))}, or None for widths that suit most engines."
        )


def checked_names(ignore: Any) -> tuple[str, ...]:
    """The layer names to leave alone; raises `PrecropError`."""
    if isinstance(ignore, str):
        return (ignore,)
    names = tuple(ignore)
    if not all(isinstance(name, str) for name in names):
        raise PrecropError(f"ignore is {ignore!r}; expected layer names, such as ['conv1'].")
    return names

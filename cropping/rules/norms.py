"""Norms and reductions: the input's shape, tied to the parameters'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from precrop.cropping.solver import as_polynomial
from precrop.cropping.symbolic import Dim, dim_of, shape_of

if TYPE_CHECKING:
    from precrop.cropping.shapes import ShapeMode

T = torch.Tensor


def _tie_channels(mode: ShapeMode, size: Dim, parameters: Sequence[T | None]) -> None:
    for parameter in {id(p): p for p in parameters if p is not None}.values():
        mode.agree(shape_of(parameter)[0], size)


def batch_norm(mode: ShapeMode, x: T, weight: T | None, bias: T | None, mean: T | None, var: T | None, *rest: Any) -> T:
    _tie_channels(mode, shape_of(x)[1], (weight, bias, mean, var))
    return x


def group_norm(mode: ShapeMode, x: T, groups: Any, weight: T | None = None, bias: T | None = None, *rest: Any) -> T:
    channels = shape_of(x)[1]
    mode.solver.floor_divide(as_polynomial(channels), as_polynomial(dim_of(groups)))
    _tie_channels(mode, channels, (weight, bias))
    return x


def layer_norm(
    mode: ShapeMode,
    x: T,
    normalized: Sequence[Any],
    weight: T | None = None,
    bias: T | None = None,
    *rest: Any,
) -> T:
    axes = shape_of(x)[-len(normalized) :]
    for axis, size in enumerate(axes):
        mode.agree(dim_of(normalized[axis]), size)
        for parameter in (weight, bias):
            if parameter is not None:
                mode.agree(shape_of(parameter)[axis], size)
    return x


def prelu(mode: ShapeMode, x: T, weight: T) -> T:
    slopes = shape_of(weight)
    if slopes and slopes[0] != 1:
        mode.agree(slopes[0], shape_of(x)[1] if x.dim() > 1 else 1)
    return x


def mean(mode: ShapeMode, x: T, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> T:
    shape = list(shape_of(x))
    axes = (
        range(len(shape))
        if dim is None or dim == []
        else [d % len(shape) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    )
    return mode.make([1 if i in axes else s for i, s in enumerate(shape) if keepdim or i not in axes], dtype or x.dtype)


def same(mode: ShapeMode, x: T, *args: Any, **kwargs: Any) -> T:
    return x  # without data, a tensor of the same shape and type is the same tensor

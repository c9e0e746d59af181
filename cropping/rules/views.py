"""Views: the same elements under another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from precrop.cropping.symbolic import Dim, dim_of, elements, shape_of

if TYPE_CHECKING:
    from precrop.cropping.shapes import ShapeMode

T = torch.Tensor


def view(mode: ShapeMode, x: T, size: Sequence[Any]) -> T:
    solver, shape = mode.solver, shape_of(x)
    wanted = [dim_of(s) for s in size]
    total = elements(shape)
    if -1 in wanted:
        axis = wanted.index(-1)
        rest = elements([s for i, s in enumerate(wanted) if i != axis])
        batch = shape[0] if shape and axis == 0 else None
        if isinstance(batch, int) and solver.hint(total) == solver.hint(rest) * batch:
            # view(-1, 128): what is left over is the batch, so the rest is the whole of one sample.
            mode.agree(total, rest.scaled(batch))
            wanted[axis] = batch
        else:
            wanted[axis] = solver.floor_divide(total, rest)
    else:
        mode.agree(total, elements(wanted))
    return mode.make(wanted, x.dtype)


def flatten(mode: ShapeMode, x: T, start_dim: int = 0, end_dim: int = -1) -> T:
    shape = shape_of(x)
    start, end = start_dim % len(shape), end_dim % len(shape)
    return mode.make([*shape[:start], elements(shape[start : end + 1]), *shape[end + 1 :]], x.dtype)


def permute(mode: ShapeMode, x: T, dims: Sequence[int]) -> T:
    shape = shape_of(x)
    return mode.make([shape[d] for d in dims], x.dtype)


def transpose(mode: ShapeMode, x: T, dim0: int, dim1: int) -> T:
    shape = list(shape_of(x))
    shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
    return mode.make(shape, x.dtype)


def unsqueeze(mode: ShapeMode, x: T, dim: int) -> T:
    shape = list(shape_of(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return mode.make(shape, x.dtype)


def squeeze(mode: ShapeMode, x: T, dim: Any = None) -> T:
    shape = shape_of(x)
    dims = (
        range(len(shape))
        if dim is None
        else [d % len(shape) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    )
    return mode.make([s for i, s in enumerate(shape) if not (i in dims and mode.unless_one(s) == 1)], x.dtype)


def expand(mode: ShapeMode, x: T, size: Sequence[Any], *, implicit: bool = False) -> T:
    wanted, shape = [dim_of(s) for s in size], shape_of(x)
    shape = (*[1] * (len(wanted) - len(shape)), *map(mode.unless_one, shape))
    result: list[Dim] = []
    for old, new in zip(shape, wanted, strict=True):
        if old != 1 and new != -1:
            mode.agree(old, new)
        result.append(old if new == -1 or old != 1 else new)
    return mode.make(result, x.dtype)


def copy_(mode: ShapeMode, x: T, source: T, non_blocking: bool = False) -> T:
    expand(mode, source, [*x.shape])
    return x

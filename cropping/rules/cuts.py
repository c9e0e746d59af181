"""Joining and cutting along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from precrop.cropping.polynomial import Polynomial, total
from precrop.cropping.solver import as_polynomial
from precrop.cropping.symbolic import Dim, dim_of, shape_of

if TYPE_CHECKING:
    from precrop.cropping.shapes import ShapeMode

T = torch.Tensor


def cat(mode: ShapeMode, tensors: Sequence[T], dim: int = 0) -> T:
    shapes = [s for s in map(shape_of, tensors) if s != (0,)]  # torch passes over a legacy empty tensor
    axis = dim % len(shapes[0])
    result = list(shapes[0])
    result[axis] = total(shape[axis] for shape in shapes)
    for shape in shapes[1:]:
        for i, size in enumerate(shape):
            if i != axis and size != result[i]:
                mode.agree(result[i], size)
    return mode.make(result, tensors[0].dtype)


def stack(mode: ShapeMode, tensors: Sequence[T], dim: int = 0) -> T:
    result = list(shape_of(tensors[0]))
    for tensor in tensors[1:]:
        for a, b in zip(result, shape_of(tensor), strict=True):
            mode.agree(a, b)
    result.insert(dim % (len(result) + 1), len(tensors))
    return mode.make(result, tensors[0].dtype)


def _with_axis(mode: ShapeMode, x: T, dim: int, size: Dim) -> T:
    shape = list(shape_of(x))
    shape[dim] = size
    return mode.make(shape, x.dtype)


def split_sizes(mode: ShapeMode, x: T, sizes: Sequence[Any], dim: int = 0) -> list[T]:
    pieces = [dim_of(s) for s in sizes]
    mode.agree(shape_of(x)[dim], total(pieces))
    for piece in map(as_polynomial, pieces):
        if not mode.solver.is_positive(piece):  # such as [part, whole - part]
            taken = Polynomial({m: -c for m, c in mode.solver.resolve(piece).terms.items() if c < 0})
            mode.solver.part_of(taken, piece + taken)
    return [_with_axis(mode, x, dim, piece) for piece in pieces]


def split(mode: ShapeMode, x: T, split_size: Any, dim: int = 0) -> list[T]:
    if isinstance(split_size, (list, tuple)):
        return split_sizes(mode, x, split_size, dim)
    return _cut(mode, x, dim_of(split_size), dim)


def chunk(mode: ShapeMode, x: T, chunks: int, dim: int = 0) -> list[T]:
    whole = as_polynomial(shape_of(x)[dim])
    return _cut(mode, x, mode.solver.divide(whole + Polynomial.constant(chunks - 1), chunks), dim)


def _cut(mode: ShapeMode, x: T, size: Dim, dim: int) -> list[T]:
    """Cut an axis into pieces of one size, the last of them what is left."""
    solver, whole, piece = mode.solver, as_polynomial(shape_of(x)[dim]), as_polynomial(size)
    count = -(-solver.hint(whole) // solver.hint(piece))
    last = whole - piece.scaled(count - 1)
    if solver.hint(last) == solver.hint(piece):
        mode.agree(last, piece)
        last = piece
    elif not solver.is_positive(last) or not solver.is_positive(piece - last):
        return _cut(mode, _with_axis(mode, x, dim, solver.pin(whole)), solver.pin(piece), dim)
    return [_with_axis(mode, x, dim, s) for s in [piece] * (count - 1) + [last]]


def slice(mode: ShapeMode, x: T, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> T:
    solver, size = mode.solver, shape_of(x)[dim]
    step = int(step)
    low: Dim = _from_front(mode, 0 if start is None else dim_of(start), size)
    high: Dim = _from_front(mode, size if end is None else dim_of(end), size)
    if isinstance(size, int) and isinstance(low, int) and isinstance(high, int):
        return _with_axis(mode, x, dim, len(range(size)[low:high:step]))
    whole, stop, begin = (solver.resolve(as_polynomial(s)) for s in (size, high, low))
    if stop.is_constant and solver.hint(stop) >= solver.hint(whole):
        stop = whole  # a number that cuts nothing off cuts nothing off a narrower tensor
    elif solver.hint(stop) == solver.hint(whole):
        mode.agree(stop, whole)
        stop = whole
    elif solver.hint(stop) > solver.hint(whole):
        stop = solver.ordered(whole, stop)[0]
    else:
        stop = solver.part_of(stop, whole)
    if not begin.is_constant:
        begin = solver.part_of(begin, stop)
        stop = solver.resolve(stop)
    length = solver.resolve(stop - begin)
    if not solver.is_positive(length):
        solver.at_least(length, 1)
    if step > 1:
        length = solver.divide(length + Polynomial.constant(step - 1), step)
    return _with_axis(mode, x, dim, length)


def _from_front(mode: ShapeMode, place: Dim, size: Dim) -> Dim:
    """A place on an axis, counted from the front; a negative one counts from the end of it."""
    if isinstance(place, int):
        return place if place >= 0 or isinstance(size, int) else size + Polynomial.constant(place)
    if mode.solver.hint(place) >= 0:
        return place
    mode.solver.ordered(place, Polynomial.constant(-1))  # it stays negative
    return mode.solver.resolve(as_polynomial(size) + place)


def select(mode: ShapeMode, x: T, dim: int, index: Any) -> T:
    shape = list(shape_of(x))
    size = shape.pop(dim)
    if isinstance(size, Polynomial) and isinstance(index, int):
        mode.solver.at_least(size, index + 1 if index >= 0 else -index)
    return mode.make(shape, x.dtype)


def index(mode: ShapeMode, x: T, indices: Sequence[T | None]) -> Any:
    for axis, chosen in enumerate(indices):
        if chosen is not None and not any(i is not None and i.dtype == torch.bool for i in indices):
            _reads(mode, shape_of(x)[axis], chosen)
    return mode.probe(torch.ops.aten.index.Tensor, (x, indices), {})


def index_select(mode: ShapeMode, x: T, dim: int, chosen: T) -> Any:
    _reads(mode, shape_of(x)[dim], chosen)
    return mode.probe(torch.ops.aten.index_select.default, (x, dim, chosen), {})


def _reads(mode: ShapeMode, size: Dim, chosen: T) -> None:
    """A table of indices bounds the width that it reads from below; one that reads every channel fixes it."""
    if isinstance(size, int):
        return
    if chosen.is_meta or chosen.numel() == 0:
        mode.solver.pin(size)
        return
    present = mode.solver.hint(size)
    read = torch.unique(chosen.detach().cpu().long() % present)
    if len(read) == present:
        mode.solver.pin(size)
    else:
        mode.solver.at_least(size, int(read.max()) + 1)

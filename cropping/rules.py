"""Shape rules of the operators whose arguments must agree in size, and of the frequent ones.

A rule is a function ``(mode, *the operator's arguments) -> data-free result``; the
table `RULES` at the end names the operator of each. To add one, write the function
and its row; an operator without a row is probed, which is slower but needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import as_polynomial
from precrop.cropping.symbolic import Dim, dim_of, elements, shape_of

if TYPE_CHECKING:
    from precrop.cropping.shapes import ShapeMode

T = torch.Tensor


def _each(value: Any, n: int) -> list[int]:
    """An argument given once or per spatial axis, per spatial axis."""
    values = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * n if len(values) == 1 else values


# -- convolutions and matrix products ------------------------------------------------


def _convolve(
    mode: ShapeMode,
    x: T,
    weight: T,
    bias: T | None,
    spatial: Callable[[int, Dim, int], Dim],
    groups: Any,
    transposed: bool,
) -> T:
    solver, shape, kernel = mode.solver, shape_of(x), shape_of(weight)
    rank = len(kernel) - 2
    unbatched = len(shape) == rank + 1
    if unbatched:
        shape = (1, *shape)
    sizes = [spatial(axis, shape[2 + axis], solver.pin(kernel[2 + axis])) for axis in range(rank)]
    groups = dim_of(groups)
    # weight: (out, in / groups, *kernel); transposed: (in, out / groups, *kernel)
    incoming: Dim
    outgoing: Dim
    if transposed:
        incoming, outgoing = kernel[0], as_polynomial(kernel[1]) * as_polynomial(groups)
    else:
        incoming, outgoing = as_polynomial(kernel[1]) * as_polynomial(groups), kernel[0]
    mode.agree(shape[1], incoming)
    if groups != 1:
        solver.floor_divide(as_polynomial(kernel[0]), as_polynomial(groups))
    if bias is not None:
        mode.agree(shape_of(bias)[0], outgoing)
    result = [shape[0], outgoing, *sizes]
    positions = elements([shape[0], *(shape[2:] if transposed else sizes)])
    mode.on_product(weight, incoming, outgoing, elements(kernel) * positions, elements(result))
    return mode.make(result[1:] if unbatched else result, x.dtype)


def _strided(mode: ShapeMode, length: Dim, less: int, stride: int) -> Dim:
    """``(length - less) // stride + 1``, the positions of a window; a convolution may run over channels."""
    if isinstance(length, int):
        return (length - less) // stride + 1
    reach = length - Polynomial.constant(less)
    return (reach if stride == 1 else mode.solver.divide(reach, stride)) + Polynomial.constant(1)


def _conv(
    mode: ShapeMode,
    x: T,
    weight: T,
    bias: T | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> T:
    n = weight.dim() - 2
    strides, dilations = _each(stride, n), _each(dilation, n)

    def size(axis: int, length: Dim, kernel: int) -> Dim:
        if padding == "same":
            return length
        pad = 0 if padding == "valid" else _each(padding, n)[axis]
        return _strided(mode, length, dilations[axis] * (kernel - 1) + 1 - 2 * pad, strides[axis])

    return _convolve(mode, x, weight, bias, size, groups, transposed=False)


def _conv_transpose(
    mode: ShapeMode,
    x: T,
    weight: T,
    bias: T | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> T:
    n = weight.dim() - 2
    strides, pads, extra, dilations = (_each(v, n) for v in (stride, padding, output_padding, dilation))

    def size(axis: int, length: Dim, kernel: int) -> Dim:
        length = mode.solver.pin(length)
        return (length - 1) * strides[axis] - 2 * pads[axis] + dilations[axis] * (kernel - 1) + extra[axis] + 1

    return _convolve(mode, x, weight, bias, size, groups, transposed=True)


def _convolution(
    mode: ShapeMode,
    x: T,
    weight: T,
    bias: T | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
) -> T:
    if transposed:
        return _conv_transpose(mode, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(mode, x, weight, bias, stride, padding, dilation, groups)


def _linear(mode: ShapeMode, x: T, weight: T, bias: T | None = None) -> T:
    shape, (outgoing, incoming) = shape_of(x), shape_of(weight)
    mode.agree(shape[-1], incoming)
    if bias is not None:
        mode.agree(shape_of(bias)[0], outgoing)
    result = [*shape[:-1], outgoing]
    mode.on_product(weight, incoming, outgoing, elements(shape) * as_polynomial(outgoing), elements(result))
    return mode.make(result, x.dtype)


def _matmul(mode: ShapeMode, a: T, b: T) -> T:
    left, right = shape_of(a), shape_of(b)
    if len(left) == 1 or len(right) == 1:  # vectors: give each the axis that is dropped again
        result = _matmul(mode, a.unsqueeze(0) if len(left) == 1 else a, b.unsqueeze(-1) if len(right) == 1 else b)
        result = result.squeeze(-1) if len(right) == 1 else result
        return result.squeeze(-2 if len(right) > 1 else -1) if len(left) == 1 else result
    mode.agree(left[-1], right[-2])
    result_shape = [
        *(mode.broadcast(left[:-2], right[:-2]) if len(left) + len(right) > 4 else ()),
        left[-2],
        right[-1],
    ]
    mode.on_product(None, left[-1], right[-1], elements(result_shape) * as_polynomial(left[-1]), Polynomial({}))
    return mode.make(result_shape, a.dtype)


def _addmm(mode: ShapeMode, bias: T, a: T, b: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    product = _matmul(mode, a, b)
    mode.broadcast(shape_of(bias), shape_of(product))
    return product


def _attention(mode: ShapeMode, query: T, key: T, value: T, attn_mask: T | None = None, *args: Any, **kwargs: Any) -> T:
    scores = _matmul(mode, query, key.transpose(-2, -1))
    if attn_mask is not None:
        mode.broadcast(shape_of(scores), shape_of(attn_mask))
    return _matmul(mode, scores, value)


# -- norms: the input's shape, tied to the parameters' -----------------------------------


def _tie_channels(mode: ShapeMode, size: Dim, parameters: Sequence[T | None]) -> None:
    for parameter in parameters:
        if parameter is not None:
            mode.agree(shape_of(parameter)[0], size)


def _batch_norm(
    mode: ShapeMode, x: T, weight: T | None, bias: T | None, mean: T | None, var: T | None, *rest: Any
) -> T:
    _tie_channels(mode, shape_of(x)[1], (weight, bias, mean, var))
    return x


def _group_norm(mode: ShapeMode, x: T, groups: Any, weight: T | None = None, bias: T | None = None, *rest: Any) -> T:
    channels = shape_of(x)[1]
    mode.solver.floor_divide(as_polynomial(channels), as_polynomial(dim_of(groups)))
    _tie_channels(mode, channels, (weight, bias))
    return x


def _layer_norm(
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


def _prelu(mode: ShapeMode, x: T, weight: T) -> T:
    slopes = shape_of(weight)
    if slopes and slopes[0] != 1:
        mode.agree(slopes[0], shape_of(x)[1] if x.dim() > 1 else 1)
    return x


# -- views -----------------------------------------------------------------------------


def _view(mode: ShapeMode, x: T, size: Sequence[Any]) -> T:
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


def _flatten(mode: ShapeMode, x: T, start_dim: int = 0, end_dim: int = -1) -> T:
    shape = shape_of(x)
    start, end = start_dim % len(shape), end_dim % len(shape)
    return mode.make([*shape[:start], elements(shape[start : end + 1]), *shape[end + 1 :]], x.dtype)


def _permute(mode: ShapeMode, x: T, dims: Sequence[int]) -> T:
    shape = shape_of(x)
    return mode.make([shape[d] for d in dims], x.dtype)


def _transpose(mode: ShapeMode, x: T, dim0: int, dim1: int) -> T:
    shape = list(shape_of(x))
    shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
    return mode.make(shape, x.dtype)


def _unsqueeze(mode: ShapeMode, x: T, dim: int) -> T:
    shape = list(shape_of(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return mode.make(shape, x.dtype)


def _squeeze(mode: ShapeMode, x: T, dim: Any = None) -> T:
    shape = shape_of(x)
    dims = (
        range(len(shape))
        if dim is None
        else [d % len(shape) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    )
    return mode.make([s for i, s in enumerate(shape) if not (i in dims and s == 1)], x.dtype)


def _expand(mode: ShapeMode, x: T, size: Sequence[Any], *, implicit: bool = False) -> T:
    wanted, shape = [dim_of(s) for s in size], shape_of(x)
    shape = (*[1] * (len(wanted) - len(shape)), *shape)
    result: list[Dim] = []
    for old, new in zip(shape, wanted, strict=True):
        if old != 1 and new != -1:
            mode.agree(old, new)
        result.append(old if new == -1 or old != 1 else new)
    return mode.make(result, x.dtype)


# -- joining and cutting -----------------------------------------------------------------


def _cat(mode: ShapeMode, tensors: Sequence[T], dim: int = 0) -> T:
    shapes = [s for s in map(shape_of, tensors) if s != (0,)]  # torch passes over a legacy empty tensor
    axis = dim % len(shapes[0])
    result = list(shapes[0])
    for shape in shapes[1:]:
        for i, size in enumerate(shape):
            if i == axis:
                result[i] = as_polynomial(result[i]) + as_polynomial(size)
            else:
                mode.agree(result[i], size)
    return mode.make(result, tensors[0].dtype)


def _with_axis(mode: ShapeMode, x: T, dim: int, size: Dim) -> T:
    shape = list(shape_of(x))
    shape[dim] = size
    return mode.make(shape, x.dtype)


def _split_sizes(mode: ShapeMode, x: T, sizes: Sequence[Any], dim: int = 0) -> list[T]:
    pieces = [dim_of(s) for s in sizes]
    total = Polynomial({})
    for piece in pieces:
        total = total + as_polynomial(piece)
    mode.agree(shape_of(x)[dim], total)
    for piece in map(as_polynomial, pieces):
        if not mode.solver.is_positive(piece):  # such as [part, whole - part]
            taken = Polynomial({m: -c for m, c in mode.solver.resolve(piece).terms.items() if c < 0})
            mode.solver.part_of(taken, piece + taken)
    return [_with_axis(mode, x, dim, piece) for piece in pieces]


def _split(mode: ShapeMode, x: T, split_size: Any, dim: int = 0) -> list[T]:
    if isinstance(split_size, (list, tuple)):
        return _split_sizes(mode, x, split_size, dim)
    return _cut(mode, x, dim_of(split_size), dim)


def _chunk(mode: ShapeMode, x: T, chunks: int, dim: int = 0) -> list[T]:
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


def _slice(mode: ShapeMode, x: T, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> T:
    solver, size = mode.solver, shape_of(x)[dim]
    step = int(step)
    low: Dim = 0 if start is None else dim_of(start)
    high: Dim = size if end is None else dim_of(end)
    if isinstance(low, int) and low < 0:
        low = as_polynomial(size) + Polynomial.constant(low)
    if isinstance(high, int) and high < 0:
        high = as_polynomial(size) + Polynomial.constant(high)
    if isinstance(size, int) and isinstance(low, int) and isinstance(high, int):
        return _with_axis(mode, x, dim, len(range(size)[low:high:step]))
    whole, stop, begin = (solver.resolve(as_polynomial(s)) for s in (size, high, low))
    present = solver.hint(whole)
    if solver.hint(stop) > present:
        stop = whole
    elif solver.hint(stop) == present:
        # A number that cuts nothing off cuts nothing off a narrower tensor; a size follows.
        if not stop.is_constant:
            mode.agree(stop, whole)
        stop = whole
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


def _select(mode: ShapeMode, x: T, dim: int, index: Any) -> T:
    shape = list(shape_of(x))
    size = shape.pop(dim)
    if isinstance(size, Polynomial) and isinstance(index, int):
        mode.solver.at_least(size, index + 1 if index >= 0 else -index)
    return mode.make(shape, x.dtype)


def _mean(mode: ShapeMode, x: T, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> T:
    shape = list(shape_of(x))
    axes = (
        range(len(shape))
        if dim is None or dim == []
        else [d % len(shape) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]
    )
    return mode.make([1 if i in axes else s for i, s in enumerate(shape) if keepdim or i not in axes], dtype or x.dtype)


def _same(mode: ShapeMode, x: T, *args: Any, **kwargs: Any) -> T:
    return x  # without data, a tensor of the same shape and type is the same tensor


RULES: dict[str, Callable[..., Any]] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "conv_transpose3d": _conv_transpose,
    "convolution": _convolution,
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "scaled_dot_product_attention": _attention,
    "batch_norm": _batch_norm,
    "instance_norm": _batch_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "prelu": _prelu,
    "view": _view,
    "reshape": _view,
    "_unsafe_view": _view,
    "flatten": _flatten,
    "permute": _permute,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "cat": _cat,
    "concat": _cat,
    "split": _split,
    "split_with_sizes": _split_sizes,
    "chunk": _chunk,
    "slice": _slice,
    "select": _select,
    "mean": _mean,
    "dropout": _same,
    "hardtanh": _same,
    "hardswish": _same,
    "softmax": _same,
    "clone": _same,
    "contiguous": _same,
    "detach": _same,
}

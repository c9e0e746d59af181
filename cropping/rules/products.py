"""Convolutions and matrix products: sizes that must agree, and the multiply-adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

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
    mode.on_product(weight, incoming, outgoing, elements(kernel) * positions, elements(result), (x, weight))
    return mode.make(result[1:] if unbatched else result, x.dtype)


def _strided(mode: ShapeMode, length: Dim, less: int, stride: int) -> Dim:
    """``(length - less) // stride + 1``, the positions of a window; a convolution may run over channels."""
    if isinstance(length, int):
        return (length - less) // stride + 1
    reach = length - Polynomial.constant(less)
    return (reach if stride == 1 else mode.solver.divide(reach, stride)) + Polynomial.constant(1)


def conv(
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


def conv_transpose(
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


def convolution(
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
        return conv_transpose(mode, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(mode, x, weight, bias, stride, padding, dilation, groups)


def deform_conv(
    mode: ShapeMode,
    x: T,
    weight: T,
    offset: T,
    mask: T,
    bias: T | None,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: Any,
    *rest: Any,
) -> T:
    """torchvision's; the offsets have the sizes of the output, and their channels those of the kernel."""
    made = conv(mode, x, weight, bias, (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w), groups)
    for size in shape_of(offset)[1:]:
        mode.solver.pin(size)
    return made


def linear(mode: ShapeMode, x: T, weight: T, bias: T | None = None) -> T:
    shape, (*rows, incoming) = shape_of(x), shape_of(weight)
    mode.agree(shape[-1], incoming)
    outgoing = rows[0] if rows else 1  # a vector gives no axis
    if bias is not None and bias.dim():
        mode.agree(shape_of(bias)[0], outgoing)
    result = [*shape[:-1], *rows]
    macs = elements(shape) * as_polynomial(outgoing)
    mode.on_product(weight, incoming, outgoing, macs, elements(result), (x, weight))
    return mode.make(result, x.dtype)


def bilinear(mode: ShapeMode, x: T, y: T, weight: T, bias: T | None = None) -> T:
    outgoing, left, right = shape_of(weight)  # each output is (x' W) y, of one matrix for each
    mode.agree(shape_of(x)[-1], left)
    mode.agree(shape_of(y)[-1], right)
    if bias is not None:
        mode.agree(shape_of(bias)[0], outgoing)
    places = mode.broadcast(shape_of(x)[:-1], shape_of(y)[:-1])
    result = [*places, outgoing]
    macs = elements(places) * (elements(shape_of(weight)) + elements([outgoing, right]))
    mode.on_product(weight, left, outgoing, macs, elements(result), (x, y))
    return mode.make(result, x.dtype)


def matmul(mode: ShapeMode, a: T, b: T) -> T:
    result, macs = _multiplied(mode, shape_of(a), shape_of(b))
    weight = b if isinstance(b, nn.Parameter) else a
    outgoing = shape_of(b)[-1] if weight is b else shape_of(a)[0 if a.dim() < 2 else -2]
    _book(mode, weight, shape_of(a)[-1], outgoing, macs, (a, b))
    return mode.make(result, a.dtype)


def _multiplied(mode: ShapeMode, left: Sequence[Dim], right: Sequence[Dim]) -> tuple[list[Dim], Polynomial]:
    """The shape of a product of matrices, or of vectors, whose axis is dropped again, and its multiply-adds."""
    rows, columns = list(left[-2:-1]), list(right[-1:] if len(right) > 1 else [])
    mode.agree(left[-1], right[-2] if len(right) > 1 else right[0])
    batch = mode.broadcast(left[:-2], right[:-2]) if len(left) > 2 or len(right) > 2 else []
    result = [*batch, *rows, *columns]
    return result, elements(result) * as_polynomial(left[-1])


def _book(mode: ShapeMode, weight: T, incoming: Dim, outgoing: Dim, macs: Polynomial, operands: tuple[T, ...]) -> None:
    known = weight if isinstance(weight, nn.Parameter) else None
    mode.on_product(known, incoming, outgoing, macs, Polynomial({}), operands)


def addmm(mode: ShapeMode, bias: T, a: T, b: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    product = matmul(mode, a, b)
    mode.broadcast(shape_of(bias), shape_of(product))
    return product


def addbmm(mode: ShapeMode, bias: T, a: T, b: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    product = matmul(mode, a, b)
    result = shape_of(product)[1:]  # summed over the batch
    mode.broadcast(shape_of(bias), result)
    return mode.make(result, product.dtype)


def attention(
    mode: ShapeMode,
    query: T,
    key: T,
    value: T,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> T:
    queries, keys, values = (list(shape_of(t)) for t in (query, key, value))
    if enable_gqa:  # several heads of the queries read one of the keys and values
        heads = queries[-3]
        for grouped in (keys, values):
            mode.solver.floor_divide(as_polynomial(heads), as_polynomial(grouped[-3]))
            grouped[-3] = heads
    scores, macs = _multiplied(mode, queries, [*keys[:-2], keys[-1], keys[-2]])
    _book(mode, query, queries[-1], keys[-2], macs, (query, key))
    if attn_mask is not None:
        mode.broadcast(scores, shape_of(attn_mask))
    result, macs = _multiplied(mode, scores, values)
    _book(mode, value, values[-2], values[-1], macs, (query, key, value))
    return mode.make(result, query.dtype)

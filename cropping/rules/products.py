"""Convolutions and matrix products: sizes that must agree, and the multiply-adds."""

from __future__ import annotations

from collections.abc import Callable
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
    mode.on_product(weight, incoming, outgoing, elements(kernel) * positions, elements(result))
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


def linear(mode: ShapeMode, x: T, weight: T, bias: T | None = None) -> T:
    shape, (outgoing, incoming) = shape_of(x), shape_of(weight)
    mode.agree(shape[-1], incoming)
    if bias is not None:
        mode.agree(shape_of(bias)[0], outgoing)
    result = [*shape[:-1], outgoing]
    mode.on_product(weight, incoming, outgoing, elements(shape) * as_polynomial(outgoing), elements(result))
    return mode.make(result, x.dtype)


def matmul(mode: ShapeMode, a: T, b: T) -> T:
    left, right = shape_of(a), shape_of(b)
    if len(left) == 1 or len(right) == 1:  # vectors: give each the axis that is dropped again
        result = matmul(mode, a.unsqueeze(0) if len(left) == 1 else a, b.unsqueeze(-1) if len(right) == 1 else b)
        result = result.squeeze(-1) if len(right) == 1 else result
        return result.squeeze(-2 if len(right) > 1 else -1) if len(left) == 1 else result
    mode.agree(left[-1], right[-2])
    batch = mode.broadcast(left[:-2], right[:-2]) if len(left) + len(right) > 4 else []
    result_shape = [*batch, left[-2], right[-1]]
    macs = elements(result_shape) * as_polynomial(left[-1])
    weight, outgoing = (b, right[-1]) if isinstance(b, nn.Parameter) else (a, left[-2])
    mode.on_product(weight if isinstance(weight, nn.Parameter) else None, left[-1], outgoing, macs, Polynomial({}))
    return mode.make(result_shape, a.dtype)


def addmm(mode: ShapeMode, bias: T, a: T, b: T, *, beta: Any = 1, alpha: Any = 1) -> T:
    product = matmul(mode, a, b)
    mode.broadcast(shape_of(bias), shape_of(product))
    return product


def attention(mode: ShapeMode, query: T, key: T, value: T, attn_mask: T | None = None, *args: Any, **kwargs: Any) -> T:
    scores = matmul(mode, query, key.transpose(-2, -1))
    if attn_mask is not None:
        mode.broadcast(shape_of(scores), shape_of(attn_mask))
    return matmul(mode, scores, value)

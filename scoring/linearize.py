r"""Make a network's output the sum over its paths, as SynFlow reads it.

The authors' code takes the absolute value of every parameter and buffer, runs in eval mode and feeds ones: in a chain
of convolutions, fresh batch norms and ReLUs every value is then positive, and the summed output R is the sum over all
paths of the products of absolute weights. Other networks hold functions under which R would not depend on the
weights any more. They act here as what they are at the start of training:

===============================================  =======================================================
function                                         acts as
===============================================  =======================================================
batch norm                                       its scale and shift at statistics 0 and 1
layer, group, instance and RMS norm              the same: no statistics of the input are taken
a norm over a *weight* (weight standardization)  a division by the weight's spread, which is held constant
ReLU6, hardtanh; tanh                            ReLU; the identity
sigmoid, hard sigmoid                            the constant 1: under large inputs they are saturated
softmax, attention                               the mean over what it weighs
===============================================  =======================================================

What lies behind a constant gate alone (a squeeze-and-excitation's own layers, the query and key of
attention) is then not reached by R and not ranked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def linearize(model: nn.Module) -> None:
    """Take the absolute value of all parameters and buffers in place; norms get fresh statistics; eval mode."""
    with torch.no_grad():
        for module in model.modules():
            mean, variance = module._buffers.get("running_mean"), module._buffers.get("running_var")
            if mean is not None and variance is not None:
                mean.zero_()
                variance.fill_(1)
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.abs_()
    model.eval()


class Linearized(TorchFunctionMode):
    """Runs the functions of the table above as the table says.

    With ``gates`` the saturating ones are constants, without they are the identity: for networks whose only way to
    the output leads through one.
    """

    def __init__(self, gates: bool = True) -> None:
        super().__init__()
        self.replaced: dict[Any, Callable[..., Any]] = dict(_NORMS)
        gate = _constant if gates else _identity
        for function in _SATURATING:
            self.replaced[function] = gate
        for function in _SOFTMAXES:
            self.replaced[function] = _even if gates else _identity
        if gates:
            self.replaced[F.scaled_dot_product_attention] = _even_attention
        for function in _RECTIFIERS:
            self.replaced[function] = _rectified
        for function in _RECTIFIERS_IN_PLACE:
            self.replaced[function] = _rectified_in_place
        for function in _IDENTITIES:
            self.replaced[function] = _identity

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.replaced.get(func, func)(*args, **(kwargs or {}))


def _affine(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, axis: int) -> torch.Tensor:
    """Scale and shift with the weight's axes laid out from ``axis`` of x on (negative: the last ones)."""
    if weight is not None and not _is(weight, 1):
        x = x * _laid(weight, x, axis)
    return x if bias is None or _is(bias, 0) else x + _laid(bias, x, axis)


def _is(tensor: torch.Tensor, number: int) -> bool:
    """Whether a scale or shift does nothing, as most do before training; then it need not be computed."""
    return not tensor.requires_grad and bool((tensor == number).all())


def _laid(tensor: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    return tensor if axis < 0 else tensor.view(-1, *[1] * (x.dim() - axis - 1))


def _batch_norm(
    x: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    if isinstance(x._base, nn.Parameter):  # weight standardization: the axes are those of a weight
        others = [axis for axis in range(x.dim()) if axis != 1]
        x = x / (x.detach().var(others, correction=0, keepdim=True) + eps).sqrt()
    return _affine(x, weight, bias, 1)


def _instance_norm(
    x: torch.Tensor, mean: Any = None, var: Any = None, weight: Any = None, bias: Any = None, *_: Any, **__: Any
) -> torch.Tensor:
    return _affine(x, weight, bias, 1)


def _group_norm(x: torch.Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> torch.Tensor:
    return _affine(x, weight, bias, 1)


def _layer_norm(x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: Any = None) -> torch.Tensor:
    return _affine(x, weight, bias, -1)


def _rms_norm(x: torch.Tensor, shape: Any, weight: Any = None, eps: Any = None) -> torch.Tensor:
    return _affine(x, weight, None, -1)


def _constant(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.ones_like(input, requires_grad=False)


def _even(input: torch.Tensor, dim: int | None = None, *_: Any, **__: Any) -> torch.Tensor:
    size = input.shape[-1 if dim is None else dim]
    return torch.full_like(input, 1 / size, requires_grad=False)


def _even_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention with the same weight for every key that the mask lets through."""
    if enable_gqa:
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    logits = torch.zeros(query.shape[-2], key.shape[-2], dtype=value.dtype, device=value.device)
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        logits = logits.masked_fill(attn_mask.detach() == -torch.inf, -torch.inf)
    return torch.softmax(logits, -1) @ value


def _identity(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return input


def _rectified(input: torch.Tensor, *_: Any, inplace: bool = False, **__: Any) -> torch.Tensor:
    """ReLU. Sums of positive paths pass it unchanged, and on a CPU finding that out is cheaper than applying it.

    Where an input is exactly zero the gradient differs (1 for 0), but no score does: all paths through it are zero.
    """
    if input.device.type == "cpu" and input.numel() and bool(input.detach().amin() >= 0):
        return input
    return torch.relu_(input) if inplace else torch.relu(input)


def _rectified_in_place(input: torch.Tensor) -> torch.Tensor:
    return _rectified(input, inplace=True)


_NORMS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.group_norm: _group_norm,
    torch.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
}
_SATURATING: tuple[Any, ...] = (
    torch.sigmoid,
    torch.sigmoid_,
    torch.Tensor.sigmoid,
    torch.Tensor.sigmoid_,
    F.sigmoid,
    F.hardsigmoid,
)
_SOFTMAXES: tuple[Any, ...] = (torch.softmax, torch.Tensor.softmax, F.softmax)
_RECTIFIERS: tuple[Any, ...] = (F.relu, torch.relu, torch.Tensor.relu, F.relu6, F.hardtanh)
_RECTIFIERS_IN_PLACE: tuple[Any, ...] = (F.relu_, torch.relu_, torch.Tensor.relu_)
_IDENTITIES: tuple[Any, ...] = (
    torch.tanh,
    torch.Tensor.tanh,
    torch.tanh_,
    torch.Tensor.tanh_,
    F.tanh,
    torch.log_softmax,
    torch.Tensor.log_softmax,
    F.log_softmax,
)

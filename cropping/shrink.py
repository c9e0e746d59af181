"""Build the smaller network: the same class and structure, every tensor at its new size.

The given model is copied without its data; each parameter and buffer whose shape changes is
drawn afresh (`precrop.cropping.initialize`), and the attributes that hold sizes follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from precrop.cropping.copying import copy_structure
from precrop.cropping.followers import set_attribute
from precrop.cropping.graph import WidthGraph
from precrop.cropping.initialize import Fans, Initializer, fans_of, looks_trained
from precrop.cropping.layers import settled
from precrop.errors import PrecropWarning


def shrink(model: nn.Module, graph: WidthGraph, widths: Mapping[str, int]) -> nn.Module:
    """A new model of the same class with the given widths (channels by width name).

    Parameter names, devices, types, train mode and ``requires_grad`` are the original's; the
    model passed in is not touched. Tensors whose shape does not change keep their initial values.
    Warns when the model has evidently been trained: then every layer is initialized anew.
    """
    values = graph.values(widths).__getitem__
    trained = looks_trained(model)
    if trained:
        warnings.warn(
            "this model has been trained (its BatchNorm statistics have moved); a crop starts from fresh weights, "
            "so its training is not carried over. Crop first, then train.",
            PrecropWarning,
            stacklevel=3,
        )
    shapes = {name: tuple(settled(size, values) for size in shape) for name, shape in graph.shapes.items()}
    groups = {
        path: settled(value, values) for (path, attribute), value in graph.attributes.items() if attribute == "groups"
    }
    initializer = Initializer(model)
    memo: dict[int, Any] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        weight = shapes.get(f"{prefix}weight", ())
        fans = fans_of(weight, int(groups.get(path, 1))) if len(weight) > 1 else None
        for name, old in (*module._parameters.items(), *module._buffers.items()):
            shape = shapes.get(f"{prefix}{name}")
            if old is not None and shape is not None and id(old) not in memo:
                memo[id(old)] = _resized(old, shape, fans, initializer)
    if hasattr(model, "crop_plan"):
        memo[id(model.crop_plan)] = model.crop_plan
    small = copy_structure(model, memo)
    for (path, attribute), value in graph.attributes.items():
        set_attribute(small, path, attribute, settled(value, values))
    if trained:
        for module in small.modules():
            method = getattr(module, "reset_parameters", None)
            if callable(method):
                method()
    return small


def _resized(old: torch.Tensor, shape: tuple[int, ...], fans: Fans | None, initializer: Initializer) -> torch.Tensor:
    with torch.no_grad():
        if tuple(old.shape) == shape:
            new = old.detach().clone()
        elif isinstance(old, nn.Parameter) or _is_constant(old):
            new = initializer.draw(old, shape, fans)
        else:
            new = _recut(old, shape)
        new = _laid_out(new, old)
    return nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new


def _laid_out(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """``new`` in the memory format of ``old`` (channels last), else with its axes in the same order in memory."""
    if old.layout != torch.strided or new.stride() == old.stride() or _is_packed(old):
        return new
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    kind = formats.get(old.dim())
    # By the strides: of a 1x1 convolution's weight every format is contiguous.
    if kind is not None and old.stride() == torch.empty(old.shape, device="meta", memory_format=kind).stride():
        return torch.empty(new.shape, dtype=new.dtype, device=new.device, memory_format=kind).copy_(new)
    order = sorted(range(old.dim()), key=old.stride().__getitem__, reverse=True)
    return torch.empty_permuted(new.shape, order, dtype=new.dtype, device=new.device).copy_(new)


def _is_packed(tensor: torch.Tensor) -> bool:
    """Whether the strides are the usual ones, also of axes of one."""
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= size
    return True


def _is_constant(old: torch.Tensor) -> bool:
    return old.is_meta or bool((old == old.flatten()[0]).all())


def _recut(old: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A buffer's values for fewer channels (a blur filter for each), or repeated for more."""
    for axis, size in enumerate(shape):
        old = old.index_select(axis, torch.arange(size, device=old.device) % old.shape[axis])
    return old.clone()

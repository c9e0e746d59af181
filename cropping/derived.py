"""Tensors that a network computes from others: brought up to date with the tensors of a crop.

A weight norm keeps a weight as a direction and a length, a spectral norm keeps estimates of two singular vectors, a
pruning mask and both older forms keep the product as a plain attribute. Each starts from the weight it was put on, so
after a crop it starts from the new one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from precrop.cropping.layers import parametrizations_of

# As `torch.nn.utils.parametrizations.spectral_norm` starts.
_POWER_ITERATIONS = 15


def refresh_derived(model: nn.Module) -> None:
    """Compute anew what the modules of a crop derive from their tensors, as torch does when a norm is put on."""
    with torch.no_grad():
        for module in model.modules():
            for name, chain in parametrizations_of(module).items():
                _refresh_parametrized(module, name, chain)
            for hook in module._forward_pre_hooks.values():
                _refresh_hooked(module, hook)


def _refresh_parametrized(module: nn.Module, name: str, chain: ParametrizationList) -> None:
    whole = max(chain._parameters.values(), key=lambda p: 0 if p is None else p.numel())
    if whole is None or whole.is_meta:
        return
    for step in chain:
        if isinstance(step, _SpectralNorm) and whole.dim() > 1:
            step._power_method(step._reshape_weight_to_matrix(whole), _POWER_ITERATIONS)
    if all(hasattr(step, "right_inverse") for step in chain):
        setattr(module, name, whole.clone())


def _refresh_hooked(module: Any, hook: Any) -> None:
    if isinstance(hook, WeightNorm):
        direction = getattr(module, f"{hook.name}_v")
        getattr(module, f"{hook.name}_g").copy_(torch.norm_except_dim(direction, 2, hook.dim))
        setattr(module, hook.name, hook.compute_weight(module))
    elif isinstance(hook, SpectralNorm):
        for side in ("u", "v"):
            vector = getattr(module, f"{hook.name}_{side}")
            vector.copy_(nn.functional.normalize(vector, dim=0, eps=hook.eps))
        setattr(module, hook.name, getattr(module, f"{hook.name}_orig").detach().clone())
    elif isinstance(hook, BasePruningMethod):
        setattr(module, hook._tensor_name, hook.apply_mask(module))  # type: ignore[no-untyped-call]

"""Whether a network has been trained, and how it starts afresh."""

from __future__ import annotations

from torch import nn

from precrop.cropping.initialize import Initializer


def looks_trained(model: nn.Module, initializer: Initializer) -> str:
    """What shows that a network has been trained; empty for a fresh one."""
    for module in model.modules():
        mean = module._buffers.get("running_mean")
        if mean is not None and not mean.is_meta and bool(mean.any()):
            return "its BatchNorm statistics have moved"
    return ""


def initialize_anew(model: nn.Module) -> list[str]:
    for module in model.modules():
        method = getattr(module, "reset_parameters", None)
        if callable(method):
            method()
    return []

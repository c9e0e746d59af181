"""Modules whose Python code or weights are gone, or not there yet: each with the sentence that says what to do."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy


def refusal(model: nn.Module) -> str | None:
    """Why this network cannot be cropped as it is, naming the module; None where nothing is known against it."""
    for path, module in model.named_modules():
        for kind in (_wrapped, _scripted, _quantized, _not_materialized):
            reason = kind(module, path)
            if reason is not None:
                return reason
    return None


def exported(model: nn.Module) -> bool:
    """Whether a module of the network is what ``ExportedProgram.module()`` returns."""
    return any(isinstance(m, torch.fx.GraphModule) and "_guards_fn" in m._modules for m in model.modules())


EXPORTED = (
    "an exported program (torch.export) fixes its batch and many of its sizes in the graph. Crop the network that was "
    "exported, and export the crop"
)

_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
}


def _named(path: str) -> str:
    return f"the module {path!r}" if path else "the model"


def _wrapped(module: nn.Module, path: str) -> str | None:
    kind = type(module).__name__
    if kind not in _WRAPPERS or not isinstance(getattr(module, _WRAPPERS[kind], None), nn.Module):
        return None
    if path and (kind == "OptimizedModule" or (kind == "DataParallel" and not module.device_ids)):
        return None  # within a network these call what they hold
    inner = f"{path or 'model'}.{_WRAPPERS[kind]}"
    return f"{_named(path)} is wrapped in {kind}. Crop the network inside it ({inner}) and wrap the result again."


def _scripted(module: nn.Module, path: str) -> str | None:
    if not isinstance(module, torch.jit.ScriptModule):
        return None
    return (
        f"{_named(path)} is a ScriptModule, whose Python code is gone. Crop it before torch.jit.script or "
        "torch.jit.trace."
    )


# Of the quantized modules' package, and what a float network adds and concatenates with until it is converted.
_FLOAT_STAND_INS = ("FloatFunctional", "FXFloatFunctional")


def _quantized(module: nn.Module, path: str) -> str | None:
    origin = type(module).__module__
    packed = origin.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"))
    packed = packed and type(module).__name__ not in _FLOAT_STAND_INS
    if not packed and not any(t is not None and t.is_quantized for t in module._parameters.values()):
        return None
    return (
        f"{_named(path)} is quantized ({origin}.{type(module).__name__}): its weights are packed integers. Crop the "
        "float network first, then train and quantize the crop."
    )


def _not_materialized(module: nn.Module, path: str) -> str | None:
    names = [
        name
        for store in (module._parameters, module._buffers)
        for name, tensor in store.items()
        if tensor is not None and is_lazy(tensor)
    ]
    if not names:
        return None
    return (
        f"{_named(path)}, a {type(module).__name__}, has no sizes yet ({', '.join(names)}): a lazy layer takes them "
        "from its first input. Run one batch first: model(torch.zeros(1, C, H, W)), C, H and W being one image's."
    )

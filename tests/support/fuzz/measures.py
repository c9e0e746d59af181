"""What is counted and read off a network, by other means than precrop's own."""

from __future__ import annotations

import random as python_random
from typing import Any

import numpy as np
import torch
from support_macs import counted_macs
from torch import nn
from torch.utils._pytree import tree_leaves

from .description import Description
from .network import build

#: The batch of the checks' forwards: more than one, or a norm of a 1x1 map has nothing to go by.
_BATCH = 2


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def outputs(model: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(model(images)) if isinstance(leaf, torch.Tensor)]


def images(network: Description, count: int = _BATCH) -> torch.Tensor:
    return torch.randn(count, *network.image, generator=torch.Generator().manual_seed(1))


def macs_of(network: Description, model: nn.Module | None = None) -> int:
    """Multiply-adds for one image, by torch's own counter."""
    return counted_macs(build(network) if model is None else model, network.image)


def params_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def numbers(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Every whole number, and every list or tuple of them, that a module keeps."""
    found = {}
    for path, module in model.named_modules():
        for name, kept in vars(module).items():
            whole = isinstance(kept, int) and not isinstance(kept, bool)
            several = isinstance(kept, (list, tuple)) and kept and all(type(entry) is int for entry in kept)
            if (whole or several) and name not in ("_version", "_dynamo_source"):
                found[path, name] = kept
    return found


def snapshot(model: nn.Module) -> list[Any]:
    """All that a model is: tensors (bits and identity), gradients, modes, attributes; and the random states."""
    tensors = [
        (name, id(t), t.detach().clone().numpy().tobytes(), t.requires_grad, None if t.grad is None else t.grad.clone())
        for name, t in (*model.named_parameters(), *model.named_buffers())
    ]
    rest = [
        (path, m.training, {k: repr(v) for k, v in vars(m).items() if not k.startswith("_")})
        for path, m in model.named_modules()
    ]
    return [tensors, rest, python_random.getstate(), np.random.get_state()[1].tobytes()]  # type: ignore[union-attr]


def caps_of(request: dict[str, Any]) -> dict[str, float]:
    if "ratio" in request:
        return {"params": request["ratio"], "macs": request["ratio"]}
    return {kind: request[kind] for kind in ("params", "macs") if kind in request}

"""Open the gates that start shut, so that what lies behind them can be scored.

Networks often begin as near identities: the last norm of a residual branch starts with scale 0, LayerScale
with 1e-6, NFNet's skip gain with 0, a branch's last convolution with zeros. Nothing behind such a gate
changes the output, so every sensitivity is zero there and the branch would be cut to nothing, though a few steps
of training open it. Scores are therefore taken with those gates open (1 for a scale, a Kaiming-normal
draw for a weight) on a copy of the network.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

# Scales at or below this are shut; the usual starts are 0, 1e-6, 1e-5, 1e-4 and 1e-2.
SHUT = 0.05
# What scales are called, as the last or a whole part of a parameter's name. Shifts, tokens and embeddings are not.
_NAMES = ("gamma", "gain", "scale", "layer_scale", "layerscale", "resweight", "alpha", "ls1", "ls2", "ls")


def open_gates(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> list[str]:
    """Open every shut gate of ``model`` in place; the names of the parameters that changed.

    ``weights`` are the prunable weights, which are gates only where they are constantly zero.
    """
    prunable = {id(weight) for weight in weights.values()}
    opened = []
    with torch.no_grad():
        for name, weight in weights.items():
            if not weight.any():
                fan = max(1, weight[0].numel()) if weight.dim() > 1 else 1
                weight.normal_(0, (2 / fan) ** 0.5)
                opened.append(name)
        for path, module in model.named_modules():
            for leaf, parameter in module.named_parameters(recurse=False):
                name = f"{path}.{leaf}" if path else leaf
                if id(parameter) in prunable or not parameter.is_floating_point() or not parameter.numel():
                    continue
                if _is_scale(module, leaf, parameter) and parameter.abs().max() <= SHUT:
                    parameter.fill_(1)
                    opened.append(name)
    return opened


def _is_scale(module: nn.Module, leaf: str, parameter: torch.Tensor) -> bool:
    if sum(size > 1 for size in parameter.shape) > 1:
        return False
    kind = type(module).__name__.lower()
    if leaf == "weight":
        return "norm" in kind or kind.startswith(("bn", "batchn")) or "scale" in kind or "affine" in kind
    # gamma, gamma_1, layer_scale_2, skipinit_gain, ls1
    words = leaf.lower().rstrip("0123456789").rstrip("_")
    return words in _NAMES or words.endswith(("_gamma", "_gain", "_scale"))

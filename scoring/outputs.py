"""What networks return (a tensor, or containers of tensors), and the default loss on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from precrop.errors import ScoreError


def tensors_in(output: Any, depth: int = 4) -> list[torch.Tensor]:
    """The floating-point tensors in what a forward returned: containers, and the attributes of an object."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            if leaf.is_floating_point():
                found.append(leaf)
        elif depth and isinstance(leaf, Mapping):
            found += tensors_in(list(leaf.values()), depth - 1)
        elif depth and hasattr(leaf, "__dict__") and not isinstance(leaf, (type, nn.Module)):
            found += tensors_in(list(vars(leaf).values()), depth - 1)
    return found


def scaled(output: Any, temperature: float) -> Any:
    """The outputs divided by a temperature."""
    if temperature == 1:
        return output
    return tree_map(lambda leaf: leaf / temperature if isinstance(leaf, torch.Tensor) else leaf, output)


def cross_entropy(output: Any, targets: Any) -> torch.Tensor:
    """Cross entropy of class scores (N, C) or (N, C, H, W) with labels (N) or (N, H, W), or shares (N, C).

    Where a network returns several (auxiliary heads), the losses are added. Raises `ScoreError` for labels
    outside the classes, and outputs that are no class scores.
    """
    if not isinstance(targets, torch.Tensor):
        raise ScoreError(
            f"a batch's labels are a {type(targets).__name__}; expected a tensor of class numbers (N,). "
            "Pass loss=, a function of (outputs, labels), for other targets."
        )
    outputs = tensors_in(output)
    labelled = not targets.is_floating_point()
    matching = [
        scores
        for scores in outputs
        if scores.dim() > 1
        and (scores.shape[:1] + scores.shape[2:] == targets.shape if labelled else scores.shape == targets.shape)
    ]
    if not matching:
        shapes = ", ".join(str(tuple(scores.shape)) for scores in outputs) or "none"
        raise ScoreError(
            f"cross entropy does not fit outputs of shape {shapes} and labels of shape {tuple(targets.shape)}, "
            f"{targets.dtype}. Expected class scores (N, C) and class numbers (N,). Pass loss=, a function of "
            "(outputs, labels), for another task."
        )
    losses = []
    for scores in matching:
        there = targets.to(scores.device)
        if labelled:
            there = there.long()
            classes = scores.shape[1]
            low, high = int(there.min()), int(there.max())
            if (low < 0 and low != _IGNORED) or high >= classes:
                raise ScoreError(
                    f"labels run from {low} to {high}, and the network has {classes} classes; expected labels "
                    f"from 0 to {classes - 1}. Build the network with num_classes={max(high + 1, classes)}, or "
                    "check the data's labels."
                )
        losses.append(functional.cross_entropy(scores, there, ignore_index=_IGNORED))
    return torch.stack([loss.to(losses[0].device) for loss in losses]).sum()


# torch's own number for a pixel without a label.
_IGNORED = -100

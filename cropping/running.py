"""Running a network's forward without its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from precrop.cropping.copying import copy_structure
from precrop.cropping.forwards import forward_of


def skeleton(model: nn.Module) -> nn.Module:
    """A copy of a model's structure around the model's own parameters and buffers.

    The caller replaces them in the copy before it does anything with it.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            memo.update((id(tensor), tensor) for tensor in store.values() if tensor is not None)
    plan = getattr(model, "crop_plan", None)
    if plan is not None:
        memo[id(plan)] = plan
    return copy_structure(model, memo)


def run_forward(model: nn.Module, image: torch.Tensor, mode: AbstractContextManager[Any], *more: Any) -> Any:
    """Run the forward under the mode; the frame that `calling_origin` stops at."""
    with mode:
        return forward_of(model)(image, *more)


def output_tensors(output: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """The tensors in what a forward returns: containers, and the attributes of an output object."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth and isinstance(leaf, Mapping):
            yield from output_tensors(list(leaf.values()), depth - 1)
        elif depth and hasattr(leaf, "__dict__") and not isinstance(leaf, (type, nn.Module)):
            yield from output_tensors(list(vars(leaf).values()), depth - 1)

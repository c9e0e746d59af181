"""Running a network's forward without its data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from precrop.cropping.copying import copy_structure
from precrop.cropping.forwards import forward_of

Replacement = Callable[[str, torch.Tensor], torch.Tensor]


def skeleton(model: nn.Module, replacement: Replacement = lambda name, tensor: tensor) -> nn.Module:
    """A copy of a model's structure around other tensors, by default around the model's own.

    ``replacement(name, tensor)`` gives what stands for each parameter and buffer; one that several modules share is
    asked for once. Who leaves the model's own in place replaces them in the copy before anything is done with it.
    """
    memo: dict[int, Any] = {}
    for path, module in model.named_modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None and id(tensor) not in memo:
                    memo[id(tensor)] = replacement(f"{path}.{name}" if path else name, tensor)
    plan = getattr(model, "crop_plan", None)
    if plan is not None:
        memo[id(plan)] = plan
    return copy_structure(model, memo)


def image_dtype(model: nn.Module) -> torch.dtype:
    """The type of the images that a model takes: that of its first floating-point parameter."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Neither gradients nor random states are touched inside, and scripted functions are not specialised.

    A scripted function that profiles its first run would take the sizes for numbers.
    """
    unprofiled = torch.jit.optimized_execution(False)  # type: ignore[attr-defined]
    with torch.inference_mode(), torch.random.fork_rng(devices=[]), unprofiled:
        yield


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

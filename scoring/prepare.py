"""A copy of a network made ready for a scorer, and everything around it left as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from precrop.cropping.copying import copy_structure
from precrop.cropping.graph import Layer, WidthGraph
from precrop.errors import ScoreError


def scoring_copy(model: nn.Module, double: bool) -> nn.Module:
    """A deep copy with its own parameters and buffers, none of which requires a gradient.

    ``double`` makes every floating-point tensor float64 (float32 on devices that have no float64); otherwise
    half-precision tensors become float32. Raises `ScoreError` for a network without data (meta device).
    """
    memo: dict[int, Any] = {}
    for path, module in model.named_modules():
        for store in (module._parameters, module._buffers):
            for name, old in store.items():
                if old is None or id(old) in memo:
                    continue
                if old.is_meta:
                    raise ScoreError(
                        f"{f'{path}.' if path else ''}{name} has no data (it is on the meta device), so it cannot be "
                        "scored. Build the network on a real device, or use scorer='synexp', which needs sizes alone."
                    )
                new = _converted(old.detach().clone(), double)
                memo[id(old)] = nn.Parameter(new, requires_grad=False) if isinstance(old, nn.Parameter) else new
    plan = getattr(model, "crop_plan", None)
    if plan is not None:
        memo[id(plan)] = plan
    copied = copy_structure(model, memo)
    for module in copied.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                vars(module)[name] = _converted(value, double)
    return copied


def _converted(tensor: torch.Tensor, double: bool) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    if double and tensor.device.type != "mps":
        return tensor.double()
    return tensor.float() if tensor.element_size() < 4 else tensor


def settle_weights(model: nn.Module) -> None:
    """Make every weight that is computed from others (weight norm, spectral norm) a parameter with its present value.

    What a scorer ranks is the weight that multiplies the activations, and a direction of which all
    entries are cut has no length to be divided by.
    """
    for module in model.modules():
        if parametrize.is_parametrized(module):
            # torch's own removal would change the class, which the original shares.
            parametrized: Any = module._modules.pop("parametrizations")  # a ModuleDict
            values = {name: computed().detach().clone() for name, computed in parametrized.items()}
            module.__class__ = type(module).__bases__[0]
            for name, value in values.items():
                module.register_parameter(name, nn.Parameter(value))
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(module, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(module, hook.name)
    model.requires_grad_(False)


def prunable_weights(model: nn.Module, layers: Sequence[Layer]) -> tuple[dict[str, nn.Parameter], dict[str, str]]:
    """The weights that are scored, by parameter name in the network's order, made to require gradients.

    Also maps those names to the ones in the original, which differ for weights that `settle_weights` made.
    A layer whose kernel is a buffer (a blur) has no weight.
    """
    weights, originals = {}, {}
    for layer in layers:
        name = layer.weight
        if _found(model, name) is None:
            name = f"{layer.name}.weight"
        weight = tensor_of(model, name)
        if isinstance(weight, nn.Parameter):
            weight.requires_grad = True
            weights[name], originals[name] = weight, layer.weight
    return weights, originals


def scored_layers(graph: WidthGraph) -> list[Layer]:
    """One layer for each name of the graph: where a weight is made of several parameters, the largest."""
    present = graph.values(graph.original).__getitem__
    largest: dict[str, Layer] = {}
    for layer in graph.layers:
        other = largest.get(layer.name)
        if other is None or layer.params.evaluate(present) > other.params.evaluate(present):
            largest[layer.name] = layer
    return list(largest.values())


def tensor_of(model: nn.Module, name: str) -> torch.Tensor:
    """The parameter or buffer of this name; raises `ScoreError` where there is none."""
    tensor = _found(model, name)
    if tensor is None:
        raise ScoreError(
            f"{type(model).__name__} has no tensor {name}, which its trace had. Expected the network that was traced."
        )
    return tensor


def _found(model: nn.Module, name: str) -> torch.Tensor | None:
    path, _, leaf = name.rpartition(".")
    try:
        module = model.get_submodule(path)
    except AttributeError:
        return None
    parameter = module._parameters.get(leaf)
    return module._buffers.get(leaf) if parameter is None else parameter


@contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Random states seeded for a block and put back after it; gradients on, autocast off."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", device.type}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)

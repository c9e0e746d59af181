"""Unstructured masks, to test the claim that only the layers' shares matter.

A scorer's mask keeps in each layer the entries with the highest scores, as many as its density says.
Two controls keep every layer's share and nothing else (Frankle et al. 2021, arXiv:2009.08576): the mask
*shuffled* within its layer, and the weights *drawn again* under the same mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from precrop.errors import PrecropError, RecipeError


def from_scores(
    densities: Mapping[str, float], scores: Mapping[str, Tensor] | None, shuffled: bool = False, seed: int = 0
) -> dict[str, Tensor]:
    """A boolean mask for each scored parameter.

    Args:
        densities: layer name to the share of its weights kept, in [0, 1].
        scores: parameter name (``layer.weight``) to a tensor of the weight's shape; higher means keep.
        shuffled: permute each mask by a random order of ``seed``.
        seed: of the permutations, each layer having its own.

    Raises:
        PrecropError: there are no scores, or a layer with scores has no density.
    """
    if not scores:
        raise PrecropError("a mask needs scores of single weights: expected a scorer such as snip or synflow.")
    found = {}
    for name in sorted(scores):
        layer = name.rpartition(".")[0]
        if layer not in densities:
            raise PrecropError(f"{name} has scores and its layer no density; expected one for {layer!r}.")
        found[name] = top(scores[name], densities[layer])
    if shuffled:
        generator = torch.Generator().manual_seed(seed)
        found = {name: _shuffle(mask, generator) for name, mask in found.items()}
    return found


def top(scores: Tensor, share: float) -> Tensor:
    """True for the highest ``share`` of the entries, to the nearest entry; among equal scores the first."""
    kept = round(share * scores.numel())
    mask = torch.zeros(scores.numel(), dtype=torch.bool)
    mask[scores.detach().flatten().cpu().argsort(descending=True, stable=True)[:kept]] = True
    return mask.reshape(scores.shape)


def apply(network: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set to zero what a mask does not keep; a mask of another shape is a `PrecropError`."""
    weights = dict(network.named_parameters())
    with torch.no_grad():
        for name, mask in masks.items():
            if name not in weights or weights[name].shape != mask.shape:
                got = tuple(weights[name].shape) if name in weights else "no such parameter"
                raise PrecropError(f"the mask of {name} is {tuple(mask.shape)}, and the network has {got}.")
            weights[name].mul_(mask)


def load(path: Path, network: nn.Module) -> dict[str, Tensor]:
    """The masks in a file, if they are masks of this network's parameters; raises `RecipeError`."""
    try:
        found = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise RecipeError(f"{path} is torn or no safetensors file ({error}). Train again with --restart.") from error
    shapes = {name: weight.shape for name, weight in network.named_parameters()}
    foreign = [n for n, mask in found.items() if mask.dtype != torch.bool or mask.shape != shapes.get(n)]
    if foreign or not found:
        raise RecipeError(
            f"{path} holds no masks of this network ({', '.join(map(ascii, foreign[:3])) or 'it is empty'}). Train "
            "again with --restart."
        )
    return found


def reinit_seed(seed: int) -> int:
    """The seed of weights drawn again for the masks of ``seed``."""
    return (seed + 2**31) % 2**32


def _shuffle(mask: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(mask.numel(), generator=generator)
    return mask.flatten()[order].reshape(mask.shape)

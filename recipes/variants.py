"""What is trained under a recipe: the original, crops of it, and masked originals, each for a seed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import precrop
from precrop.api import scored_density
from precrop.crop_plan import Budget, CropPlan
from precrop.errors import PrecropError, RecipeError
from precrop.recipes import masks
from precrop.recipes.data import ImageData
from precrop.recipes.schema import Crop, Recipe, Variant
from precrop.scoring import SCORERS, Densities

CHANNELS_BY_DEFAULT = 3


@dataclass(frozen=True)
class Design:
    """One network to be trained: its plan, and for a masked one which entries of its weights are trained.

    ``masks`` is empty for the original and for crops. A masked network's plan is the original's.
    """

    plan: CropPlan
    masks: dict[str, Tensor]

    @property
    def params(self) -> int:
        """Parameters that are trained."""
        cut = sum(int(mask.numel() - mask.sum()) for mask in self.masks.values())
        return self.plan.cropped.params - cut

    @property
    def macs(self) -> int:
        """Multiply-adds for one image; of a masked network, those with a weight that is kept."""
        kept = {name.rpartition(".")[0]: mask.float().mean().item() for name, mask in self.masks.items()}
        cut = sum(row.macs_kept * (1 - kept.get(row.name, 1.0)) for row in self.plan.layers)
        return self.plan.cropped.macs - round(cut)


def original(recipe: Recipe, data: ImageData, seed: int) -> nn.Module:
    """The network as its name says, made for the data's classes and channels; checked on one image."""
    kwargs = dict(recipe.model.kwargs)
    channels = data.shape[0]
    if not re.search(r"\.py:\w+$|\.safetensors$", recipe.model.name):
        kwargs.setdefault("num_classes", data.classes)
        if channels != CHANNELS_BY_DEFAULT:
            kwargs.setdefault("in_chans", channels)
    torch.manual_seed(seed)
    network = precrop.create_model(recipe.model.name, **kwargs)
    was_training = network.training
    try:
        with torch.inference_mode():
            scores = network.eval()(torch.zeros(1, *data.shape))
    except RuntimeError as error:
        raise RecipeError(
            f"model: {recipe.model.name} does not run on an image {data.shape} of {recipe.data.name}: "
            f"{str(error).partition(chr(10))[0]}. Expected a network for this size (see data.image_size)."
        ) from error
    network.train(was_training)
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if shape != (1, data.classes):
        raise RecipeError(
            f"model: {recipe.model.name} gives outputs {shape} for one image; expected (1, {data.classes}), "
            f"a score for each class of {recipe.data.name}. Set model.kwargs.num_classes."
        )
    return network


def design(network: nn.Module, recipe: Recipe, variant: Variant, data: ImageData, seed: int) -> Design:
    """What ``variant`` makes of the original ``network``; the scorer sees images in the seed's order.

    Raises `PrecropError` for a budget that cannot be met and for a scorer that fails.
    """
    if not variant.crop:
        return Design(_whole(network, data), {})
    if recipe.crop is None:
        raise RecipeError("crop: a variant crops, and the recipe has no budget. Add a crop section with a ratio.")
    crop = variant.settings(recipe.crop)
    if variant.weights == "mask":
        share = crop.params or crop.ratio
        if share is None:
            raise PrecropError(
                "a mask needs a budget of parameters: expected crop.ratio or crop.params, got macs alone."
            )
        scored = _scored(network, crop, share, recipe, data, seed, keep_scores=True)
        return Design(_whole(network, data), masks.from_scores(scored, scored.scores, variant.mask == "shuffled", seed))
    budget = Budget(params=crop.params or crop.ratio, macs=crop.macs or crop.ratio)
    by_weights = SCORERS[crop.scorer].weights is not None
    plan = precrop.plan(
        network,
        crop.ratio,
        params=crop.params,
        macs=crop.macs,
        scorer=_scored(network, crop, scored_density(budget), recipe, data, seed) if by_weights else crop.scorer,
        round_to=crop.round_to,
        target=crop.target,
        ignore=tuple(crop.ignore),
        input_shape=data.shape,
        widen=crop.widen,
    )
    return Design(plan, {})


def _whole(network: nn.Module, data: ImageData) -> CropPlan:
    return precrop.plan(network, 1.0, scorer="uniform", input_shape=data.shape)


def _scored(
    network: nn.Module, crop: Crop, share: float, recipe: Recipe, data: ImageData, seed: int, keep_scores: bool = False
) -> Densities:
    images = scored_images(data, recipe, seed) if SCORERS[crop.scorer].needs_data else None
    return precrop.score(
        network, crop.scorer, share, data=images, input_shape=data.shape, seed=seed, keep_scores=keep_scores
    )


def build(network: nn.Module, variant: Variant, made: Design, recipe: Recipe, data: ImageData, seed: int) -> nn.Module:
    """The network to train, with fresh weights of ``seed``; masked weights are zero."""
    if variant.reinit:
        network = original(recipe, data, masks.reinit_seed(seed))
    torch.manual_seed(seed)
    built = precrop.apply(network, made.plan)
    masks.apply(built, made.masks)
    return built


def scored_images(data: ImageData, recipe: Recipe, seed: int) -> DataLoader[Any]:
    """The training images as they are, in batches of the recipe's size and an order of the seed's own."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(data.train_images, generator=generator).tolist()
    size = min(recipe.train.batch_size, len(order))
    batches = [order[start : start + size] for start in range(0, len(order) - size + 1, size)]
    return DataLoader(data.plain if data.plain is not None else data.train, batch_sampler=batches)

"""scikit-learn's handwritten digits: 1,797 images of 8×8 in the package itself, nothing to download."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from precrop.errors import RecipeError
from precrop.export.extras import require
from precrop.recipes.data.images import ImageData, check_classes

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

CLASSES = 10
# The split is the same for every recipe's seed, so that accuracies compare.
SPLIT_SEED = 0


def load(settings: Data) -> ImageData:
    """Digits as (1, S, S) with S the ``image_size`` (8 without one), split class by class.

    Pixels are scaled by the training split's mean and standard deviation; a larger
    size is interpolated bilinearly. Raises `MissingExtraError` without scikit-learn.
    """
    check_classes(settings, CLASSES, "digits")
    if settings.augment != type(settings.augment)() or settings.mean or settings.std or settings.download:
        raise RecipeError(
            "data: got augment, mean, std or download for digits, which are normalized by themselves and come as they "
            "are. Leave it out."
        )
    require("train", "sklearn")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels).long()
    if settings.image_size is not None:
        size = (settings.image_size, settings.image_size)
        images = functional.interpolate(images, size, mode="bilinear", align_corners=False)
    train, val = train_test_split(
        torch.arange(len(targets)).numpy(),
        test_size=settings.val_share,
        stratify=labels,
        random_state=SPLIT_SEED,
    )
    images = (images - images[train].mean()) / images[train].std()
    side = images.shape[-1]
    return ImageData(
        train=TensorDataset(images[train], targets[train]),
        val=TensorDataset(images[val], targets[val]),
        train_images=len(train),
        val_images=len(val),
        classes=CLASSES,
        shape=(1, side, side),
    )

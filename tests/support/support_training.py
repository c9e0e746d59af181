"""A training so small that it takes a moment: two classes of images, a recipe for them."""

import torch
from torch.utils.data import Dataset, TensorDataset

from precrop.recipes import Recipe
from precrop.recipes.data import ImageData

IMAGES, BATCH = 64, 16


class Noisy(Dataset):
    """Each image with noise of its own, as an augmentation would add it."""

    def __init__(self, images):
        self.images = images

    def __getitem__(self, index):
        image, target = self.images[index]
        return image + 0.1 * torch.randn(image.shape), target


def two_classes(varied=False, images=IMAGES):
    """Two classes told apart by their brightness."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(images) % 2
    pixels = torch.randn(images, 1, 6, 6, generator=generator) + targets.view(-1, 1, 1, 1) * 2.0
    split = TensorDataset(pixels, targets)
    return ImageData(Noisy(split) if varied else split, split, images, images, classes=2, shape=(1, 6, 6))


def recipe(**train):
    settings = {"epochs": 3, "batch_size": BATCH, "lr": 0.05, **train}
    execution = settings.pop("execution", {})
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": {"name": "tiny"},
            "data": {"name": "digits"},
            "train": settings,
            "execution": {"accelerator": "cpu", **execution},
        }
    )

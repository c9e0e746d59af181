"""What every data set of the runner gives: two splits of labelled images, and what they look like."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True)
class ImageData:
    """Labelled images: items are (image (C, H, W) float32 and normalized, class index () int64)."""

    train: Dataset[tuple[Tensor, ...]]
    val: Dataset[tuple[Tensor, ...]]
    train_images: int
    val_images: int
    classes: int
    shape: tuple[int, int, int]

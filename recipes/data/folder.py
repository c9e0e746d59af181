"""A folder of images in the layout of ImageNet: ``root/<split>/<class>/<image>``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precrop.errors import RecipeError
from precrop.recipes.data.images import ImageData, Transformed, check_classes, folder_of, picture
from precrop.recipes.data.transforms import transforms

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

# The statistics of ImageNet, which timm's networks expect too.
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SIDE = 224


def load(settings: Data) -> ImageData:
    """Images as (3, S, S), S the ``image_size`` or 224; a class for each folder, in the order of their names."""
    from torchvision.datasets import ImageFolder

    holds = f"{settings.train_split}/<class>/<image> and {settings.val_split}/<class>/<image>"
    root = folder_of(settings, holds)
    splits = []
    for split in (settings.train_split, settings.val_split):
        if not (root / split).is_dir():
            found = ", ".join(sorted(path.name for path in root.iterdir() if path.is_dir())) or "no folder"
            raise RecipeError(
                f"data.root: {root} has no folder {split!r}; it has: {found}. Expected {holds} "
                "(other names: data.train_split, data.val_split)."
            )
        try:
            splits.append(ImageFolder(str(root / split), loader=picture))
        except FileNotFoundError as error:
            raise RecipeError(f"data.root: {root / split}: {error}. Expected {holds}.") from error
    train, val = splits
    if train.classes != val.classes:
        odd = sorted(set(train.classes) ^ set(val.classes))
        raise RecipeError(
            f"data.root: {root / settings.train_split} has {len(train.classes)} classes and "
            f"{root / settings.val_split} has {len(val.classes)}; expected the same folders in both "
            f"(in one only: {', '.join(odd[:5])}{', …' if len(odd) > 5 else ''})."
        )
    classes = check_classes(settings, len(train.classes), str(root))
    side = settings.image_size or SIDE
    varied, plain = transforms(settings, (3, side, side), MEAN, STD)
    return ImageData(
        train=Transformed(train, varied),
        val=Transformed(val, plain),
        train_images=len(train),
        val_images=len(val),
        classes=classes,
        shape=(3, side, side),
        plain=Transformed(train, plain),
    )

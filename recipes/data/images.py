"""What every data set of the runner gives: two splits of labelled images, and what they look like."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torch import Tensor
from torch.utils.data import Dataset

from precrop.errors import RecipeError

if TYPE_CHECKING:
    from precrop.recipes.sections import Data


# What a picture may be, whatever its name ends in. Pillow tells the format by the content and would have others, too:
# for PostScript it runs Ghostscript on what the file says.
FORMATS = ("JPEG", "PNG", "WEBP", "PPM", "BMP", "TIFF", "GIF")


def picture(file: str | Path | BinaryIO) -> Any:
    """The picture in a file, RGB; raises `RecipeError` for what is none of `FORMATS`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file, formats=FORMATS) as opened:
            return opened.convert("RGB")
    except UnidentifiedImageError as error:
        what = file if isinstance(file, str | Path) else "an image"
        raise RecipeError(f"{what} is no picture of the formats {', '.join(FORMATS)}. Is it damaged?") from error


@dataclass(frozen=True)
class ImageData:
    """Labelled images: items are (image (C, H, W) float32 and normalized, class index () int64).

    ``plain`` is the training split without augmentation, where that differs from ``train``.
    """

    train: Dataset[tuple[Tensor, ...]]
    val: Dataset[tuple[Tensor, ...]]
    train_images: int
    val_images: int
    classes: int
    shape: tuple[int, int, int]
    plain: Dataset[tuple[Tensor, ...]] | None = None


class Transformed(Dataset[Any]):
    """A source of (picture, class) pairs, each picture turned into a tensor when it is asked for."""

    def __init__(self, source: Any, transform: Callable[[Any], Tensor]) -> None:
        """``source`` has a length and takes an index."""
        self.source = source
        self.transform = transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture, target = self.source[index]
        return self.transform(picture), int(target)


class Arrays:
    """Images in memory, (N, H, W) or (N, H, W, 3) uint8, as a source of pictures."""

    def __init__(self, images: Any, targets: Any) -> None:
        """Both as NumPy arrays of one length."""
        self.images = images
        self.targets = targets

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return Image.fromarray(self.images[index]), int(self.targets[index])


def folder_of(settings: Data, holds: str) -> Path:
    """``data.root`` as an existing folder; ``holds`` says what is expected in it."""
    if settings.root is None:
        raise RecipeError(f"data.root: missing; expected the folder that holds {holds}.")
    root = Path(settings.root).expanduser()
    if not root.is_dir():
        what = "is a file" if root.is_file() else "does not exist"
        raise RecipeError(f"data.root: {root} {what}; expected the folder that holds {holds}.")
    return root


def check_classes(settings: Data, found: int, where: str) -> int:
    """The number of classes found, which the recipe's own number must be."""
    if settings.classes is not None and settings.classes != found:
        raise RecipeError(
            f"data.classes: the recipe says {settings.classes} and {where} has {found}. Correct the one or the other."
        )
    return found


def check_targets(targets: Iterable[int], classes: int, where: str) -> None:
    """Refuse a class index that no output of the network stands for."""
    foreign = sorted({int(target) for target in targets if not 0 <= int(target) < classes})
    if foreign:
        raise RecipeError(
            f"{where} has the class {foreign[0]}; expected 0 to {classes - 1}, {classes} classes. "
            "Was data.classes given for another data set?"
        )

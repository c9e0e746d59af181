"""Fashion-MNIST from IDX files, gzipped or not, wherever a system package or a download put them.

An IDX file is: two zero bytes, the type (8: unsigned byte), the number of dimensions,
each dimension as a big-endian 32-bit number, the values (Y. LeCun's MNIST page).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precrop.errors import RecipeError
from precrop.recipes.data.images import Arrays, ImageData, Transformed, check_classes, check_targets, folder_of
from precrop.recipes.data.transforms import transforms

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

CLASSES = 10
MEAN, STD = [0.2860], [0.3530]
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "val": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
MOST_BYTES = 2**28
HOLDS = "the four IDX files of Fashion-MNIST (train-images-idx3-ubyte.gz and so on)"
ADVICE = "Debian's package dataset-fashion-mnist has them in /usr/share/datasets/fashion-mnist; or set data.download."


def load(settings: Data) -> ImageData:
    """Fashion-MNIST as (1, S, S), S the ``image_size`` or 28: 60,000 training and 10,000 held-out images."""
    check_classes(settings, CLASSES, settings.name)
    root = _downloaded(settings) if settings.download else folder_of(settings, HOLDS)
    train, val = (_split(root, *FILES[split]) for split in ("train", "val"))
    side = settings.image_size or train.images.shape[1]
    varied, plain = transforms(settings, (1, side, side), MEAN, STD)
    return ImageData(
        train=Transformed(train, varied),
        val=Transformed(val, plain),
        train_images=len(train),
        val_images=len(val),
        classes=CLASSES,
        shape=(1, side, side),
        plain=Transformed(train, plain),
    )


def read_idx(path: Path) -> Any:
    """The array in an IDX file of unsigned bytes; raises `RecipeError` for one that is damaged or something else."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecipeError(f"{path} cannot be read: {error}. Expected a whole IDX file; fetch it again.") from error
    if len(content) > MOST_BYTES:
        raise RecipeError(f"{path} holds more than {MOST_BYTES:,} bytes, many times Fashion-MNIST. Fetch it again.")
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise RecipeError(f"{path} is not an IDX file of bytes: it begins with {content[:4]!r}. Expected 00 00 08.")
    head = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:head]) if len(content) >= head else ()
    expected = head + math.prod(shape)
    if len(content) != expected:
        raise RecipeError(
            f"{path} is torn: {len(content):,} bytes, and its head {shape} asks for {expected:,}. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _split(root: Path, images: str, labels: str) -> Arrays:
    pixels, targets = read_idx(_find(root, images)), read_idx(_find(root, labels))
    if pixels.ndim != 3 or targets.shape != pixels.shape[:1]:
        raise RecipeError(
            f"data.root: {root} holds images {pixels.shape} and labels {targets.shape}; expected (N, H, W) and (N,)."
        )
    check_targets(np.unique(targets), CLASSES, f"{root}/{labels}")
    return Arrays(pixels, targets)


def _find(root: Path, name: str) -> Path:
    for folder in (root, root / "FashionMNIST" / "raw"):  # where torchvision unpacks them
        for path in (folder / f"{name}.gz", folder / name):
            if path.is_file():
                return path
    raise RecipeError(f"data.root: {root} has no {name} (.gz); expected {HOLDS}. {ADVICE}")


def _downloaded(settings: Data) -> Path:
    """The folder with the files whose checksums are torchvision's; its own class would load what lies beside them."""
    from torchvision.datasets import FashionMNIST
    from torchvision.datasets.utils import check_integrity, download_url

    root = Path(settings.root or "data").expanduser()
    folder = root / "FashionMNIST" / "raw"
    try:
        for name, md5 in FashionMNIST.resources:
            if not check_integrity(folder / name, md5):
                download_url(f"{FashionMNIST.mirrors[0]}{name}", folder, name, md5)
    except (OSError, RuntimeError) as error:
        raise RecipeError(f"data.download: cannot fetch Fashion-MNIST to {root}: {error}. {ADVICE}") from error
    return root

"""WebDataset shards on a disk: tar files in which ``<key>.jpg`` and ``<key>.cls`` are one labelled image.

The tar files' heads are read once, and nothing is unpacked, so that any image can be fetched by its number. A shard is
thus as good as a folder: the order of the images follows from the seed alone, whatever the
number of workers and processes, and a training that was killed goes on at the image where it was.
"""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from precrop.errors import RecipeError
from precrop.recipes.data.folder import MEAN, SIDE, STD
from precrop.recipes.data.images import ImageData, Transformed, check_classes, check_targets, folder_of, picture
from precrop.recipes.data.transforms import transforms

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

IMAGES = ("jpg", "jpeg", "png", "webp", "ppm")
LABEL = "cls"
DIGITS = 7  # the most that a label has: it is not read further
HOLDS = "shards such as train-000000.tar and val-000000.tar, with <key>.jpg and <key>.cls in them"


class Shards:
    """Labelled images of tar files by number; the pictures' places are kept, not the pictures."""

    def __init__(self, paths: list[Path]) -> None:
        """Read the heads of ``paths``, in this order."""
        self.paths = paths
        self.places: list[tuple[int, int, int]] = []  # of each image: shard, offset, size in bytes
        self.targets: list[int] = []
        self._open: dict[int, BinaryIO] = {}
        for number, path in enumerate(paths):
            self._index(number, path)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        shard, offset, size = self.places[index]
        if shard not in self._open:
            self._open[shard] = self.paths[shard].open("rb")
        self._open[shard].seek(offset)
        return picture(io.BytesIO(self._open[shard].read(size))), self.targets[index]

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay in their own process."""
        return {**vars(self), "_open": {}}

    def _index(self, number: int, path: Path) -> None:
        pictures: dict[str, tuple[int, int, int]] = {}
        labels: dict[str, int] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for member in tar:
                    key, _, kind = member.name.partition(".")
                    if not member.isfile() or not kind:
                        continue
                    if kind.lower() in IMAGES:
                        pictures[key] = (number, member.offset_data, member.size)
                    elif kind == LABEL:
                        content = tar.extractfile(member)
                        if content is None:
                            raise ValueError(f"{member.name} is no file")
                        labels[key] = _label(content)
        except (OSError, tarfile.TarError, ValueError) as error:
            raise RecipeError(f"{path} is not a shard: {error}. Expected an uncompressed tar of {HOLDS}.") from error
        for key in sorted(pictures.keys() ^ labels.keys()):
            raise RecipeError(f"{path}: {key} has no {'label' if key in pictures else 'image'}; expected {HOLDS}.")
        self.places += pictures.values()
        self.targets += [labels[key] for key in pictures]


def _label(content: IO[bytes]) -> int:
    text = content.read(DIGITS + 2).strip()
    if len(text) > DIGITS:
        raise ValueError(f"a label of more than {DIGITS} digits")
    return int(text)


def load(settings: Data) -> ImageData:
    """Images as (3, S, S), S the ``image_size`` or 224; a split is the tar files whose names begin with its name."""
    root = folder_of(settings, HOLDS)
    splits = {}
    for split in (settings.train_split, settings.val_split):
        paths = sorted(
            path for path in root.glob("*.tar") if re.match(rf"{re.escape(split)}\b|{re.escape(split)}_", path.name)
        )
        if not paths:
            found = ", ".join(sorted(path.name for path in root.glob("*.tar"))[:4]) or "no tar file"
            raise RecipeError(f"data.root: {root} has no {split}*.tar; it has: {found}. Expected {HOLDS}.")
        splits[split] = Shards(paths)
    train, val = splits[settings.train_split], splits[settings.val_split]
    classes = check_classes(settings, max(train.targets) + 1, str(root)) if train.targets else 0
    for shards, split in ((train, settings.train_split), (val, settings.val_split)):
        check_targets(shards.targets, classes, f"{root}/{split}*.tar")
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

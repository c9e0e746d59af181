"""Data sets by timm's names: ``hfds/NAME`` of Hugging Face, ``wds/NAME`` of WebDataset shards with an ``_info.json``.

timm finds the images; they are then read by number, so that their order follows from the seed alone and a training
that was killed goes on at the image where it was.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from precrop.errors import RecipeError
from precrop.export.extras import require
from precrop.recipes.data.folder import MEAN, SIDE, STD
from precrop.recipes.data.images import ImageData, Transformed, check_classes, check_targets, folder_of, picture
from precrop.recipes.data.shards import Shards
from precrop.recipes.data.transforms import transforms

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

LIBRARIES = {"hfds": ("hfds", "datasets"), "wds": ("wds", "webdataset")}


def load(settings: Data) -> ImageData:
    """Images as (3, S, S), S the ``image_size`` or 224, of timm's reader for the name's prefix."""
    kind = settings.name.partition("/")[0]
    require(*LIBRARIES[kind])
    train, val = (
        {"hfds": _pictures, "wds": _shards}[kind](settings, s) for s in (settings.train_split, settings.val_split)
    )
    found = train.classes or settings.classes
    if not found:
        raise RecipeError(f"data.classes: missing; {settings.name} does not say how many classes it has.")
    classes = check_classes(settings, found, settings.name)
    side = settings.image_size or SIDE
    varied, plain = transforms(settings, (3, side, side), MEAN, STD)
    return ImageData(
        train=Transformed(train.source, varied),
        val=Transformed(val.source, plain),
        train_images=len(train.source),
        val_images=len(val.source),
        classes=classes,
        shape=(3, side, side),
        plain=Transformed(train.source, plain),
    )


class _Split(NamedTuple):
    """Pictures by number, and how many classes they say they have (0: they do not say)."""

    source: Any
    classes: int


def _pictures(settings: Data, split: str) -> _Split:
    with _offline(not settings.download):
        reader = _dataset(settings, split).reader
    return _Split(Pictures(reader, _folders(settings)), len(reader.class_to_idx or ()))


class Pictures:
    """The pictures of a reader of timm's by number: in the table itself, or in files that it names in ``folders``."""

    def __init__(self, reader: Any, folders: list[Path]) -> None:
        """Of timm's reader of Hugging Face's data sets."""
        self.table, self.image, self.label = reader.dataset, reader.image_key, reader.label_key
        self.folders = [folder.expanduser().resolve() for folder in folders]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        row = self.table[index]
        return picture(self._file(row[self.image])), int(row[self.label])

    def _file(self, cell: dict[str, Any]) -> Path | BinaryIO:
        """The bytes of a picture, or where they are: not anywhere on the disk, but where the data set is."""
        if cell.get("bytes"):
            return io.BytesIO(cell["bytes"])
        path = Path(str(cell.get("path")))
        if not any(path.resolve().is_relative_to(folder) for folder in self.folders):
            raise RecipeError(
                f"the data set names the file {str(path)!a} as an image, outside the folders that it is kept in "
                f"({', '.join(map(str, self.folders))}). It is not opened."
            )
        return path


def _folders(settings: Data) -> list[Path]:
    """Where a Hugging Face data set may have files: the folder that the recipe names, ``data.root``, their cache."""
    from datasets import config  # type: ignore[import-not-found, unused-ignore]

    named = Path(settings.name.partition("/")[2])
    found = [named] if named.is_dir() else []
    found += [Path(settings.root)] if settings.root is not None else []
    return [*found, *(Path(getattr(config, key)) for key in ("HF_CACHE_HOME", "HF_DATASETS_CACHE"))]


def _shards(settings: Data, split: str) -> _Split:
    root = folder_of(settings, "the shards and their _info.json")
    names = _dataset(settings, split).reader.split_info.filenames
    found = Shards([root / inside(name, root) for name in names])
    classes = settings.classes or max(found.targets) + 1
    check_targets(found.targets, classes, f"{settings.name} {split}")
    return _Split(found, 0 if settings.classes else classes)


def inside(name: Any, root: Path) -> str:
    """A file's name as an ``_info.json`` gives it, if it stays in the folder; raises `RecipeError`."""
    parts = PurePath(name).parts if isinstance(name, str) else ("..",)
    if not parts or ".." in parts or PurePath(name).is_absolute() or "\0" in name:
        raise RecipeError(
            f"{root}: its _info.json names the shard {name!a}, expected the name of a tar file in that folder. It is "
            "not opened."
        )
    return str(name)


def _dataset(settings: Data, split: str) -> Any:
    from timm.data import create_dataset  # type: ignore[attr-defined]

    try:
        return create_dataset(settings.name, root=settings.root, split=split, download=settings.download)
    except Exception as error:  # of the library that reads it, which has many kinds
        reason = str(error).partition("\n")[0] or type(error).__name__
        advice = "" if settings.download else " Nothing is fetched unless data.download says so."
        raise RecipeError(
            f"data: cannot read the split {split!r} of {settings.name} (root {settings.root}): {reason}.{advice}"
        ) from error


@contextmanager
def _offline(offline: bool) -> Iterator[None]:
    """Keep Hugging Face's libraries to what is on the disk."""
    import datasets  # type: ignore[import-not-found, unused-ignore]

    before = datasets.config.HF_HUB_OFFLINE, os.environ.get("HF_HUB_OFFLINE")
    if offline:
        datasets.config.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before[0]
        if before[1] is None:
            os.environ.pop("HF_HUB_OFFLINE", None)
        else:
            os.environ["HF_HUB_OFFLINE"] = before[1]

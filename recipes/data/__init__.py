"""Data sets by name: one file and one row each. A name that ends in ``/`` stands for all that begin with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from precrop.errors import RecipeError
from precrop.recipes.data import cifar, digits, folder, idx, readers, shards
from precrop.recipes.data.images import ImageData as ImageData

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

DATASETS: dict[str, Callable[[Data], ImageData]] = {
    "digits": digits.load,
    "fashion_mnist": idx.load,
    "cifar10": cifar.load,
    "cifar100": cifar.load,
    "folder": folder.load,
    "webdataset": shards.load,
    "hfds/": readers.load,
    "wds/": readers.load,
}


def find_dataset(name: str) -> Callable[[Data], ImageData] | None:
    """The loader of a data set's name; none for an unknown one."""
    prefix, slash, rest = name.partition("/")
    return DATASETS.get(prefix + slash) if rest or not slash else None


def load_data(settings: Data) -> ImageData:
    """The data set that a recipe's ``data`` section describes.

    Raises `RecipeError` where its folder or files are missing or are not what they should be, or its classes are
    not as many as the recipe says; `MissingExtraError` for a library that is not installed.
    """
    loader = find_dataset(settings.name)
    if loader is None:
        raise RecipeError(f"unknown data set {settings.name!r}. Expected one of {', '.join(DATASETS)}.")
    return loader(settings)

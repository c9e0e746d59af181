"""Data sets by name: one file and one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from precrop.recipes.data import digits
from precrop.recipes.data.images import ImageData as ImageData

if TYPE_CHECKING:
    from precrop.recipes.schema import Data

DATASETS: dict[str, Callable[[Data], ImageData]] = {
    "digits": digits.load,
}

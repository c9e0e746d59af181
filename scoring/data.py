"""The batches that a scorer sees: checked, repeated as often as they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset

from precrop.errors import ScoreError

_EXPECTED = "Expected a DataLoader, or another iterable of batches (images (N, C, H, W), labels (N,))."


class Batches:
    """An endless stream of a loader's batches, which begins anew when the loader ends.

    ``data`` is any iterable of (images, labels). Raises `ScoreError` for what is none, for an empty one, and
    for images of a shape other than the network was traced at.
    """

    def __init__(self, data: Any) -> None:
        if isinstance(data, (str, bytes, Mapping, torch.Tensor, Dataset)) or not isinstance(data, Iterable):
            hint = " Wrap a data set in a DataLoader." if isinstance(data, Dataset) else ""
            raise ScoreError(f"data is a {type(data).__name__}. {_EXPECTED}{hint}")
        if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(x, torch.Tensor) for x in data):
            data = [tuple(data)]  # one batch
        self.data = data
        self.shape: tuple[int, ...] | None = None
        # What can be read only once is kept, for when a scorer asks for more than it held.
        self.seen: list[Any] | None = [] if isinstance(data, Iterator) else None
        self.iterator: Iterator[Any] = _begun(data)
        self.first: Any = self._read()
        self.begun = False

    def _read(self) -> Any:
        batch = next(self.iterator, None)
        if batch is None:
            self.iterator = iter(self.data if self.seen is None else list(self.seen))
            batch = next(self.iterator, None)
        elif self.seen is not None and self.iterator is self.data:
            self.seen.append(batch)
        if batch is None:
            raise ScoreError(f"data is empty: the {type(self.data).__name__} gave no batch. {_EXPECTED}")
        return batch

    def image_shape(self) -> tuple[int, ...]:
        """The shape of the first batch's images, without the batch."""
        return tuple(_parts(self.first)[0].shape[1:])

    def next(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
        """The next batch: images on ``device`` and of ``dtype``, labels on ``device``."""
        raw, self.begun = (self._read() if self.begun else self.first), True
        images, labels = _parts(raw)
        if self.shape is not None and tuple(images.shape[1:]) != self.shape:
            raise ScoreError(
                f"a batch of images has the shape {tuple(images.shape)}; expected (N, "
                f"{', '.join(map(str, self.shape))}), the input shape that the network is traced at. Pass input_shape= "
                "to fit the data, or resize the images."
            )
        images = images.to(device, dtype) if images.is_floating_point() else images.to(device)
        return images, labels.to(device) if isinstance(labels, torch.Tensor) else labels


def _begun(data: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(data)
    except TypeError as error:  # an array or tensor without axes
        raise ScoreError(
            f"data is a {type(data).__name__} that cannot be gone through ({error}). {_EXPECTED}"
        ) from error


def _parts(batch: Any) -> tuple[torch.Tensor, Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not isinstance(batch[0], torch.Tensor):
        held = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise ScoreError(f"a batch is a {type(batch).__name__}{held}. {_EXPECTED}")
    images, labels = batch[0], batch[1]
    if images.dim() < 2 or not len(images):
        raise ScoreError(f"a batch of images has the shape {tuple(images.shape)}. {_EXPECTED}")
    if isinstance(labels, torch.Tensor) and (not labels.dim() or len(labels) != len(images)):
        raise ScoreError(
            f"a batch has images of shape {tuple(images.shape)} and labels of shape {tuple(labels.shape)}; expected "
            "as many labels as images. Single images need a DataLoader that makes batches of them."
        )
    return images, labels

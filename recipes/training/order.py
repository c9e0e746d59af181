"""Which images each step takes, and with what random numbers: a pure function of seed, epoch, step and image.

Nothing random is carried from one step to the next, so there is no random state to save: a
training that goes on at step k computes what it would have computed there, with any number of
workers, processes and parts of a batch.

A step's batch of B images is cut into Q = processes x parts shards of B / Q. Where that is even,
shard q takes the q-th piece from the front and its mirror image from the back. timm's mixing pairs
each image with its mirror image in the batch, so that the pairs are the same for every Q.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

PADDING = -1  # the class of an image that only fills a batch


def derived_seed(*parts: int | str) -> int:
    """A seed below 2**32 that depends on all parts."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


def seed_all(seed: int) -> None:
    """Seed the random numbers of Python, NumPy and torch on all devices."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class StepOrder(Sampler[list[tuple[int, int]]]):
    """The batches of one process over all epochs, in ``parts`` for each step; items are (epoch, image).

    Its length is that of the whole training; it begins at step ``start``.
    """

    def __init__(
        self,
        images: int,
        batch: int,
        epochs: int,
        seed: int,
        *,
        rank: int = 0,
        processes: int = 1,
        parts: int = 1,
    ) -> None:
        """``batch`` is the whole batch of a step; images that do not fill one are left out of their epoch."""
        self.images, self.batch, self.epochs, self.seed = images, batch, epochs, seed
        self.rank, self.processes, self.parts = rank, processes, parts
        self.steps = images // batch
        self.start = 0

    def __len__(self) -> int:
        return self.epochs * self.steps * self.parts

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in range(self.start, self.epochs * self.steps):
            epoch, place = divmod(step, self.steps)
            if place == 0 or step == self.start:
                generator = torch.Generator().manual_seed(derived_seed(self.seed, "order", epoch))
                order = torch.randperm(self.images, generator=generator)
            whole = order[place * self.batch : (place + 1) * self.batch]
            for part in range(self.parts):
                taken = shard(whole, part * self.processes + self.rank, self.processes * self.parts)
                yield [(epoch, image) for image in taken.tolist()]


def shard(batch: Tensor, number: int, of: int) -> Tensor:
    """Piece ``number`` of a batch cut into ``of`` equal pieces, closed under mirroring where it can be."""
    size = len(batch) // of
    if size % 2:
        return batch[number * size : (number + 1) * size]
    half = size // 2
    front = batch[number * half : (number + 1) * half]
    end = len(batch) - number * half
    return torch.cat([front, batch[end - half : end]])


class Seeded(Dataset[Any]):
    """Images by (epoch, image), each varied by random numbers of its own."""

    def __init__(self, images: Dataset[Any], seed: int) -> None:
        """``images`` takes an index."""
        self.source = images
        self.seed = seed

    def __getitem__(self, item: tuple[int, int]) -> Any:
        epoch, image = item
        seed = derived_seed(self.seed, "image", epoch, image)
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        return self.source[image]


class Padded(Dataset[Any]):
    """Held-out images of one process: every n-th, filled up so that all processes have as many.

    A filling image has the class `PADDING`.
    """

    def __init__(self, images: Dataset[Any], count: int, rank: int, processes: int) -> None:
        """``count`` images in all."""
        self.source = images
        self.count, self.rank, self.processes = count, rank, processes

    def __len__(self) -> int:
        return -(-self.count // self.processes)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = index * self.processes + self.rank
        picture, target = self.source[min(image, self.count - 1)]
        return picture, int(target) if image < self.count else PADDING

"""From a picture to a normalized tensor: timm's and torchvision's transforms as the recipe asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from precrop.errors import RecipeError

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

Transform = Callable[[Any], Tensor]


def transforms(
    settings: Data, shape: tuple[int, int, int], mean: Sequence[float], std: Sequence[float]
) -> tuple[Transform, Transform]:
    """The training and the inference transform of pictures to tensors of ``shape`` (C, H, W).

    Images of less than 96 pixels are resized as a whole; larger ones are cut out of the middle in
    inference, ``crop_pct`` of the side. ``mean`` and ``std`` have one entry for each channel.
    """
    mean, std = settings.mean or mean, settings.std or std
    for key, values in (("mean", mean), ("std", std)):
        if len(values) != shape[0]:
            raise RecipeError(f"data.{key}: got {len(values)} entries; expected {shape[0]}, one for each channel.")
    augment = settings.augment
    if augment.auto is not None and shape[0] != 3:
        raise RecipeError(f"data.augment.auto: expected images of 3 channels, and {settings.name} has {shape[0]}.")
    plain = _small(shape, mean, std) if shape[-1] < 96 else _large(settings, shape, mean, std)
    if augment.crop == "resized":
        return _resized(settings, shape, mean, std), plain
    varied = augment.crop == "pad" or augment.flip or augment.auto or augment.color_jitter or augment.erase
    return (_padded(settings, shape, mean, std) if varied else plain), plain


def _small(shape: tuple[int, int, int], mean: Sequence[float], std: Sequence[float]) -> Transform:
    from torchvision.transforms import Compose

    return Compose([*_sized(shape), *_tensor(mean, std)])  # type: ignore[no-any-return]


def _large(settings: Data, shape: tuple[int, int, int], mean: Sequence[float], std: Sequence[float]) -> Transform:
    from timm.data import create_transform  # type: ignore[attr-defined]

    made: Transform = create_transform(
        shape, crop_pct=settings.crop_pct, interpolation="bicubic", mean=tuple(mean), std=tuple(std)
    )
    return made


def _resized(settings: Data, shape: tuple[int, int, int], mean: Sequence[float], std: Sequence[float]) -> Transform:
    from timm.data import create_transform  # type: ignore[attr-defined]

    augment = settings.augment
    made: Transform = create_transform(
        shape,
        is_training=True,
        scale=(augment.scale, 1.0),
        hflip=0.5 * augment.flip,
        color_jitter=augment.color_jitter,
        auto_augment=augment.auto,
        interpolation="random",
        mean=tuple(mean),
        std=tuple(std),
        re_prob=augment.erase,
        re_mode="pixel",
    )
    return made


def _padded(settings: Data, shape: tuple[int, int, int], mean: Sequence[float], std: Sequence[float]) -> Transform:
    """The usual variation of images of 32 pixels: shifted within a border of zeros, mirrored."""
    from timm.data import auto_augment
    from timm.data.random_erasing import RandomErasing
    from torchvision.transforms import ColorJitter, Compose, RandomCrop, RandomHorizontalFlip

    augment = settings.augment
    steps: list[Any] = _sized(shape)
    if augment.crop == "pad":
        steps.append(RandomCrop(shape[1:], padding=augment.padding))
    if augment.flip:
        steps.append(RandomHorizontalFlip())
    if augment.auto is not None:
        policy = {"rand": auto_augment.rand_augment_transform, "augmix": auto_augment.augment_and_mix_transform}
        make = policy.get(augment.auto.partition("-")[0], auto_augment.auto_augment_transform)
        fill = tuple(min(255, round(255 * value)) for value in mean)
        steps.append(make(augment.auto, {"translate_const": int(shape[-1] * 0.45), "img_mean": fill}))
    if augment.color_jitter:
        steps.append(ColorJitter(*[augment.color_jitter] * 3))
    steps += _tensor(mean, std)
    if augment.erase:
        steps.append(RandomErasing(augment.erase, mode="pixel", device="cpu"))  # type: ignore[no-untyped-call]
    return Compose(steps)  # type: ignore[no-any-return]


def _sized(shape: tuple[int, int, int]) -> list[Any]:
    from torchvision.transforms import Resize

    return [Resize(shape[1:], antialias=True)]


def _tensor(mean: Sequence[float], std: Sequence[float]) -> list[Any]:
    from torchvision.transforms import Normalize, ToTensor

    return [ToTensor(), Normalize(tuple(mean), tuple(std))]

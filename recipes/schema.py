"""The typed schema of a recipe.

A recipe says which network is trained on what, how, and in which variants.
Types are strict: nothing is converted but a whole number to a fraction. Every
section refuses keys that it does not know.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from precrop.recipes.data import DATASETS


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _kept_share(share: float) -> float:
    if not 0 < share <= 1:
        raise ValueError("expected the share kept, above 0 and at most 1 (for 4x compression write 0.25)")
    return share


def _file_name(name: str) -> str:
    allowed = name.replace("-", "").replace("_", "").replace(".", "")
    if not (allowed.isascii() and allowed.isalnum() and name[0].isalnum()):
        raise ValueError("expected a folder's name: letters, digits, '-', '_', '.', a letter or digit first")
    return name


def _dataset(name: str) -> str:
    if name not in DATASETS:
        raise ValueError(f"expected one of {', '.join(map(repr, DATASETS))}")
    return name


def _optimizer(name: str) -> str:
    from timm.optim import list_optimizers  # type: ignore[attr-defined]

    known = list_optimizers()
    if name.lower() not in known:
        from difflib import get_close_matches

        near = get_close_matches(name.lower(), known, 3) or ["sgd", "adamw"]
        raise ValueError(f"expected an optimizer of timm, such as {', '.join(map(repr, near))}")
    return name


KeptShare = Annotated[float, AfterValidator(_kept_share)]
FileName = Annotated[str, AfterValidator(_file_name)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Model(_Section):
    """The network by MODEL name; ``kwargs`` go to its constructor.

    The number of classes and input channels follow the data set where ``kwargs``
    does not give them, except for a factory of the user's own (``file.py:factory``)
    and for a checkpoint.
    """

    name: str
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Crop(_Section):
    """The budget, as shares kept: ``ratio`` caps parameters and MACs alike, or either by its name."""

    ratio: KeptShare | None = None
    params: KeptShare | None = None
    macs: KeptShare | None = None
    scorer: str = "synexp"
    round_to: Positive | None = None
    widen: bool = False
    ignore: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_budget(self) -> Crop:
        named = self.params is not None or self.macs is not None
        if self.ratio is not None and named:
            raise ValueError("expected 'ratio' (which caps parameters and MACs) or 'params'/'macs', not both")
        if self.ratio is None and not named:
            raise ValueError("expected a budget: 'ratio', or 'params' and/or 'macs'")
        return self


class Data(_Section):
    """The images; ``image_size`` interpolates them (none: as they are)."""

    name: Annotated[str, AfterValidator(_dataset)]
    image_size: Annotated[int, Field(ge=4)] | None = None
    val_share: Annotated[float, Field(gt=0, lt=1)] = 0.2


class Train(_Section):
    """What is computed: optimizer (timm's names), schedule, mixing. Warm-up is counted in epochs."""

    epochs: Positive
    batch_size: Annotated[int, Field(ge=2)] = 64
    optimizer: Annotated[str, AfterValidator(_optimizer)] = "sgd"
    lr: Annotated[float, Field(gt=0)] = 0.1
    momentum: Share = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    schedule: Literal["cosine", "poly", "constant"] = "cosine"
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    label_smoothing: Share = 0.0
    mixup: Annotated[float, Field(ge=0)] = 0.0
    cutmix: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("mixup", "cutmix")
    @classmethod
    def _mixed_in_pairs(cls, strength: float, info: ValidationInfo) -> float:
        if strength > 0 and info.data.get("batch_size", 2) % 2:
            raise ValueError(f"expected an even batch_size beside it, not {info.data['batch_size']}")
        return strength

    @field_validator("warmup_epochs")
    @classmethod
    def _shorter_than_training(cls, warmup: int, info: ValidationInfo) -> int:
        if warmup >= info.data.get("epochs", warmup + 1):
            raise ValueError(f"expected fewer than the {info.data['epochs']} epochs of the training")
        return warmup


class Execution(_Section):
    """How it runs, never what it computes. ``threads`` are torch's on the CPU (none: its own choice)."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal[32, "bf16"] = 32
    channels_last: bool = False
    threads: Positive | None = None
    workers: Annotated[int, Field(ge=0)] = 0


class LatencyRun(_Section):
    """How latency is taken: images per run, threads, rounds not counted, rounds counted."""

    batch: Positive = 1
    threads: Positive = 1
    warmup: Annotated[int, Field(ge=0)] = 20
    repeats: Positive = 200


class Export(_Section):
    """The formats written for each variant, and the latency measurement (none: not measured)."""

    to: Annotated[list[Literal["onnx"]], Field(min_length=1)] = ["onnx"]
    latency: LatencyRun | None = Field(default_factory=LatencyRun)


class Variant(_Section):
    """One network trained under the recipe: the original (``crop: false``) or a crop of it.

    ``scorer`` stands in for the ``crop`` section's.
    """

    crop: bool = True
    scorer: str | None = None

    @field_validator("scorer")
    @classmethod
    def _only_of_a_crop(cls, scorer: str | None, info: ValidationInfo) -> str | None:
        if scorer is not None and info.data.get("crop") is False:
            raise ValueError("expected no scorer beside 'crop: false'")
        return scorer


class Recipe(_Section):
    """A whole recipe. Without ``variants``, the cropped network alone (or the original, without ``crop``)."""

    name: FileName
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: Model
    crop: Crop | None = None
    data: Data
    train: Train
    execution: Execution = Field(default_factory=Execution)
    export: Export | None = None
    variants: dict[FileName, Variant] = Field(default_factory=dict, validate_default=True)

    @field_validator("variants")
    @classmethod
    def _at_least_one(cls, variants: dict[str, Variant], info: ValidationInfo) -> dict[str, Variant]:
        if "crop" not in info.data:  # faulty itself, and reported as such
            return variants
        uncropped = info.data["crop"] is None
        cropping = [name for name, variant in variants.items() if variant.crop]
        if uncropped and cropping:
            raise ValueError(f"expected a 'crop' section with a budget for {', '.join(cropping)}")
        return variants or ({"dense": Variant(crop=False)} if uncropped else {"cropped": Variant()})

    def digest(self) -> str:
        """Eight hexadecimal digits that change with any setting of the resolved recipe."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

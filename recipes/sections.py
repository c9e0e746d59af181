"""The sections of a recipe that say what is trained on, how, and where: ``data``, ``train``, ``execution``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from precrop.recipes.data import DATASETS, find_dataset


class Section(BaseModel):
    """A part of a recipe: strict types, no unknown keys, no change after it is read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _dataset(name: str) -> str:
    if find_dataset(name) is None:
        raise ValueError(f"expected one of {', '.join(map(repr, DATASETS))}")
    return name


def _optimizer(name: str) -> str:
    from timm.optim import list_optimizers  # type: ignore[attr-defined]

    known = list_optimizers()
    if name.lower() not in known:
        near = get_close_matches(name.lower(), known, 3) or ["sgd", "adamw"]
        raise ValueError(f"expected an optimizer of timm, such as {', '.join(map(repr, near))}")
    return name


Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Statistics = Annotated[list[float], Field(min_length=1)]


class Augment(Section):
    """How training images are varied; nothing by default.

    ``crop`` is ``pad`` (zeros around the image, then a random window of its size), ``resized``
    (a random part at a random aspect, timm's for ImageNet, with ``scale`` its least share of the area)
    or ``none``. ``auto`` is a policy in timm's words, such as ``rand-m9-mstd0.5``.
    """

    crop: Literal["none", "pad", "resized"] = "none"
    padding: Positive = 4
    scale: Annotated[float, Field(gt=0, le=1)] = 0.08
    flip: bool = False
    auto: str | None = None
    color_jitter: Annotated[float, Field(ge=0)] = 0.0
    erase: Probability = 0.0


class Data(Section):
    """The images: ``name`` with ``root``, the folder or file that holds them.

    Nothing is fetched unless ``download`` says so. ``image_size`` resizes (none: as they are),
    ``classes`` is checked against what is found, ``mean`` and ``std`` stand in for the data set's own.
    """

    name: Annotated[str, AfterValidator(_dataset)]
    root: str | None = None
    download: bool = False
    train_split: str = "train"
    val_split: str = "val"
    image_size: Annotated[int, Field(ge=4)] | None = None
    val_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    classes: Annotated[int, Field(ge=2)] | None = None
    crop_pct: Annotated[float, Field(gt=0, le=1)] = 0.875
    mean: Statistics | None = None
    std: Statistics | None = None
    augment: Augment = Field(default_factory=Augment)


class Train(Section):
    """What is computed: optimizer (timm's names), schedule, mixing. Times are counted in epochs.

    ``batch_size`` is the whole batch of a step, over all devices and accumulated parts. With ``ema``
    (a decay such as 0.9999) the average of the weights is what is validated and kept.
    """

    epochs: Positive
    batch_size: Annotated[int, Field(ge=2)] = 64
    optimizer: Annotated[str, AfterValidator(_optimizer)] = "sgd"
    optimizer_kwargs: dict[str, Any] = Field(default_factory=dict)
    lr: Annotated[float, Field(gt=0)] = 0.1
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    momentum: Share = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    schedule: Literal["cosine", "poly", "multistep", "constant"] = "cosine"
    milestones: list[Positive] = Field(default_factory=list, validate_default=True)
    decay_rate: Annotated[float, Field(gt=0, lt=1)] = 0.1
    warmup_epochs: Count = 0
    label_smoothing: Share = 0.0
    mixup: Annotated[float, Field(ge=0)] = 0.0
    cutmix: Annotated[float, Field(ge=0)] = 0.0
    clip_grad: Annotated[float, Field(gt=0)] | None = None
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None

    @field_validator("mixup", "cutmix")
    @classmethod
    def _mixed_in_pairs(cls, strength: float, info: ValidationInfo) -> float:
        if strength > 0 and info.data.get("batch_size", 2) % 2:
            raise ValueError(f"expected an even batch_size beside it, not {info.data['batch_size']}")
        return strength

    @field_validator("milestones")
    @classmethod
    def _for_multistep(cls, milestones: list[int], info: ValidationInfo) -> list[int]:
        stepwise = info.data.get("schedule") == "multistep"
        if stepwise != bool(milestones) and "schedule" in info.data:
            raise ValueError("expected the epochs at which the rate drops, beside 'schedule: multistep' and only there")
        return milestones

    @field_validator("warmup_epochs")
    @classmethod
    def _shorter_than_training(cls, warmup: int, info: ValidationInfo) -> int:
        if warmup >= info.data.get("epochs", warmup + 1):
            raise ValueError(f"expected fewer than the {info.data['epochs']} epochs of the training")
        return warmup


class Execution(Section):
    """How it runs, never what it computes: this section may change between a run and its resumption.

    ``accumulate`` computes a batch in that many parts, one after the other. ``activation_checkpointing``
    computes blocks again in the backward pass instead of keeping their activations; ``activation_memory``
    gives the compiler the share that it may keep. ``devices`` and ``nodes`` are found where they are not
    given (all GPUs of the machine, or what ``torchrun`` started). ``threads`` are torch's on the CPU (none:
    its own choice). ``checkpoint_every`` counts steps (none: an epoch's).
    """

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal[32, "bf16", "fp16"] = 32
    channels_last: bool = False
    compile: bool = False
    activation_checkpointing: bool = False
    activation_memory: Annotated[float, Field(gt=0, lt=1)] | None = None
    devices: Positive | None = None
    nodes: Positive | None = None
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    sync_batchnorm: bool = False
    accumulate: Positive = 1
    threads: Positive | None = None
    workers: Count = 0
    deterministic: bool = True
    checkpoint_every: Positive | None = None

    @field_validator("activation_memory")
    @classmethod
    def _of_the_compiler(cls, share: float | None, info: ValidationInfo) -> float | None:
        if share is not None and not info.data.get("compile", True):
            raise ValueError("expected 'compile: true' beside it, which does the recomputing")
        if share is not None and info.data.get("activation_checkpointing"):
            raise ValueError("expected either it or 'activation_checkpointing', not both")
        return share

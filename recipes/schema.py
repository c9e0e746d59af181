"""The typed schema of a recipe.

A recipe says which network is trained on what, how, and in which variants.
Types are strict: nothing is converted but a whole number to a fraction. Every
section refuses keys that it does not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from precrop.cropping.targets import TARGETS
from precrop.export.backends import BACKENDS
from precrop.recipes.sections import Count as Count
from precrop.recipes.sections import Data as Data
from precrop.recipes.sections import Execution as Execution
from precrop.recipes.sections import Positive, Section
from precrop.recipes.sections import Train as Train
from precrop.scoring import SCORERS


def _kept_share(share: float) -> float:
    if not 0 < share <= 1:
        raise ValueError("expected the share kept, above 0 and at most 1 (for 4x compression write 0.25)")
    return share


def _file_name(name: str) -> str:
    allowed = name.replace("-", "").replace("_", "").replace(".", "")
    if not (allowed.isascii() and allowed.isalnum() and name[0].isalnum()):
        raise ValueError("expected a folder's name: letters, digits, '-', '_', '.', a letter or digit first")
    return name


def _one_of(rows: Mapping[str, Any]) -> AfterValidator:
    def checked(name: str) -> str:
        if name not in rows:
            near = get_close_matches(name, rows, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"expected one of {', '.join(map(repr, rows))}{hint}")
        return name

    return AfterValidator(checked)


def _backend(name: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"expected one of {', '.join(map(repr, BACKENDS))}")
    return name


KeptShare = Annotated[float, AfterValidator(_kept_share)]
Scorer = Annotated[str, _one_of(SCORERS)]
Target = Annotated[str, _one_of(TARGETS)]
FileName = Annotated[str, AfterValidator(_file_name)]


class Model(Section):
    """The network by MODEL name; ``kwargs`` go to its constructor.

    The number of classes and input channels follow the data set where ``kwargs``
    does not give them, except for a factory of the user's own (``file.py:factory``)
    and for a checkpoint.
    """

    name: str
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Crop(Section):
    """The budget, as shares kept: ``ratio`` caps parameters and MACs alike, or either by its name."""

    ratio: KeptShare | None = None
    params: KeptShare | None = None
    macs: KeptShare | None = None
    scorer: Scorer = "synexp"
    round_to: Positive | None = None
    target: Target | None = None
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


class LatencyRun(Section):
    """How latency is taken: in which engine, images per run, threads, rounds not counted, rounds counted."""

    backend: Annotated[str, AfterValidator(_backend)] = "onnxruntime"
    batch: Positive = 1
    threads: Positive = 1
    warmup: Count = 20
    repeats: Positive = 200


class Export(Section):
    """The formats written for each variant, and the latency measurement (none: not measured).

    ``precision`` is what the files compute in; int8 finds its ranges on training images. A TensorRT engine is built
    for the sizes of ``batch``; the other formats take any.
    """

    to: Annotated[list[Literal["onnx", "openvino", "tensorrt"]], Field(min_length=1)] = Field(default=["onnx"])
    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    batch: Annotated[list[Positive], Field(min_length=1)] = Field(default=[1, 8, 32])
    latency: LatencyRun | None = Field(default_factory=LatencyRun, validate_default=True)

    @field_validator("to")
    @classmethod
    def _each_once(cls, to: list[str]) -> list[str]:
        if len(set(to)) < len(to):
            raise ValueError("expected each format once")
        return to

    @field_validator("latency")
    @classmethod
    def _in_a_precision_that_it_runs(cls, latency: LatencyRun | None, info: ValidationInfo) -> LatencyRun | None:
        precision = info.data.get("precision")
        if latency is not None and precision is not None and precision not in BACKENDS[latency.backend].runs:
            able = ", ".join(repr(name) for name, row in BACKENDS.items() if precision in row.runs)
            raise ValueError(
                f"expected a backend that runs {precision} ({able}), or none at all (null); {latency.backend} does not"
            )
        return latency


class Variant(Section):
    """One network trained under the recipe: the original (``crop: false``), a crop of it, or its mask.

    ``scorer``, the budget, ``round_to``, ``target`` and ``widen`` stand in for the ``crop`` section's.
    ``weights: mask`` trains the original with the scorer's unstructured mask instead of a crop;
    ``mask: shuffled`` permutes the mask within each layer, ``reinit`` draws the weights again,
    neither of which may matter if only the layers' shares do.
    """

    crop: bool = True
    scorer: Scorer | None = None
    ratio: KeptShare | None = None
    params: KeptShare | None = None
    macs: KeptShare | None = None
    round_to: Positive | None = None
    target: Target | None = None
    widen: bool | None = None
    weights: Literal["crop", "mask"] = "crop"
    mask: Literal["kept", "shuffled"] = "kept"
    reinit: bool = False

    @field_validator("scorer", "ratio", "params", "macs", "round_to", "target", "widen")
    @classmethod
    def _only_of_a_crop(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("crop") is False:
            raise ValueError(f"expected no {info.field_name} beside 'crop: false'")
        return value

    @field_validator("macs")
    @classmethod
    def _one_budget(cls, macs: float | None, info: ValidationInfo) -> float | None:
        if info.data.get("ratio") is not None and (macs is not None or info.data.get("params") is not None):
            raise ValueError("expected 'ratio' (which caps parameters and MACs) or 'params'/'macs', not both")
        return macs

    @field_validator("weights")
    @classmethod
    def _mask_of_a_scorer(cls, weights: str, info: ValidationInfo) -> str:
        if weights == "mask" and info.data.get("crop") is False:
            raise ValueError("expected no mask beside 'crop: false'")
        return weights

    @field_validator("mask", "reinit")
    @classmethod
    def _only_of_a_mask(cls, value: Any, info: ValidationInfo) -> Any:
        if value not in ("kept", False) and info.data.get("weights") == "crop":
            raise ValueError("expected 'weights: mask' beside it")
        return value

    def settings(self, crop: Crop) -> Crop:
        """The ``crop`` section with what this variant says in its place."""
        own = self.model_dump(
            include={"scorer", "ratio", "params", "macs", "round_to", "target", "widen"}, exclude_none=True
        )
        if own.keys() & {"ratio", "params", "macs"}:
            own = {"ratio": None, "params": None, "macs": None, **own}
        return crop.model_copy(update=own)


# What no result depends on: how and where it runs, how often, and what is made of the trained networks.
NOT_COMPUTED: dict[str, Any] = {"execution": True, "export": True, "seeds": True, "data": {"root", "download"}}


class Recipe(Section):
    """A whole recipe. Without ``variants``, the cropped network alone (or the original, without ``crop``).

    ``seeds`` is the number of trainings of each variant, from ``seed`` on.
    """

    name: FileName
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    seeds: Positive = 1
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
        """Eight hexadecimal digits that change with whatever changes the trained networks.

        ``execution`` and where the data lies are left out, so that a run moved to another machine is
        found again; so are ``export`` and ``seeds``, which add to a run. A network's own Python file or
        checkpoint counts by its content.
        """
        content = self.model_dump(mode="json", exclude=NOT_COMPUTED)
        file = Path(self.model.name if self.model.name.endswith(".safetensors") else self.model.name.rpartition(":")[0])
        if file.suffix in (".py", ".safetensors") and file.is_file():
            content["model"]["content"] = hashlib.sha256(file.read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]

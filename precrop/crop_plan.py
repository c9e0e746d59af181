"""The crop plan: a frozen record of which width every layer keeps, and why.

A plan is plain JSON, readable and diffable. Applied to a fresh original (or
loaded beside a checkpoint) it rebuilds the cropped network exactly.

Types are strict and every number has its bounds, so that what a file says is either a plan or
refused field by field. Whether it is true of a network is for `precrop.apply` to check.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from precrop.errors import PlanError
from precrop.files import checked_path, parsed_json, write_atomically

PLAN_VERSION = 1
SHOWN = 8  # faults named in an error before "and N more"

# More channels than memory holds, and costs that still fit 64 bits: what is larger is a mistake or an attack.
_MOST_CHANNELS = 2**31 - 1
_MOST_COST = 2**63 - 1
_MOST_AXES = 8
_LONGEST_TEXT = 4096
_LONGEST_KEY = 80
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _printable(text: str) -> str:
    """Text that a terminal can be given: a control character could move the cursor, or hide what follows."""
    if _CONTROL.search(text):
        raise ValueError("expected text without control characters")
    return text


Text = Annotated[str, Field(max_length=_LONGEST_TEXT), AfterValidator(_printable)]
Channels = Annotated[int, Field(ge=1, le=_MOST_CHANNELS)]
Cost = Annotated[int, Field(ge=0, le=_MOST_COST)]
Share = Annotated[float, Field(gt=0, le=1)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSpec(_Record):
    """How to build the original network again: a MODEL name and its keyword arguments."""

    name: Text
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Size(_Record):
    """What a network costs: parameters, and per image multiply-adds and activation elements.

    ``activations`` counts the output elements of convolutions and linear layers.
    """

    params: Cost
    macs: Cost
    activations: Cost


def _of_something(size: Size) -> Size:
    if size.params < 1:
        raise ValueError("expected a network of at least one parameter")
    return size


class Budget(_Record):
    """The caps asked for, as shares kept of the original (None: not capped)."""

    params: Share | None = None
    macs: Share | None = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> Budget:
        if self.params is None and self.macs is None:
            raise ValueError("expected a cap: params, macs or both, each in (0, 1]")
        return self


class Width(_Record):
    """One free width: its size in the original, the size kept, and the layers it ties together."""

    original: Channels
    kept: Channels
    layers: tuple[Text, ...]


class FixedWidth(_Record):
    """A width that cannot change, and the reason: a source line, the network's output, the user."""

    layer: Text
    size: Channels
    reason: Text


class LayerRow(_Record):
    """One layer's line of the table; ``density`` is the kept share of its weights.

    ``croppable`` says whether a free width touches the layer on at least one side.
    """

    name: Text
    in_original: Channels
    in_kept: Channels
    out_original: Channels
    out_kept: Channels
    params_original: Annotated[Cost, Field(ge=1)]
    params_kept: Annotated[Cost, Field(ge=1)]
    macs_original: Cost
    macs_kept: Cost
    croppable: bool

    @property
    def density(self) -> float:
        """Kept share of the layer's weights, in (0, 1] (above 1 when widened)."""
        return self.params_kept / self.params_original


class CropPlan(_Record):
    """Widths, the budget asked and met, and everything needed to crop the same way again."""

    version: Annotated[int, Field(ge=1, le=PLAN_VERSION)] = PLAN_VERSION
    model: ModelSpec | None = None
    input_shape: Annotated[tuple[Channels, ...], Field(min_length=1, max_length=_MOST_AXES)]
    scorer: Text
    round_to: Channels | None = None
    target: Text | None = None
    widen: bool = False
    ignore: tuple[Text, ...] = ()
    budget: Budget
    original: Annotated[Size, AfterValidator(_of_something)]
    cropped: Annotated[Size, AfterValidator(_of_something)]
    widths: dict[Text, Width]
    fixed: tuple[FixedWidth, ...] = ()
    layers: tuple[LayerRow, ...] = ()
    notes: tuple[Text, ...] = ()
    parent: CropPlan | None = Field(default=None, description="the crop that this one was made on top of")

    @property
    def params_ratio(self) -> float:
        """Parameters kept, as a share of the original's."""
        return _share(self.cropped.params, self.original.params)

    @property
    def macs_ratio(self) -> float:
        """Multiply-adds kept, as a share of the original's."""
        return _share(self.cropped.macs, self.original.macs)

    @property
    def fixed_share(self) -> float:
        """Share of the original's parameters in layers that no free width touches."""
        return _share(sum(row.params_original for row in self.layers if not row.croppable), self.original.params)

    def to_json(self) -> str:
        """The plan as indented JSON."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "plan") -> CropPlan:
        """Read a plan from JSON; raises `PlanError` naming ``source`` and every fault."""
        version = _version(text)
        if version > PLAN_VERSION:
            # Said before the fields are checked: a newer plan's fields would look like mistakes.
            raise PlanError(
                f"{source} has plan version {version}; this precrop reads up to {PLAN_VERSION}. Upgrade precrop."
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise PlanError(
                f"{source} is not a precrop plan ({_faults_of(error)}). Expected the JSON that CropPlan.save writes."
            ) from error

    def check(self) -> None:
        """Check every field again, since ``model_copy`` and ``model_construct`` check none; raises `PlanError`."""
        try:
            type(self).model_validate(self.model_dump(warnings=False))
        except ValidationError as error:
            raise PlanError(
                f"the plan has values that no plan can have ({_faults_of(error)}). Expected one that precrop.plan made."
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; an existing file is replaced only once the new one is whole."""
        write_atomically(path, self.to_json().encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> CropPlan:
        """Read a plan that `save` wrote; raises `PlanError`."""
        try:
            text = checked_path(path).read_bytes()
        except OSError as error:
            raise PlanError(f"cannot read the plan {path}: {error.strerror}.") from error
        return cls.from_json(text, source=str(path))

    def __str__(self) -> str:
        from precrop.tables import plan_text

        return plan_text(self)


def listed(faults: list[str]) -> str:
    """Faults in one line, the first ones of many."""
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    return "; ".join(faults[:SHOWN]) + more


def _share(kept: int, original: int) -> float:
    """``kept / original``; all of nothing is all."""
    return kept / original if original else 1.0


def _faults_of(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return listed([f"{'.'.join(map(_shown, fault['loc'])) or 'top level'}: {fault['msg']}" for fault in found])


def _shown(key: str | int) -> str:
    """A key of a file, safe to print."""
    text = str(key)[:_LONGEST_KEY]
    return text if text.isprintable() else ascii(text)


def _version(text: str | bytes) -> int:
    try:
        version = parsed_json(text)["version"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return PLAN_VERSION
    return version if isinstance(version, int) else PLAN_VERSION

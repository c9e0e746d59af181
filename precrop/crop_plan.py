"""The crop plan: a frozen record of which width every layer keeps, and why.

A plan is plain JSON, readable and diffable. Applied to a fresh original (or
loaded beside a checkpoint) it rebuilds the cropped network exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precrop.errors import PlanError
from precrop.files import checked_path, write_atomically

PLAN_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSpec(_Record):
    """How to build the original network again: a MODEL name and its keyword arguments."""

    name: str
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Size(_Record):
    """What a network costs: parameters, and per image multiply-adds and activation elements.

    ``activations`` counts the output elements of convolutions and linear layers.
    """

    params: int
    macs: int
    activations: int


class Budget(_Record):
    """The caps asked for, as shares kept of the original (None: not capped)."""

    params: float | None = None
    macs: float | None = None


class Width(_Record):
    """One free width: its size in the original, the size kept, and the layers it ties together."""

    original: int
    kept: int
    layers: tuple[str, ...]


class FixedWidth(_Record):
    """A width that cannot change, and the reason: a source line, the network's output, the user."""

    layer: str
    size: int
    reason: str


class LayerRow(_Record):
    """One layer's line of the table; ``density`` is the kept share of its weights.

    ``croppable`` says whether a free width touches the layer on at least one side.
    """

    name: str
    in_original: int
    in_kept: int
    out_original: int
    out_kept: int
    params_original: int
    params_kept: int
    macs_original: int
    macs_kept: int
    croppable: bool

    @property
    def density(self) -> float:
        """Kept share of the layer's weights, in (0, 1] (above 1 when widened)."""
        return self.params_kept / self.params_original


class CropPlan(_Record):
    """Widths, the budget asked and met, and everything needed to crop the same way again."""

    version: int = PLAN_VERSION
    model: ModelSpec | None = None
    input_shape: tuple[int, ...]
    scorer: str
    round_to: int | None = None
    target: str | None = None
    widen: bool = False
    ignore: tuple[str, ...] = ()
    budget: Budget
    original: Size
    cropped: Size
    widths: dict[str, Width]
    fixed: tuple[FixedWidth, ...] = ()
    layers: tuple[LayerRow, ...] = ()
    notes: tuple[str, ...] = ()
    parent: CropPlan | None = Field(default=None, description="the crop that this one was made on top of")

    @property
    def params_ratio(self) -> float:
        """Parameters kept, as a share of the original's."""
        return self.cropped.params / self.original.params

    @property
    def macs_ratio(self) -> float:
        """Multiply-adds kept, as a share of the original's."""
        return self.cropped.macs / self.original.macs

    @property
    def fixed_share(self) -> float:
        """Share of the original's parameters in layers that no free width touches."""
        return sum(row.params_original for row in self.layers if not row.croppable) / self.original.params

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
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'top level'}: {fault['msg']}" for fault in error.errors()
            )
            raise PlanError(
                f"{source} is not a precrop plan ({faults}). Expected the JSON that CropPlan.save writes."
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


def _version(text: str | bytes) -> int:
    try:
        version = json.loads(text)["version"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return PLAN_VERSION
    return version if isinstance(version, int) else PLAN_VERSION

"""What a run measured: one row for each variant, as a table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

from precrop.recipes.schema import Recipe

REPORTED_PACKAGES = ("precrop", "torch", "timm", "lightning", "onnx", "onnxruntime")


@dataclass(frozen=True)
class VariantResult:
    """One trained variant.

    ``macs`` are multiply-adds for one image, ``accuracy`` in [0, 1] on the held-out
    images; what was not exported or not timed is None.
    """

    name: str
    cropped: bool
    params: int
    macs: int
    accuracy: float
    train_s: float
    latency_ms: float | None = None
    latency_p99_ms: float | None = None
    onnx_max_abs_error: float | None = None
    onnx_size_bytes: int | None = None


@dataclass(frozen=True)
class _Column:
    key: str
    title: str
    show: Callable[[Any], str]


# The table's columns; each also appears as a ratio to the dense variant.
COLUMNS = (
    _Column("params", "params", "{:,}".format),
    _Column("macs", "MACs", "{:,}".format),
    _Column("accuracy", "accuracy", "{:.2%}".format),
    _Column("train_s", "train s", "{:.1f}".format),
    _Column("latency_ms", "latency ms", "{:.3f}".format),
)


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, its resolved recipe, and a row for each variant in the recipe's order."""

    folder: Path
    recipe: Recipe
    variants: tuple[VariantResult, ...]

    @property
    def dense(self) -> VariantResult | None:
        """The uncropped variant that the others are compared with (none: the recipe has none)."""
        return next((variant for variant in self.variants if not variant.cropped), None)

    def ratios(self, variant: VariantResult) -> dict[str, float]:
        """Each column's value divided by dense's; empty without a dense variant."""
        if self.dense is None:
            return {}
        pairs = ((column.key, getattr(variant, column.key), getattr(self.dense, column.key)) for column in COLUMNS)
        return {key: ours / dense for key, ours, dense in pairs if ours is not None and dense}

    def table(self) -> Table:
        """The run as one table: a line of values for each variant, under it the ratios to dense."""
        table = Table(title=self.recipe.name, caption=self._caption(), caption_justify="left")
        table.add_column("variant")
        for column in COLUMNS:
            table.add_column(column.title, justify="right")
        for variant in self.variants:
            values = ((column, getattr(variant, column.key)) for column in COLUMNS)
            table.add_row(variant.name, *("–" if value is None else column.show(value) for column, value in values))
            ratios = self.ratios(variant)
            if ratios and variant is not self.dense:
                shown = (f"{ratios[column.key]:.3f}×" if column.key in ratios else "–" for column in COLUMNS)
                table.add_row("  ÷ dense", *shown, style="dim", end_section=True)
            else:
                table.add_section()
        return table

    def _caption(self) -> str:
        export = self.recipe.export
        if export is None or export.latency is None:
            return "MACs: multiply-adds for one image."
        timed = export.latency
        return (
            f"MACs: multiply-adds for one image. Latency: ONNX Runtime, float32, batch {timed.batch}, "
            f"threads {timed.threads}, median of {timed.repeats} interleaved runs."
        )

    def rows(self) -> list[dict[str, Any]]:
        """A flat record for each variant, its ratios beside its values."""
        rows = []
        for variant in self.variants:
            ratios = self.ratios(variant)
            row: dict[str, Any] = {"variant": variant.name}
            for column in COLUMNS:
                row[column.key] = getattr(variant, column.key)
                row[f"{column.key}_ratio"] = ratios.get(column.key)
            row["latency_p99_ms"] = variant.latency_p99_ms
            row["onnx_max_abs_error"] = variant.onnx_max_abs_error
            row["onnx_size_bytes"] = variant.onnx_size_bytes
            rows.append(row)
        return rows

    def to_json(self) -> str:
        """The rows, with the recipe's name and hash and what they were measured on."""
        record = {
            "recipe": self.recipe.name,
            "hash": self.recipe.digest(),
            "environment": environment(),
            "variants": self.rows(),
        }
        return json.dumps(record, indent=2)

    def to_csv(self) -> str:
        """The rows as CSV with a header; an absent value is an empty field."""
        rows = self.rows()
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def environment() -> dict[str, str]:
    """Versions and machine that the figures depend on."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""What a run measured: one row for each variant over its seeds, as a table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from precrop.errors import RecipeError
from precrop.export.backends import BACKENDS
from precrop.export.front import Exported
from precrop.files import parsed_json, write_atomically
from precrop.recipes.schema import Recipe

REPORTED_PACKAGES = ("precrop", "torch", "timm", "lightning", "onnx", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Training:
    """One finished training of a variant; as ``result.json`` in its folder, which says that it is finished.

    ``history`` has a row for each epoch. ``of`` is what was trained, ``execution`` how, ``environment`` on what.
    """

    of: str
    variant: str
    seed: int
    params: int
    macs: int
    accuracy: float
    train_s: float
    history: tuple[dict[str, float], ...] = ()
    execution: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write ``result.json``."""
        write_atomically(folder / "result.json", json.dumps(asdict(self), indent=2).encode() + b"\n")

    @classmethod
    def load(cls, folder: Path, of: str) -> Training | None:
        """The finished training in a folder; none where it is not finished or is of something else."""
        path = folder / "result.json"
        if not path.is_file():
            return None
        try:
            text = path.read_bytes()
            TypeAdapter(cls).validate_json(text, strict=True)  # what is taken is the record itself: 1 is to stay 1
            record = parsed_json(text)
            found = cls(**{entry.name: record[entry.name] for entry in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecipeError(
                f"{path} is damaged ({_reason(error)}). Delete it to train this variant again."
            ) from error
        return found if found.of == of else None


def _reason(error: Exception) -> str:
    """An error in one line, without what a file says."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(ascii, first['loc'])) or 'top level'}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class VariantResult:
    """One trained variant over its seeds: means, and standard deviations where there are several seeds.

    ``params`` are those trained, ``macs`` multiply-adds for one image (of a masked variant, with a kept weight),
    ``accuracy`` in [0, 1] on the held-out images; what was not exported or not timed is None. Exported and timed
    is the first seed's network.
    """

    name: str
    cropped: bool
    params: int
    macs: int
    accuracy: float
    train_s: float
    accuracy_std: float | None = None
    train_s_std: float | None = None
    latency_ms: float | None = None
    latency_p99_ms: float | None = None
    files: tuple[Exported, ...] = ()
    trainings: tuple[Training, ...] = ()

    @classmethod
    def over(cls, name: str, cropped: bool, trainings: list[Training]) -> VariantResult:
        """The variant ``name`` from its trainings, one for each seed."""
        spread = {}
        if len(trainings) > 1:
            spread = {f"{key}_std": stdev(getattr(t, key) for t in trainings) for key in ("accuracy", "train_s")}
        return cls(
            name=name,
            cropped=cropped,
            params=round(mean(t.params for t in trainings)),
            macs=round(mean(t.macs for t in trainings)),
            accuracy=mean(t.accuracy for t in trainings),
            train_s=mean(t.train_s for t in trainings),
            trainings=tuple(trainings),
            **spread,
        )


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

    def lines(self) -> list[tuple[str, list[str], bool]]:
        """The table's lines: name, cells, and whether it is a line of ratios under a variant's own."""
        lines = []
        for variant in self.variants:
            lines.append((variant.name, [self._cell(variant, column) for column in COLUMNS], False))
            ratios = self.ratios(variant)
            if ratios and variant is not self.dense:
                shown = [f"{ratios[column.key]:.3f}×" if column.key in ratios else "–" for column in COLUMNS]
                lines.append(("÷ dense", shown, True))
        return lines

    @staticmethod
    def _cell(variant: VariantResult, column: _Column) -> str:
        value, spread = getattr(variant, column.key), getattr(variant, f"{column.key}_std", None)
        if value is None:
            return "–"
        return column.show(value) if spread is None else f"{column.show(value)} ± {column.show(spread)}"

    def table(self) -> Table:
        """The run as one table: a line of values for each variant, under it the ratios to dense."""
        table = Table(title=self.recipe.name, caption=self.caption(), caption_justify="left")
        table.add_column("variant")
        for column in COLUMNS:
            table.add_column(column.title, justify="right")
        lines = self.lines()
        for index, (name, cells, ratio) in enumerate(lines):
            last = index + 1 == len(lines) or not lines[index + 1][2]
            table.add_row(f"  {name}" if ratio else name, *cells, style="dim" if ratio else None, end_section=last)
        return table

    def caption(self) -> str:
        """What the table's figures are."""
        parts = ["MACs: multiply-adds for one image."]
        if len(self.variants[0].trainings) > 1:
            seeds = ", ".join(str(training.seed) for training in self.variants[0].trainings)
            parts.append(f"Mean ± standard deviation over the seeds {seeds}.")
        export = self.recipe.export
        if export is not None and export.latency is not None:
            timed = export.latency
            parts.append(
                f"Latency: {BACKENDS[timed.backend].title}, {export.precision}, batch {timed.batch}, "
                f"threads {timed.threads}, "
                f"median of {timed.repeats} interleaved runs."
            )
        return " ".join(parts)

    def rows(self) -> list[dict[str, Any]]:
        """A flat record for each variant, its ratios beside its values."""
        rows = []
        for variant in self.variants:
            ratios = self.ratios(variant)
            row: dict[str, Any] = {"variant": variant.name, "seeds": len(variant.trainings)}
            for column in COLUMNS:
                row[column.key] = getattr(variant, column.key)
                if hasattr(variant, f"{column.key}_std"):
                    row[f"{column.key}_std"] = getattr(variant, f"{column.key}_std")
                row[f"{column.key}_ratio"] = ratios.get(column.key)
            row["latency_p99_ms"] = variant.latency_p99_ms
            for file in variant.files:
                row[f"{file.format}_max_abs_error"] = file.max_abs_error
                row[f"{file.format}_size_bytes"] = file.size_bytes
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

"""What `gpu_check.py` finds: printed as it comes, in a JSON file that is whole after each row, and summed up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from precrop.files import write_atomically

DENSE = "dense"
HEAD = ("what", "precision", "batch", "network", "crop", "params", "MACs", "ms", "images/s", "speed-up (5–95 %)")
HEAD += ("realised", "error")


class OutOfTime(BaseException):
    """The time is over; no `Exception`, so that nobody between takes it for a fault of theirs."""


@dataclass(frozen=True)
class Row:
    """One network, dense or cropped, at one batch size; ratios and speed-up are of the dense one in the same rounds.

    ``what`` is ``train`` or the engine of an inference. ``error`` is the largest difference of the outputs from
    float32 on the CPU as a share of the largest output; in training there is none.
    """

    what: str
    precision: str
    batch: int
    network: str
    crop: str
    params_ratio: float
    macs_ratio: float
    median_ms: float
    images_per_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    realised_share: float
    rounds: int
    error: float | None = None

    def line(self) -> str:
        """A line of the Markdown table whose head is `HEAD`."""
        cells = (
            self.what,
            self.precision,
            str(self.batch),
            self.network,
            self.crop,
            f"{self.params_ratio:.3f}",
            f"{self.macs_ratio:.3f}",
            f"{self.median_ms:.3f}",
            f"{self.images_per_s:,.0f}",
            f"{self.speedup:.2f}× ({self.speedup_low:.2f}–{self.speedup_high:.2f})",
            f"{self.realised_share:.2f}",
            "–" if self.error is None else f"{self.error:.1e}",
        )
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Check:
    """Something that must hold on a GPU, and what was seen."""

    name: str
    passed: bool
    seen: str


@dataclass
class Record:
    """Everything found so far; ``path`` is the JSON file, if there is to be one."""

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    path: Path | None = None
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    clocks: dict[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    def add(self, row: Row) -> None:
        if not self.rows:
            print(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
        self.rows.append(row)
        print(row.line(), flush=True)
        self.save()

    def check(self, found: Check) -> None:
        self.checks.append(found)
        print(f"{'passed' if found.passed else 'FAILED'}: {found.name}: {found.seen}", flush=True)
        self.save()

    def skip(self, what: str, why: str) -> None:
        self.skipped.append(f"{what}: {why}")
        self.save()

    def save(self) -> None:
        if self.path is not None:
            write_atomically(self.path, (json.dumps(self.content(), indent=2) + "\n").encode())

    def content(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "machine": self.machine,
            "settings": self.settings,
            "clocks": self.clocks,
            "seconds": time.monotonic() - self.begun,
            "checks": [asdict(found) for found in self.checks],
            "rows": [asdict(row) for row in self.rows],
            "skipped": self.skipped,
        }

    @property
    def failed(self) -> list[Check]:
        return [found for found in self.checks if not found.passed]

    def summary(self) -> str:
        """Checks, then the realised share by engine, precision, batch and crop, then what is missing."""
        lines = [f"{len(self.checks) - len(self.failed)} of {len(self.checks)} checks passed."]
        lines += [f"- FAILED {found.name}: {found.seen}" for found in self.failed]
        crops = list(dict.fromkeys(row.crop for row in self.rows if row.crop != DENSE))
        groups = dict.fromkeys((row.what, row.precision, row.batch) for row in self.rows)
        if crops:
            lines += [
                "",
                "Realised share, and speed-up: geometric means over the networks measured, their number beside.",
            ]
            lines += ["", f"| what | precision | batch | {' | '.join(crops)} |", f"|{'---|' * (3 + len(crops))}"]
        for group in groups if crops else ():
            cells = [self._cell(group, crop) for crop in crops]
            lines.append(f"| {' | '.join((*map(str, group), *cells))} |")
        if self.skipped:
            lines += ["", f"Skipped ({len(self.skipped)}):", *(f"- {line}" for line in self.skipped)]
        return "\n".join(lines)

    def _cell(self, group: tuple[str, str, int], crop: str) -> str:
        rows = [row for row in self.rows if (row.what, row.precision, row.batch) == group and row.crop == crop]
        if not rows:
            return "–"
        realised, speedup = (
            math.exp(sum(math.log(getattr(row, name)) for row in rows) / len(rows))
            for name in ("realised_share", "speedup")
        )
        return f"{realised:.2f}, {speedup:.2f}× ({len(rows)})"


def describe(record: Record) -> str:
    """GPU, driver, clocks and versions in a line."""
    found = record.machine["gpu"]
    where = record.machine["processor"]
    if found is not None:
        where = f"{found['name']}, driver {found['driver']}, CUDA {found['cuda']}, cuDNN {record.machine['cudnn']}"
        where += f", SM clock {found['clocks.sm']} of {found['clocks.max.sm']}, memory clock {found['clocks.mem']}"
        where += f", power limit {found['power.limit']}"
    listed = ", ".join(f"{name} {version}" for name, version in record.machine["versions"].items())
    return f"{where}; {listed}; images of {record.settings['image']} pixels"

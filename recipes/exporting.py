"""What a recipe makes of its trained networks: files of engines, checked, and their latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from precrop.errors import ExportError
from precrop.export.backends import BACKENDS, Backend, backend_named
from precrop.export.bench import bench
from precrop.export.calibration import calibration_batches
from precrop.export.front import Exported, export
from precrop.recipes.data import ImageData
from precrop.recipes.results import VariantResult
from precrop.recipes.schema import Export, LatencyRun

CALIBRATION_BATCH = 32


def check_export(asked: Export) -> None:
    """Find before the training what would fail after it: an engine that is not installed, a GPU that is not there."""
    backends = [_writing(name) for name in asked.to]
    if asked.latency is not None:
        backends.append(backend_named(asked.latency.backend))
    for backend in backends:
        backend.check()
    if asked.latency is not None and "cpu" not in backends[-1].devices and not torch.cuda.is_available():
        raise ExportError(
            f"export.latency.backend is {asked.latency.backend}, and PyTorch finds no NVIDIA GPU here. Choose another, "
            "or 'latency: null'."
        )


def calibration_for(asked: Export, data: ImageData, seed: int) -> list[Any] | None:
    """Training images without augmentation for int8; none for the other precisions."""
    if asked.precision != "int8":
        return None
    images = data.plain or data.train
    shuffled = DataLoader(
        images, batch_size=CALIBRATION_BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed)
    )
    return calibration_batches(shuffled, tuple(data.shape))


def write_files(
    network: nn.Module, place: Path, asked: Export, data: ImageData, calibration: list[Any] | None
) -> tuple[Exported, ...]:
    """``model.onnx``, ``model.xml`` or ``model.plan`` in the folder ``place``, each with its description beside it."""
    return tuple(
        export(
            network,
            place / f"model{_writing(name).suffixes[0]}",
            to=name,
            precision=asked.precision,
            batch=asked.batch,
            calibration=calibration,
            input_shape=data.shape,
        )
        for name in asked.to
    )


def with_latency(
    variants: list[VariantResult],
    networks: Mapping[str, nn.Module],
    asked: Export,
    timing: LatencyRun,
    data: ImageData,
    calibration: list[Any] | None,
    report: Callable[[str], None] | None = None,
) -> list[VariantResult]:
    """The variants with the latency of their networks, which run in turns."""
    sources: dict[str, nn.Module | Path] = dict(networks)
    if backend_named(timing.backend).format is not None:
        # What was written is what is timed.
        sources |= {v.name: file.path for v in variants for file in v.files if file.format == "onnx"}
    timed = bench(
        sources,
        timing.backend,
        batch=timing.batch,
        threads=timing.threads,
        precision=asked.precision,
        calibration=calibration,
        input_shape=data.shape,
        rounds=timing.repeats,
        warmup=timing.warmup,
        progress=report,
    )
    rows = {row.name: row for row in timed.rows}
    return [replace(v, latency_ms=rows[v.name].median_ms, latency_p99_ms=rows[v.name].p99_ms) for v in variants]


def _writing(name: str) -> Backend:
    return next(row for row in BACKENDS.values() if row.format == name)

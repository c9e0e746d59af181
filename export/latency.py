"""Latency in ONNX Runtime, several networks measured together (`precrop.export.timing` says why)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precrop.errors import PrecropError
from precrop.export.backends.base import RunSettings
from precrop.export.backends.onnxruntime import OnnxRuntimeRunner
from precrop.export.extras import require
from precrop.export.graph import input_of, read_graph
from precrop.export.timing import interleaved_ms


@dataclass(frozen=True)
class Latency:
    """Wall time of one forward pass of ``batch`` images, over ``repeats`` runs."""

    median_ms: float
    p99_ms: float
    batch: int
    threads: int
    repeats: int


def measure_latency(
    paths: Mapping[str, str | Path],
    *,
    batch: int = 1,
    threads: int = 1,
    warmup: int = 20,
    repeats: int = 200,
    seed: int = 0,
) -> dict[str, Latency]:
    """Time ONNX files in ONNX Runtime on the CPU, interleaved.

    Args:
        paths: name to ONNX file, each with one float32 input (N, C, H, W) whose batch is dynamic.
        batch: images per run.
        threads: threads within an operator.
        warmup: rounds that are not counted.
        repeats: rounds that are.
        seed: of the standard normal input.

    Returns:
        One record for each name, in the order given.

    Raises:
        MissingExtraError: onnx or onnxruntime is not installed.
        PrecropError: a count is not positive, or a file cannot be loaded.
    """
    require("onnx", "onnx", "onnxruntime")
    for name, count in (("batch", batch), ("threads", threads), ("repeats", repeats)):
        if count < 1:
            raise PrecropError(f"got {name}={count}; expected at least 1.")
    rng = np.random.default_rng(seed)
    with ExitStack() as stack:
        runners = []
        for path in paths.values():
            shape = input_of(read_graph(path), path)
            images: Any = rng.standard_normal((batch, *shape), dtype=np.float32)
            runners.append(stack.enter_context(OnnxRuntimeRunner(path, images, RunSettings(threads))))
        taken_ms = interleaved_ms([runner.time_ms for runner in runners], warmup, repeats)
    return {
        name: Latency(
            median_ms=float(np.median(column)),
            p99_ms=float(np.percentile(column, 99)),
            batch=batch,
            threads=threads,
            repeats=repeats,
        )
        for name, column in zip(paths, taken_ms.T, strict=True)
    }

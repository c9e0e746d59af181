"""Latency in ONNX Runtime, several networks measured together.

A machine's speed drifts (frequency, temperature, other work), so the networks
are run in turns within one process: every round runs each of them once, and
the one that starts changes from round to round. Medians of such samples can
be divided by one another; medians of separate runs cannot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precrop.errors import PrecropError
from precrop.export.extras import require


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
        MissingExtraError: onnxruntime is not installed.
        PrecropError: a count is not positive, or a file cannot be loaded.
    """
    require("onnx", "onnxruntime")
    for name, count in (("batch", batch), ("threads", threads), ("repeats", repeats)):
        if count < 1:
            raise PrecropError(f"got {name}={count}; expected at least 1.")
    rng = np.random.default_rng(seed)
    sessions = {name: _session(path, threads) for name, path in paths.items()}
    feeds = {}
    for name, session in sessions.items():
        source = session.get_inputs()[0]
        images = rng.standard_normal((batch, *source.shape[1:]), dtype=np.float32)
        feeds[name] = {source.name: images}

    names = list(paths)
    samples_ms: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            sessions[name].run(None, feeds[name])
            elapsed_ms = (time.perf_counter() - start) * 1e3
            if turn >= 0:
                samples_ms[name].append(elapsed_ms)
    return {
        name: Latency(
            median_ms=float(np.median(taken)),
            p99_ms=float(np.percentile(taken, 99)),
            batch=batch,
            threads=threads,
            repeats=repeats,
        )
        for name, taken in samples_ms.items()
    }


def _session(path: str | Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads of one network must not spin while another is being timed.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base of their own
        reason = str(error).strip().partition("\n")[0]
        raise PrecropError(f"ONNX Runtime cannot load {path}: {reason}. Expected a file of export_onnx.") from error

"""How far an engine's outputs are from those of the float32 network in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precrop.errors import ExportError
from precrop.export.extras import require
from precrop.export.graph import read_graph, widened_from_bfloat16
from precrop.export.precision import PRECISIONS

PARITY_BATCHES = (1, 3)
Images = np.ndarray[Any, Any]


def parity_images(input_shape: tuple[int, ...], seed: int, batches: Sequence[int] = PARITY_BATCHES) -> list[Images]:
    """Standard normal images of float32 in the batch sizes given, drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, *input_shape, generator=generator).numpy() for batch in batches]


def parity(
    model: nn.Module,
    path: str | Path,
    input_shape: tuple[int, ...],
    *,
    images: Sequence[Images] | None = None,
    seed: int = 0,
) -> tuple[float, float]:
    """Largest absolute error of an ONNX file in ONNX Runtime against PyTorch, and the largest absolute output.

    ``model`` is in inference mode on the CPU; the input is standard normal, drawn from ``seed``, where no ``images``
    are given. ONNX Runtime has no bfloat16 on a CPU: such a graph runs with its own weights and float32 between.
    """
    require("onnx", "onnxruntime")
    import onnxruntime

    graph = read_graph(path)
    narrow = any(entry.data_type == entry.BFLOAT16 for entry in graph.graph.initializer)
    source = widened_from_bfloat16(graph).SerializeToString() if narrow else os.fspath(path)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return deviation(
        model, lambda batch: session.run(None, {name: batch})[0], images or parity_images(input_shape, seed)
    )


def deviation(model: nn.Module, infer: Callable[[Images], Images], images: Sequence[Images]) -> tuple[float, float]:
    """Largest absolute error of ``infer`` against ``model`` on these images, and the largest absolute output."""
    errors, scales = [], []
    for batch in images:
        with torch.inference_mode():
            expected = model(torch.from_numpy(batch))
        if not isinstance(expected, torch.Tensor):
            raise ExportError(f"{type(model).__name__} returns a {type(expected).__name__}; expected one tensor.")
        got = infer(batch)
        if tuple(got.shape) != tuple(expected.shape):
            raise ExportError(
                f"{type(model).__name__} gives outputs of shape {tuple(expected.shape)} in PyTorch and "
                f"{tuple(got.shape)} after export; expected the same."
            )
        errors.append(np.abs(got - expected.numpy()).max())
        scales.append(expected.abs().max().item())
    return float(np.max(errors)), float(np.max(scales))


def check_parity(
    network: str, what: str, precision: str, error_abs: float, scale: float, tolerance: float | None
) -> None:
    """Raise `ExportError` for an error above the tolerance, or one that is no number."""
    kind = PRECISIONS[precision]
    allowed = kind.tolerance if tolerance is None else tolerance
    if not error_abs <= allowed * max(kind.floor, scale):  # also true of NaN
        raise ExportError(
            f"the {precision} {what} of {network} differs from PyTorch by {error_abs:.3g} on "
            f"{'calibration images' if precision == 'int8' else 'random input'} with outputs up to {scale:.3g}; "
            f"expected at most {allowed:g} of that. Nothing was written."
        )

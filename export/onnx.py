"""ONNX: export through ``torch.export``, check the file, compare it with PyTorch.

The batch size is dynamic. A file is put in its place only after ONNX's own
checker has passed it and ONNX Runtime has given PyTorch's outputs on random
input, at two batch sizes so that a frozen batch cannot pass.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from precrop.errors import PrecropError
from precrop.export.extras import require
from precrop.files import replacing

# The exporter takes a batch of one for a constant, so the example that it follows has two images.
EXAMPLE_BATCH = 2
PARITY_BATCHES = (1, 3)


@dataclass(frozen=True)
class OnnxFile:
    """An exported network: where it is, how large, and its largest deviation from PyTorch.

    ``max_abs_error`` is the largest absolute difference over all outputs, in the
    outputs' own unit, on standard normal input.
    """

    path: Path
    max_abs_error: float
    size_bytes: int
    opset: int


def export_onnx(
    model: nn.Module,
    path: str | Path,
    input_shape: tuple[int, int, int],
    *,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> OnnxFile:
    """Write ``model`` as a float32 ONNX file with input ``input`` (N, C, H, W) and output ``output``.

    Args:
        model: a network of one image input and one output; exported in inference
            mode from a copy, so it stays as it was.
        path: the file to write; an existing one is replaced once the new one has passed.
        input_shape: (C, H, W).
        tolerance: the largest error allowed, as a share of the largest output (or of 1,
            where the outputs are smaller).
        seed: of the random input.

    Raises:
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.
        PrecropError: the exporter or the checker refuses the network, its outputs
            differ by more than the tolerance, or the file cannot be written.
    """
    require("onnx", "onnx", "onnxscript", "onnxruntime")
    import onnx

    frozen = copy.deepcopy(model).to("cpu", torch.float32).eval()
    example = torch.zeros(EXAMPLE_BATCH, *input_shape)
    with replacing(path) as beside:
        try:
            with _quiet_exporter():
                program = torch.onnx.export(
                    frozen,
                    (example,),
                    input_names=["input"],
                    output_names=["output"],
                    dynamic_shapes=({0: torch.export.Dim("batch")},),
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
                assert program is not None
                program.save(beside, external_data=False)
            onnx.checker.check_model(os.fspath(beside), full_check=True)
        except (torch.onnx.errors.OnnxExporterError, onnx.checker.ValidationError) as error:
            cause = error.__cause__ or error
            reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
            raise PrecropError(
                f"cannot export {type(model).__name__} to ONNX for images {tuple(input_shape)}: {reason}. "
                "Expected a network that torch.export can follow with a dynamic batch."
            ) from error
        error_abs, scale = parity(frozen, beside, input_shape, seed=seed)
        if not error_abs <= tolerance * max(1.0, scale):  # also true of NaN
            raise PrecropError(
                f"the ONNX file of {type(model).__name__} differs from PyTorch by {error_abs:.3g} on random "
                f"input with outputs up to {scale:.3g}; expected at most {tolerance:g} of that. "
                "Nothing was written."
            )
        opset = max(entry.version for entry in onnx.load(beside).opset_import if entry.domain in ("", "ai.onnx"))
        size_bytes = beside.stat().st_size
    return OnnxFile(Path(path), error_abs, size_bytes, opset)


def parity(
    model: nn.Module, path: str | Path, input_shape: tuple[int, int, int], *, seed: int = 0
) -> tuple[float, float]:
    """Largest absolute error of ONNX Runtime against PyTorch, and the largest absolute output.

    ``model`` is in inference mode on the CPU; the input is standard normal, drawn from ``seed``.
    """
    require("onnx", "onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(seed)
    errors, scales = [], []
    for batch in PARITY_BATCHES:
        images = torch.randn(batch, *input_shape, generator=generator)
        with torch.inference_mode():
            expected = model(images)
        if not isinstance(expected, torch.Tensor):
            raise PrecropError(f"{type(model).__name__} returns a {type(expected).__name__}; expected one tensor.")
        got = session.run(None, {session.get_inputs()[0].name: images.numpy()})[0]
        errors.append(np.abs(got - expected.numpy()).max())
        scales.append(expected.abs().max().item())
    return float(np.max(errors)), float(np.max(scales))


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep the exporter's remarks on its own workings off the user's screen; errors still come."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)

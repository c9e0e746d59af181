"""INT8: quantize and dequantize nodes in an ONNX graph, with ranges seen on the user's own data.

Symmetric in weights (per output channel) and activations (per tensor), signed, biases left in float32: what TensorRT
accepts, and what the other engines run as well. ONNX Runtime's static quantizer places the nodes; a range is the
largest magnitude seen on the calibration images.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from precrop.errors import ExportError

IMAGES = 512  # what a range is seen on; a data set may hold more
QUANTIZED = ("Conv", "Gemm", "MatMul", "Add", "MaxPool", "GlobalAveragePool", "ReduceMean", "Concat")
_EXPECTED = "Expected a DataLoader, or another iterable of batches: images (N, C, H, W), or (images, labels)."


def calibration_batches(data: Any, input_shape: tuple[int, ...], most: int = IMAGES) -> list[np.ndarray[Any, Any]]:
    """The first ``most`` images of ``data`` in its batches, float32; raises `ExportError` for what is none."""
    if data is None:
        raise ExportError(
            "int8 needs data to find the range of every activation. Pass calibration=, a DataLoader or another "
            "iterable of batches (on the command line --calibration, a data set of the recipes such as digits)."
        )
    if isinstance(data, (torch.Tensor, np.ndarray)):
        data = [data]
    if isinstance(data, (str, bytes, Mapping, Dataset)) or not isinstance(data, Iterable):
        hint = " Wrap a data set in a DataLoader." if isinstance(data, Dataset) else ""
        raise ExportError(f"calibration is a {type(data).__name__}. {_EXPECTED}{hint}")
    batches: list[np.ndarray[Any, Any]] = []
    taken = 0
    for batch in data:
        images = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if isinstance(images, torch.Tensor) and not images.is_meta:
            images = images.detach().to("cpu", torch.float32).numpy()
        if not isinstance(images, np.ndarray) or images.shape[1:] != input_shape:
            found = f"of shape {images.shape}" if isinstance(images, np.ndarray) else f"a {type(images).__name__}"
            raise ExportError(
                f"a batch of calibration images is {found}; expected (N, {', '.join(map(str, input_shape))}), the "
                "network's input."
            )
        batches.append(images[: most - taken].astype(np.float32, copy=False))
        taken += len(batches[-1])
        if taken >= most:
            break
    if not taken:
        raise ExportError(f"calibration is empty: the {type(data).__name__} gave no image. {_EXPECTED}")
    if not all(np.isfinite(images).all() for images in batches):
        raise ExportError("the calibration images hold values that are not finite; no range can be found from them.")
    return batches


def quantize(source: Path, path: Path, batches: list[np.ndarray[Any, Any]]) -> None:
    """Write the float32 ONNX file ``source`` as a quantized one."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.feeds = iter([{"input": images} for images in batches])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.feeds, None)

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises a preparation that the exporter has done already
    try:
        quantize_static(
            os.fspath(source),
            os.fspath(path),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=list(QUANTIZED),
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
        )
    finally:
        root.setLevel(level)

"""ONNX: export through ``torch.export``, check the file, compare it with PyTorch.

The batch size is dynamic. A file is put in its place only after ONNX's own
checker has passed it and ONNX Runtime has given PyTorch's outputs, at two batch
sizes so that a frozen batch cannot pass.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precrop.cropping.copying import copy_structure
from precrop.errors import ExportError
from precrop.export.calibration import calibration_batches, quantize
from precrop.export.extras import require
from precrop.export.graph import module_names, with_bfloat16_weights
from precrop.export.parity import Deviation, check_parity, judged_on, parity, parity_images
from precrop.export.precision import PRECISIONS, checked_precision
from precrop.files import replacing

# The exporter takes a batch of one for a constant, so the example that it follows has two images.
EXAMPLE_BATCH = 2
# The first set of operators in which a convolution may be bfloat16; the others take the exporter's own.
BFLOAT16_OPSET = 22

__all__ = ["OnnxFile", "export_onnx", "parity"]


@dataclass(frozen=True)
class OnnxFile:
    """An exported network: where it is, how large, and its deviation from the float32 network in PyTorch.

    ``modules`` are names in the graph to the names of the modules that they compute.
    """

    path: Path
    deviation: Deviation
    size_bytes: int
    opset: int
    precision: str = "fp32"
    modules: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def max_abs_error(self) -> float:
        """The largest absolute difference over all outputs, in their own unit."""
        return self.deviation.max_abs_error


class Cast(nn.Module):
    """A network that computes in ``dtype`` between a float32 input and a float32 output."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network.to(dtype)
        self.dtype = dtype

    def forward(self, images: torch.Tensor) -> Any:
        """(N, C, H, W) float32 to what the network returns, float32."""
        output = self.network(images.to(self.dtype))
        return output.float() if isinstance(output, torch.Tensor) else output


def export_onnx(
    model: nn.Module,
    path: str | Path,
    input_shape: tuple[int, ...],
    *,
    precision: str = "fp32",
    calibration: Any = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> OnnxFile:
    """Write ``model`` as an ONNX file with input ``input`` (N, C, H, W) and output ``output``, both float32.

    Args:
        model: a network of one image input and one output; exported in inference
            mode from a copy, so it stays as it was.
        path: the file to write; an existing one is replaced once the new one has passed.
        input_shape: (C, H, W).
        precision: what the file computes in: ``"fp32"``, ``"fp16"``, ``"bf16"`` or ``"int8"``.
        calibration: batches of images, or of (images, labels), for int8.
        tolerance: the largest error allowed, as a share of the largest output; by default that of the
            precision, and for int8 the measures of `precrop.export.parity`.
        seed: of the random input.

    Raises:
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.
        ExportError: the exporter or the checker refuses the network, its outputs
            differ by more than the tolerance, int8 has no calibration data.
        PrecropError: the file cannot be written.
    """
    kind = checked_precision(precision, PRECISIONS, "ONNX")
    require("onnx", "onnx", "onnxscript", "onnxruntime")
    import onnx

    batches = calibration_batches(calibration, tuple(input_shape)) if precision == "int8" else []
    frozen = copy_structure(model, {}).to("cpu", torch.float32).eval()
    computing = Cast(copy_structure(frozen, {}), kind.dtype).eval() if precision in ("fp16", "bf16") else frozen
    with replacing(path) as beside:
        try:
            with _quiet_exporter():
                program = torch.onnx.export(
                    computing,
                    (torch.zeros(EXAMPLE_BATCH, *input_shape),),
                    input_names=["input"],
                    output_names=["output"],
                    dynamic_shapes=({0: torch.export.Dim("batch")},),
                    opset_version=BFLOAT16_OPSET if precision == "bf16" else None,
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
            if program is None:
                raise ExportError("torch.onnx.export gave no program. Expected the exporter that dynamo=True asks for.")
            graph = program.model_proto
            if precision == "bf16":
                with_bfloat16_weights(graph)
            _save(graph, beside, batches)
            onnx.checker.check_model(os.fspath(beside), full_check=True)
        except (
            torch.onnx.errors.OnnxExporterError,
            onnx.checker.ValidationError,
            onnx.shape_inference.InferenceError,
        ) as error:
            cause = error.__cause__ or error
            reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
            raise ExportError(
                f"cannot export {type(model).__name__} to ONNX for images {tuple(input_shape)}: {reason}. "
                "Expected a network that torch.export can follow with a dynamic batch."
            ) from error
        images = judged_on(batches) or parity_images(tuple(input_shape), seed)
        found = parity(frozen, beside, input_shape, images=images, seed=seed)
        check_parity(type(model).__name__, "ONNX file", precision, found, tolerance)
        written = onnx.load(beside)
        opset = max(entry.version for entry in written.opset_import if entry.domain in ("", "ai.onnx"))
        modules = module_names(written)
        size_bytes = beside.stat().st_size
    return OnnxFile(Path(path), found, size_bytes, opset, precision, modules)


def _save(graph: Any, path: Path, batches: list[Any]) -> None:
    """Write the graph; quantized, where there are batches to find ranges from."""
    if not batches:
        path.write_bytes(graph.SerializeToString())
        return
    with tempfile.TemporaryDirectory() as folder:
        whole, small = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        whole.write_bytes(graph.SerializeToString())
        try:
            quantize(whole, small, batches)
        except OSError:
            raise
        except Exception as error:  # the quantizer's own, of every kind
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ExportError(f"ONNX Runtime's quantizer refuses the network: {reason}.") from error
        path.write_bytes(small.read_bytes())


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

"""``precrop.export``: from a network to an engine's file, checked, with a sidecar that says what it is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precrop.cropping.copying import copy_structure
from precrop.errors import ExportError, PrecropError
from precrop.export.backends import Backend, BuildSettings, RunSettings, backend_for_format
from precrop.export.calibration import calibration_batches
from precrop.export.extras import require
from precrop.export.machine import gpu, versions
from precrop.export.onnx import OnnxFile, export_onnx
from precrop.export.parity import PARITY_BATCHES, Deviation, check_parity, deviation, judged_on, parity_images
from precrop.export.precision import checked_precision
from precrop.files import checked_path, replacing, replacing_together, write_atomically
from precrop.inputs import checked_model, checked_seed, input_shapes
from precrop.plain import number, whole

SIDECAR_VERSION = 1
BATCH = (1, 8, 32)


@dataclass(frozen=True)
class Exported:
    """A file of an engine, and what it was checked against.

    ``deviation`` is the difference from the float32 network in PyTorch, and ``checked_in`` the engine that gave the
    outputs: the file's own, or ONNX Runtime on the graph that it was built from, where the engine cannot run.
    """

    path: Path
    format: str
    precision: str
    batch: tuple[int, ...]
    input_shape: tuple[int, ...]
    size_bytes: int
    deviation: Deviation
    checked_in: str
    sidecar: Path

    @property
    def max_abs_error(self) -> float:
        """The largest absolute difference over all outputs, in their own unit."""
        return self.deviation.max_abs_error

    @property
    def largest_output(self) -> float:
        """The largest absolute output in PyTorch."""
        return self.deviation.largest_output


def export(
    model: nn.Module,
    path: str | Path,
    *,
    to: str | None = None,
    precision: str = "fp32",
    batch: int | Sequence[int] = BATCH,
    calibration: Any = None,
    input_shape: Sequence[int] | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Exported:
    """Write ``model`` as a file of an inference engine, check it, and describe it in ``<path>.json`` beside it.

    >>> precrop.export(small, "small.onnx")
    >>> precrop.export(small, "small.plan", precision="fp16", batch=(1, 8, 32))
    >>> precrop.export(small, "small.xml", precision="int8", calibration=loader)

    The file takes float32 images (N, C, H, W) under the name ``input`` and gives float32 ``output``, in every
    precision. It is put in its place when it is whole and has passed the check.

    Args:
        model: a network of one image input and one output; a copy in inference mode is exported.
        path: the file; an existing one is replaced.
        to: ``"onnx"``, ``"tensorrt"`` or ``"openvino"``; by default by the suffix: .onnx, .plan or .engine, .xml.
        precision: ``"fp32"``, ``"fp16"``, ``"bf16"`` or ``"int8"``.
        batch: batch sizes to build for. ONNX and OpenVINO take any; a TensorRT engine takes those from the least to
            the most, and is made best for the one in the middle.
        calibration: batches of images, or of (images, labels), for int8; 512 images are used at most.
        input_shape: one image's (C, H, W); by default found from the model.
        tolerance: the largest error allowed, as a share of the largest output; by default that of the precision, and
            for int8 signal to noise, gain and top class (`precrop.export.parity`).
        seed: of the random images of the check; an int8 file is checked on calibration images.

    Raises:
        MissingExtraError: an engine is not installed; the message names the extra.
        ExportError: an unknown format or precision, int8 without calibration, an operator that the engine refuses,
            outputs that differ by more than the tolerance.
        PrecropError: the file cannot be written, or anything else that is wrong with the input.
    """
    path, model, seed = checked_path(path), checked_model(model), checked_seed(seed)
    backend = backend_for_format(to, path.suffix)
    checked_precision(precision, backend.writes, f"the format {backend.format}")
    sizes = checked_batch(batch)
    checked_calibration(precision, calibration)
    tolerance = checked_tolerance(tolerance)
    if not path.parent.is_dir():
        raise PrecropError(f"cannot write {path}: the folder {path.parent} does not exist. Create it first.")
    require("onnx", "onnx", "onnxscript", "onnxruntime")
    backend.check()
    frozen = copy_structure(model, {}).to("cpu", torch.float32).eval()
    shape = image_shape(frozen, input_shape)
    if precision == "int8":  # read once: a loader that shuffles gives other images the next time
        calibration = calibration_batches(calibration, shape)
    sidecar = path.with_name(path.name + ".json")
    with tempfile.TemporaryDirectory() as folder:
        graph = export_onnx(
            frozen,
            Path(folder, "network.onnx"),
            shape,
            precision=backend.graph_precision(precision),
            calibration=calibration,
            tolerance=tolerance,
            seed=seed,
        )
        with ExitStack() as stack:
            # The old sidecar goes when the old file does: a file without one is plain, one with another's is a lie.
            others = backend.companions(path)
            if others:
                beside = stack.enter_context(replacing_together(path, *others)) / path.name
            else:
                beside = stack.enter_context(replacing(path))
            built = backend.write(graph.path, beside, BuildSettings(shape, sizes, precision))
            if precision == "int8":
                images = [_within(batch, sizes) for batch in judged_on(calibration, sizes[-1])]
            else:
                images = parity_images(shape, seed, _parity_batches(sizes))
            found, checked_in = _checked(frozen, backend, beside, images, precision, graph)
            check_parity(type(model).__name__, f"file for {backend.title}", precision, found, tolerance)
            size_bytes = sum(file.stat().st_size for file in (beside, *backend.companions(beside)))
            with suppress(OSError):
                sidecar.unlink(missing_ok=True)
    done = Exported(
        path=path,
        format=str(backend.format),
        precision=precision,
        batch=sizes,
        input_shape=shape,
        size_bytes=size_bytes,
        deviation=found,
        checked_in=checked_in,
        sidecar=sidecar,
    )
    write_atomically(sidecar, (json.dumps(description(done, frozen, graph, built), indent=2) + "\n").encode())
    return done


def description(done: Exported, model: nn.Module, graph: OnnxFile, built: dict[str, Any]) -> dict[str, Any]:
    """The sidecar's content."""
    plan = getattr(model, "crop_plan", None)
    spec = getattr(model, "model_spec", None) or (plan.model if plan is not None else None)
    return {
        "precrop_export": SIDECAR_VERSION,
        "file": done.path.name,
        "format": done.format,
        "precision": done.precision,
        "size_bytes": done.size_bytes,
        "network": spec.name if spec is not None else type(model).__name__,
        "crop": None
        if plan is None
        else {
            "scorer": plan.scorer,
            "budget": plan.budget.model_dump(),
            "params_ratio": plan.params_ratio,
            "macs_ratio": plan.macs_ratio,
        },
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "widths": {
            name: getattr(module, "out_channels", None) or module.out_features
            for name, module in model.named_modules()
            if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear))
        },
        "input": {"name": "input", "dtype": "float32", "image": list(done.input_shape), "batch": list(done.batch)},
        "opset": graph.opset,
        "parity": {
            **done.deviation.told(),
            "against": "PyTorch, float32, CPU",
            "in": done.checked_in,
            "on": "calibration images" if done.precision == "int8" else "standard normal images",
        },
        "build": built,
        "modules": graph.modules,
        "gpu": gpu(),
        "versions": versions(),
    }


def image_shape(model: nn.Module, input_shape: Sequence[int] | None) -> tuple[int, ...]:
    """The (C, H, W) given, else the first of the likely ones that the network, in inference mode, runs on."""
    shapes = input_shapes(model, input_shape)
    faults = []
    for shape in shapes:
        try:
            with torch.inference_mode():
                model(torch.zeros(1, *shape))
            return shape
        except Exception as error:  # of the user's own code
            faults.append(f"{'x'.join(map(str, shape))}: {str(error).strip().partition(chr(10))[0] or error!r}")
    raise ExportError(
        f"{type(model).__name__} does not run on a batch of images ({'; '.join(faults)}). Pass input_shape=, one "
        "image's (C, H, W)."
    )


def checked_batch(batch: int | Sequence[int]) -> tuple[int, ...]:
    """Batch sizes, ascending and each once; raises `ExportError`."""
    given = list(batch) if isinstance(batch, Iterable) and getattr(batch, "ndim", 1) > 0 else [batch]
    sizes = [n for n in map(whole, given) if n is not None and n >= 1]
    if not sizes or len(sizes) < len(given):
        raise ExportError(f"batch is {batch!r}; expected positive whole numbers such as (1, 8, 32).")
    return tuple(sorted(set(sizes)))


def checked_tolerance(tolerance: Any) -> float | None:
    """The largest error allowed, or None for that of the precision; raises `ExportError`."""
    if tolerance is None:
        return None
    share = number(tolerance)
    if share is None or not 0 <= share < float("inf"):
        raise ExportError(
            f"tolerance is {tolerance!r}; expected the largest error allowed as a share of the largest output, such as "
            "0.01, or None for that of the precision."
        )
    return share


def checked_calibration(precision: str, calibration: Any) -> None:
    """Raise `ExportError` for calibration data that the precision has no use for."""
    if precision != "int8" and calibration is not None:
        raise ExportError(f"calibration is for int8, and the precision is {precision}. Leave it out, or pass int8.")


def _parity_batches(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The batch sizes of the check, within those built for."""
    return tuple(sorted({min(max(n, sizes[0]), sizes[-1]) for n in PARITY_BATCHES}))


def _within(images: Any, sizes: tuple[int, ...]) -> Any:
    """As many of these images as are built for, repeated where they are too few."""
    return np.resize(images, (min(max(len(images), sizes[0]), sizes[-1]), *images.shape[1:]))


def _checked(
    model: nn.Module, backend: Backend, path: Path, images: list[Any], precision: str, graph: OnnxFile
) -> tuple[Deviation, str]:
    """The deviation, and the engine that it was seen in."""
    if backend.format == "onnx":
        return graph.deviation, "ONNX Runtime"
    if "cpu" not in backend.devices and not torch.cuda.is_available():
        return graph.deviation, "ONNX Runtime, on the graph that it was built from: no GPU here"
    settings = RunSettings(torch.get_num_threads(), backend.devices[0], precision)

    def infer(batch: Any) -> Any:
        with backend.runner(path, batch, settings) as runner:
            runner.run()
            return runner.output()

    return deviation(model, infer, images), backend.title

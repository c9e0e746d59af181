"""How far an engine's outputs are from those of the float32 network in PyTorch, and how far they may be.

In float types the largest error is held to a share of the largest output (`PRECISIONS`). In int8 rounding alone makes
errors of a tenth of it, and a share that lets that pass lets a wrong scale pass. With x the outputs of the network and
y those of the file, Σ over all images and outputs, int8 is judged by

    signal to noise   10 log10 Σ x² / Σ (x - y)²                   a halved output has 6 dB, zeros or doubled ones 0 dB
    gain              Σ xy / Σ x²                                  the scale of the whole
    worst channel     10 log10 of the mean x² of a channel over its largest mean (x - y)²: one zeroed class is seen
    change            signal to noise of x and y less their mean over the images: what the images do to the outputs,
                      without what biases alone put out
    top class         the share of images of the same top class, among those that the network has decided: its first
                      class is ahead of the second by the root mean square of all outputs

Untrained networks may put out their biases whatever the image is. Where the change is less than `CHANGED` of the
outputs, int8 rounding may drown it, and it is not judged; the description says how large it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precrop.errors import ExportError
from precrop.export.extras import require
from precrop.export.graph import computes_in, read_graph, widened_from_bfloat16
from precrop.export.precision import PRECISIONS

PARITY_BATCHES = (1, 3)
Images = np.ndarray[Any, Any]
MOST_IMAGES, MOST_BATCHES = 32, 8  # of the calibration images, in the check of an int8 file

# What int8 files must reach. Those of networks of torchvision and our own, fresh, cropped or with norms that have seen
# images, have 18 to 48 dB, a gain of .98 to 1.01, 16 to 43 dB in the worst channel, 14 to 21 dB of change where judged.
LEAST_SNR_DB = 10.0
GAINS = (0.9, 1.1)
LEAST_CHANNEL_DB = 6.0
LEAST_CHANGE_DB = 7.0
LEAST_TOP_CLASS = 0.9
CHANGED = 0.3
# ONNX Runtime's fused int8 kernels put out noise where outputs are as small as 1e-9, which its plain ones do not.
LEAST_FUSED = 1e-6


@dataclass(frozen=True)
class Deviation:
    """How an engine's outputs differ from PyTorch's; the symbols are those of the module.

    ``max_abs_error`` and ``largest_output`` are in the outputs' own unit; ``changed`` is the root mean square of x less
    its mean over the images, as a share of that of x. ``change_snr_db`` is None for a single image, ``top_class`` where
    the outputs are no class scores or no image is decided. An exact copy has infinite decibels.
    """

    max_abs_error: float
    largest_output: float
    snr_db: float
    gain: float
    channel_snr_db: float
    changed: float
    change_snr_db: float | None
    top_class: float | None

    def told(self) -> dict[str, float | None]:
        """All of it as JSON takes it: what is no finite number is None."""
        return {name: value if value is None or math.isfinite(value) else None for name, value in asdict(self).items()}


def parity_images(input_shape: tuple[int, ...], seed: int, batches: Sequence[int] = PARITY_BATCHES) -> list[Images]:
    """Standard normal images of float32 in the batch sizes given, drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, *input_shape, generator=generator).numpy() for batch in batches]


def judged_on(batches: Sequence[Images], batch: int = MOST_IMAGES) -> list[Images]:
    """The first calibration images in batches of at most this size: as many as tell networks that differ apart."""
    most = min(MOST_IMAGES, MOST_BATCHES * batch)
    if not batches:
        return []
    images = np.concatenate(batches)[:most]
    return [images[i : i + batch] for i in range(0, len(images), batch)]


def parity(
    model: nn.Module,
    path: str | Path,
    input_shape: tuple[int, ...],
    *,
    images: Sequence[Images] | None = None,
    seed: int = 0,
) -> Deviation:
    """How far an ONNX file in ONNX Runtime is from PyTorch.

    ``model`` is in inference mode on the CPU; the input is standard normal, drawn from ``seed``, where no ``images``
    are given. ONNX Runtime has no bfloat16 on a CPU: such a graph runs with its own weights and float32 between.
    Where outputs are below `LEAST_FUSED`, int8 runs without fused kernels.
    """
    require("onnx", "onnxruntime")
    import onnxruntime

    graph = read_graph(path)
    narrow = any(entry.data_type == entry.BFLOAT16 for entry in graph.graph.initializer)
    source = widened_from_bfloat16(graph).SerializeToString() if narrow else os.fspath(path)
    images = images or parity_images(input_shape, seed)
    expected = [_expected(model, batch) for batch in images]
    options = onnxruntime.SessionOptions()
    if computes_in(graph) == "int8" and max(float(np.abs(batch).max()) for batch in expected) < LEAST_FUSED:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    got = [session.run(None, {name: batch})[0] for batch in images]
    return _compared(type(model).__name__, expected, got)


def deviation(model: nn.Module, infer: Callable[[Images], Images], images: Sequence[Images]) -> Deviation:
    """How far ``infer`` is from ``model`` on these batches of images."""
    expected = [_expected(model, batch) for batch in images]
    return _compared(type(model).__name__, expected, [infer(batch) for batch in images])


def _expected(model: nn.Module, batch: Images) -> Images:
    with torch.inference_mode():
        output = model(torch.from_numpy(batch))
    if not isinstance(output, torch.Tensor):
        raise ExportError(f"{type(model).__name__} returns a {type(output).__name__}; expected one tensor.")
    return output.numpy()


def _compared(network: str, expected: Sequence[Images], got: Sequence[Images]) -> Deviation:
    for one, other in zip(expected, got, strict=True):
        if one.shape != other.shape:
            raise ExportError(
                f"{network} gives outputs of shape {one.shape} in PyTorch and {tuple(other.shape)} after export; "
                "expected the same."
            )
    return compare(np.concatenate(expected), np.concatenate(got))


@np.errstate(invalid="ignore", over="ignore")
def compare(x: Images, y: Images) -> Deviation:
    """How far outputs ``y`` (N, ...) are from ``x``; axis 1 is the channels, or the classes."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    scale = float(np.abs(x).max())
    unit = scale if 0 < scale < math.inf else 1.0
    a, b = x / unit, y / unit  # so that squares of 1e-160 and 1e160 are numbers
    signal, noise = float((a**2).mean()), (a - b) ** 2
    by_channel = noise.mean(tuple(axis for axis in range(a.ndim) if axis != 1)) if a.ndim > 1 else noise.mean()
    of_a, of_b = a - a.mean(0), b - b.mean(0)
    changed = float((of_a**2).mean())
    return Deviation(
        max_abs_error=float(np.abs(x - y).max()),
        largest_output=scale,
        snr_db=_decibels(signal, float(noise.mean())),
        gain=float((a * b).mean() / signal) if signal else float(not b.any()),
        channel_snr_db=_decibels(signal, float(by_channel.max())),
        changed=math.sqrt(changed / signal) if signal else 0.0,
        change_snr_db=_decibels(changed, float(((of_a - of_b) ** 2).mean())) if len(a) > 1 else None,
        top_class=_top_class(a, b, math.sqrt(signal)),
    )


def _decibels(signal: float, noise: float) -> float:
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal / noise > 0 else -math.inf  # also where one is no number


def _top_class(x: Images, y: Images, lead: float) -> float | None:
    if x.ndim != 2 or x.shape[1] < 2:
        return None
    second, first = np.sort(x, axis=1)[:, -2:].T
    decided = first - second > lead
    return float((x.argmax(1) == y.argmax(1))[decided].mean()) if decided.any() else None


def check_parity(network: str, what: str, precision: str, found: Deviation, tolerance: float | None) -> None:
    """Raise `ExportError` for outputs that are too far off, or that are no numbers.

    With a ``tolerance`` the largest error is held to that share of the largest output in int8 too.
    """
    if precision == "int8" and tolerance is None:
        faults = int8_faults(found)
    else:
        kind = PRECISIONS[precision]
        allowed = (kind.tolerance or 0.0) if tolerance is None else tolerance
        within = found.max_abs_error <= allowed * max(kind.floor, found.largest_output)  # false of NaN
        faults = [] if within else [f"expected at most {allowed:g} of that"]
    if faults:
        raise ExportError(
            f"the {precision} {what} of {network} differs from PyTorch by {found.max_abs_error:.3g} on "
            f"{'calibration images' if precision == 'int8' else 'random input'} with outputs up to "
            f"{found.largest_output:.3g}; {'; '.join(faults)}. Nothing was written."
        )


def int8_faults(found: Deviation) -> list[str]:
    """What is wrong with an int8 file of this deviation, each with what was expected."""
    faults = []
    if not found.snr_db >= LEAST_SNR_DB:  # true of NaN
        faults.append(f"the signal is {found.snr_db:.1f} dB above the noise, expected at least {LEAST_SNR_DB:g} dB")
    if not GAINS[0] <= found.gain <= GAINS[1]:
        faults.append(f"the outputs are {found.gain:.3g} times what they should be, expected {GAINS[0]} to {GAINS[1]}")
    if not found.channel_snr_db >= LEAST_CHANNEL_DB:
        faults.append(
            f"the worst channel's noise is {found.channel_snr_db:.1f} dB below the signal, expected at least "
            f"{LEAST_CHANNEL_DB:g} dB"
        )
    if found.changed >= CHANGED and found.change_snr_db is not None and not found.change_snr_db >= LEAST_CHANGE_DB:
        faults.append(
            f"what differs between images is {found.change_snr_db:.1f} dB above the noise, expected at least "
            f"{LEAST_CHANGE_DB:g} dB"
        )
    if found.top_class is not None and not found.top_class >= LEAST_TOP_CLASS:
        faults.append(
            f"the top class is the same on {found.top_class:.0%} of the images that are decided, expected at least "
            f"{LEAST_TOP_CLASS:.0%}"
        )
    return faults


def parity_text(found: Deviation, precision: str) -> str:
    """What is printed of it."""
    text = f"largest error against PyTorch: {found.max_abs_error:.2e}, outputs up to {found.largest_output:.3g}"
    if precision != "int8":
        return text
    text += f", signal to noise {found.snr_db:.1f} dB, gain {found.gain:.3f}"
    if found.top_class is not None:
        text += f", top class the same on {found.top_class:.0%} of the decided images"
    if found.changed < CHANGED:
        text += f"; images change {found.changed:.2g} of the outputs, too little to judge that by itself"
    return text

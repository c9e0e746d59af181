"""Engines that a crop can be made for: which widths they like, and what their time is spent on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """``unit``: the multiple of channels that it computes at full speed.

    ``elements`` and ``weights``: the parts of a multiply-add's price that it puts on the elements that a layer writes
    and on the weights that it reads, together at most 1 (`precrop.cropping.paths.synexp_path`).
    """

    unit: int
    elements: float = 0.0
    weights: float = 0.0


# Found with benchmarks/latency.py at batch 1 on a CPU with vectors of 16 float32, the same for both engines there.
# TensorRT's unit is what an INT8 tensor core takes at once by NVIDIA's documentation, and was not measured.
TARGETS: dict[str, Target] = {
    "onnxruntime": Target(unit=16, elements=0.85, weights=0.1),
    "openvino": Target(unit=16, elements=0.85, weights=0.1),
    "tensorrt": Target(unit=32),
}

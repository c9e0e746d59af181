"""Engines that a crop can be made for: which widths they like, and what their time is spent on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """``unit``: the multiple of channels that it computes at full speed; ``traffic``: see `paths.synexp_path`."""

    unit: int
    traffic: float


# Measured by benchmarks/latency.py on a CPU with vectors of 16 float32; TensorRT's unit is what an INT8 tensor core
# takes at once by NVIDIA's documentation, and was not measured.
TARGETS: dict[str, Target] = {
    "onnxruntime": Target(unit=16, traffic=0.6),
    "openvino": Target(unit=16, traffic=0.6),
    "tensorrt": Target(unit=32, traffic=0.0),
}

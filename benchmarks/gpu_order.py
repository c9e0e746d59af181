"""The order of `gpu_check.py`: what tells most for its time comes first."""

from __future__ import annotations

from gpu_measure import CROPS
from gpu_record import DENSE

PAIR = (DENSE, "macs 0.5")  # for engines that take many seconds to build a crop
# What is measured, in this order: (part, precision, batch; none: as in training), of each network in turn.
ORDER: tuple[tuple[str, str, int | None, tuple[str, ...]], ...] = (
    ("train", "amp-fp16", None, tuple(CROPS)),
    ("cuda-graph", "fp16", 32, tuple(CROPS)),
    ("cuda-graph", "fp16", 1, tuple(CROPS)),
    ("eager", "fp16", 1, tuple(CROPS)),
    ("cuda-graph", "fp16", 128, tuple(CROPS)),
    ("tensorrt", "fp16", 1, PAIR),
    ("tensorrt", "fp16", 32, PAIR),
    ("tensorrt", "fp16", 128, PAIR),
    ("train", "tf32", None, tuple(CROPS)),
    ("torch-compile", "fp16", 32, PAIR),
    ("train", "amp-bf16", None, tuple(CROPS)),
    ("torch-compile", "fp16", 1, PAIR),
    ("cuda-graph", "tf32", 32, tuple(CROPS)),
    ("cuda-graph", "tf32", 1, tuple(CROPS)),
    ("cuda-graph", "tf32", 128, tuple(CROPS)),
    ("eager", "fp16", 32, tuple(CROPS)),
    ("eager", "fp16", 128, tuple(CROPS)),
    ("eager", "tf32", 1, tuple(CROPS)),
    ("torch-compile", "fp16", 128, PAIR),
    ("torch-compile", "tf32", 32, PAIR),
    ("tensorrt", "tf32", 32, PAIR),
    ("train", "fp32", None, tuple(CROPS)),
    ("cuda-graph", "fp32", 32, tuple(CROPS)),
    ("eager", "tf32", 32, tuple(CROPS)),
    ("eager", "tf32", 128, tuple(CROPS)),
    ("eager", "fp32", 1, tuple(CROPS)),
    ("torch-compile", "tf32", 1, PAIR),
    ("torch-compile", "tf32", 128, PAIR),
)
ORDER_TINY: tuple[tuple[str, str, int | None, tuple[str, ...]], ...] = (
    *(("train", precision, None, PAIR) for precision in ("amp-fp16", "amp-bf16", "tf32", "fp32")),
    *((engine, "fp32", batch, PAIR) for engine in ("eager", "cuda-graph", "tensorrt") for batch in (1, 2)),
)

"""Precisions: what a network computes in, and how far from PyTorch in float32 it may come out.

Precision lives in the ONNX graph, so that every engine gets it from there: fp16 and bf16 are the network cast to
that type and exported, int8 is the float32 graph with quantize and dequantize nodes. Input and output stay float32 in
all of them, so that the files can stand in for one another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from precrop.errors import ExportError


@dataclass(frozen=True)
class Precision:
    """A type, and the error allowed as a share of the largest output; None where `precrop.export.parity` has others.

    Outputs below ``floor`` are held to its share, which is a few of the least steps of float16. Fresh networks give
    outputs as small as 1e-8, so that a floor for all types would let anything pass.
    """

    dtype: torch.dtype
    tolerance: float | None
    floor: float = 0.0


# The rounding of one operation is 6e-8, 5e-4 and 4e-3 of the largest value; it adds up over the layers.
PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(torch.float32, 1e-4),
    "fp16": Precision(torch.float16, 2e-2, floor=1.2e-5),
    "bf16": Precision(torch.bfloat16, 1e-1),
    "int8": Precision(torch.int8, None),
}


def checked_precision(name: str, allowed: Iterable[str], what: str) -> Precision:
    """The row of ``name``, if it is one of ``allowed``; raises `ExportError` that lists those of ``what``."""
    if not isinstance(name, str) or name not in PRECISIONS or name not in allowed:
        known = "" if isinstance(name, str) and name in PRECISIONS else f"unknown precision {name!r}: "
        raise ExportError(f"{known}{what} has no {name}; expected one of {', '.join(allowed)}.")
    return PRECISIONS[name]

"""Plain numbers, whichever library they come from: Python's, NumPy's, or a tensor of one."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch


def number(value: Any) -> float | None:
    """A value as a float; None for what is no number (a truth value, text, several numbers)."""
    plain = _unboxed(value)
    if isinstance(plain, bool) or not isinstance(plain, Real):
        return None
    try:
        return float(plain)
    except OverflowError:
        return None


def whole(value: Any) -> int | None:
    """A value as an int; None for what is no whole number of 64 bits, 3.0 among it."""
    plain = _unboxed(value)
    if isinstance(plain, bool) or not isinstance(plain, Integral):
        return None
    return int(plain) if -(2**63) <= int(plain) < 2**63 else None


def _unboxed(value: Any) -> Any:
    """The number in a NumPy scalar, or in an array or tensor without axes; anything else as it is."""
    boxed = isinstance(value, np.generic) or (isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 0)
    return value.item() if boxed and not getattr(value, "is_meta", False) else value

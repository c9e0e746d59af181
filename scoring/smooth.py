"""Functions that torch can differentiate once, written out so that it can differentiate them twice.

GraSP and ProsPr take derivatives of gradients. Fused kernels of attention, and of the hard activations of
mobile networks, have no second derivative; their plain forms do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


def _hardsigmoid(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return F.hardtanh(input + 3, 0.0, 6.0) / 6


def _hardswish(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return input * _hardsigmoid(input)


_PLAIN: dict[Any, Callable[..., Any]] = {F.hardsigmoid: _hardsigmoid, F.hardswish: _hardswish}


class _Plain(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _PLAIN.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Run forwards so that their gradients can be differentiated again."""
    with sdpa_kernel(SDPBackend.MATH), _Plain():
        yield

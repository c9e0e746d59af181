"""Copy a network's structure around other tensors.

`copy.deepcopy` does this with a memo that already holds the tensors, but spends most of
its time on the dozen empty hook tables of every module: a third of a whole crop.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

_COPY_HOOKS = ("__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")
# What `module.compile()` leaves belongs to the original, as in torch's own copies.
_COMPILED = "_compiled_call_impl"
_PLAIN = (int, float, bool, str, bytes, type(None), type)

Module = TypeVar("Module", bound=nn.Module)


def copy_structure(model: Module, memo: dict[int, Any]) -> Module:
    """A deep copy of ``model`` in which every object whose identity is in ``memo`` is the one given there."""
    if id(model) in memo:
        copied: Module = memo[id(model)]
        return copied
    if _copies_itself(type(model)):
        return copy.deepcopy(model, memo)
    new = object.__new__(type(model))
    memo[id(model)] = new
    restore: Callable[[dict[str, Any]], None] = new.__setstate__
    restore({key: _copied(value, memo) for key, value in vars(model).items() if key != _COMPILED})
    return new


def _copies_itself(cls: type) -> bool:
    """Whether a class says itself how it is copied."""
    return any(getattr(cls, name, None) is not getattr(nn.Module, name, None) for name in _COPY_HOOKS)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (dict, OrderedDict, set, list) and not value:
        return type(value)()
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        return value.detach().clone()  # such as a weight that a hook computes anew before each forward
    if isinstance(value, nn.Module):
        return copy_structure(value, memo)
    if type(value) is tuple and all(isinstance(v, _PLAIN) for v in value):
        return value
    if type(value) in (dict, OrderedDict):
        new = type(value)()
        memo[id(value)] = new
        for key, inner in value.items():
            new[key] = _copied(inner, memo)
        return new
    return copy.deepcopy(value, memo)

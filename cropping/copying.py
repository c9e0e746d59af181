"""Copy a network's structure around other tensors.

`copy.deepcopy` does this with a memo that already holds the tensors, but spends most of
its time on the dozen empty hook tables of every module: a third of a whole crop.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from precrop.cropping.attributes import slots_of
from precrop.errors import PrecropError

_COPY_HOOKS = ("__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")
# What `module.compile()` leaves belongs to the original, as in torch's own copies.
_COMPILED = "_compiled_call_impl"
_PLAIN = (int, float, bool, str, bytes, type(None), type)

Module = TypeVar("Module", bound=nn.Module)


class _Uncopied(Exception):
    """An attribute of a module that neither can be copied nor may be shared."""

    def __init__(self, module: nn.Module, attribute: str, value: Any, why: Exception) -> None:
        super().__init__(attribute)
        self.module, self.attribute, self.value, self.why = module, attribute, value, why


def copy_structure(model: Module, memo: dict[int, Any]) -> Module:
    """A deep copy of ``model`` in which every object whose identity is in ``memo`` is the one given there.

    What cannot be copied (a lock, an open file, a generator, a stream) is shared with the original, unless it holds
    tensors or modules: then `PrecropError` names the module and the attribute.
    """
    try:
        return _module(model, memo)
    except _Uncopied as error:
        paths = {id(module): path for path, module in model.named_modules()}
        path = paths.get(id(error.module), "")
        raise PrecropError(
            f"cannot copy the attribute {error.attribute!r} of "
            f"{f'the module {path!r}' if path else 'the model'}, a {type(error.module).__name__}: the "
            f"{type(error.value).__name__} that it holds has tensors or modules in it and refuses to be copied "
            f"({type(error.why).__name__}: {error.why}). Give its class a __deepcopy__, or set the attribute after "
            "the crop."
        ) from error.why


def _module(model: Module, memo: dict[int, Any]) -> Module:
    if id(model) in memo:
        copied: Module = memo[id(model)]
        return copied
    if _copies_itself(type(model)):
        return copy.deepcopy(model, memo)
    new = object.__new__(type(model))
    memo[id(model)] = new
    state = {}
    for key, value in vars(model).items():
        if key == _COMPILED:
            continue
        try:
            state[key] = _copied(value, memo)
        except _CannotCopy as error:
            raise _Uncopied(model, key, error.value, error.why) from error
    restore: Callable[[dict[str, Any]], None] = new.__setstate__
    restore(state)
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
        return _module(value, memo)
    if type(value) is tuple:
        return value if all(isinstance(v, _PLAIN) for v in value) else tuple(_copied(v, memo) for v in value)
    if type(value) is weakref.ref:  # of a module that has been copied, to the copy
        return weakref.ref(memo[id(value())]) if isinstance(value(), nn.Module) and id(value()) in memo else value
    if type(value) is MethodType:
        return MethodType(value.__func__, _copied(value.__self__, memo))
    if type(value) in (list, set):
        new = type(value)()
        memo[id(value)] = new
        (new.extend if isinstance(new, list) else new.update)([_copied(inner, memo) for inner in value])
        return new
    if type(value) in (dict, OrderedDict):
        new = type(value)()
        memo[id(value)] = new
        for key, inner in value.items():
            new[key] = _copied(inner, memo)
        return new
    return _deeply(value, memo)


class _CannotCopy(Exception):
    """A value that holds tensors or modules, and refuses to be copied."""

    def __init__(self, value: Any, why: Exception) -> None:
        super().__init__(str(why))
        self.value, self.why = value, why


def _deeply(value: Any, memo: dict[int, Any]) -> Any:
    """Python's deep copy; the value itself where that fails and nothing of the network is in it."""
    before = len(memo)
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:  # whatever the value's class raises
        while len(memo) > before:  # the parts of a copy that was not finished
            memo.popitem()
        if _holds_network(value, set()):
            raise _CannotCopy(value, error) from error
        return value


def _holds_network(value: Any, seen: set[int]) -> bool:
    """Whether a tensor or a module is in a value, its items or its attributes, however deep."""
    if isinstance(value, (torch.Tensor, nn.Module)):
        return True
    if isinstance(value, (*_PLAIN, ModuleType, FunctionType)) or id(value) in seen:
        return False
    seen.add(id(value))
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts += value.values()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        parts += value
    parts += getattr(value, "__dict__", {}).values()
    parts += (getattr(value, name, None) for cls in type(value).__mro__ for name in slots_of(cls))
    return any(_holds_network(part, seen) for part in parts)

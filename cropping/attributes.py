"""Which attributes a module class has, as its code says, and which values can be sizes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import CodeType
from typing import Any

import torch
from torch import nn

# A class that uses these may have attributes whose names stand nowhere.
_DYNAMIC = {"getattr", "setattr", "vars", "__dict__", "__getattr__", "__setstate__"}


def names_used(cls: type[nn.Module]) -> set[str] | None:
    """The names of attributes that stand in a class's code and annotations, and its parents' up to `torch.nn.Module`.

    None where some may stand nowhere: the code of the class asks for attributes by computed names, or cannot be read.
    """
    names: set[str] = set()
    for parent in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        names |= {*vars(parent), *vars(parent).get("__annotations__", ()), *slots_of(parent)}
        for member in vars(parent).values():
            for code in _codes(member):
                if _DYNAMIC & set(code.co_names):
                    return None
                names |= {*code.co_names, *(const for const in code.co_consts if isinstance(const, str))}
    return names


def _codes(member: Any) -> Iterator[CodeType]:
    """The code of a method or property, and of the functions in it."""
    functions: list[Any] = [member]
    if isinstance(member, (staticmethod, classmethod)):
        functions = [member.__func__]
    elif isinstance(member, property):
        functions = [member.fget, member.fset]
    for function in filter(callable, functions):
        yield from codes_in(getattr(inspect.unwrap(function), "__code__", None))


def codes_in(code: Any) -> Iterator[CodeType]:
    """A function's code, and that of the functions in it; nothing for what is no code."""
    if isinstance(code, CodeType):
        yield code
        for const in code.co_consts:
            yield from codes_in(const)


def slots_of(cls: type) -> tuple[str, ...]:
    """The slots that a class itself declares."""
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def near(name: str, names: Iterable[str]) -> str:
    """A question that offers the nearest of some names, with a space before it; nothing where none is near."""
    found = get_close_matches(name, sorted(names), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def size_fault(value: Any) -> str:
    """What a value is, where it can be no size or sizes; nothing where it can."""
    if isinstance(value, torch.Tensor) or type(value) is int:
        return ""
    if isinstance(value, (list, tuple)):
        return next((f"a {type(value).__name__} with {part}" for part in map(size_fault, value) if part), "")
    return (
        f"{value!r}, a {type(value).__name__}" if isinstance(value, (str, float, bool)) else f"a {type(value).__name__}"
    )

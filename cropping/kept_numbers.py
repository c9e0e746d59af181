"""Numbers that modules keep of their widths and that the traced forward does not read.

Other code reads them: an exporter's forward, a method that merges branches or replaces the classifier. Such a number
follows the size that it counts, where that can be told:

- a number that the code of its class's forward names was read by the trace, which tied or pinned what it met;
- any other is compared with the sizes of the tensors in its module. The places where it agrees in *all* modules of the
  class (such as axis 1 of ``fc.weight``) say which size it counts, if they all follow the same width;
- where they follow different widths nothing can be told: the number stays, and is said.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from torch import nn

from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver
from precrop.cropping.symbolic import Dim

# Settings, whose numbers agree with a width by chance.
_SETTING = re.compile(
    r"kernel|stride|dilat|pad|heads?$|window|patch|depth|group|ratio|reduc|scale|level|stage|class|size$|resol|repeat"
    r"|index|version|num_(block|layer|expert|branch|anchor|token|register)|^n$|^i$|^f$|^np$",
    re.IGNORECASE,
)
_OWN = frozenset(vars(nn.Module()))
Place = tuple[str, int]  # the name of a tensor within a module, and its axis


@dataclass(frozen=True)
class KeptNumber:
    """A number, or several in a list, tuple or dictionary, that could not be told to count one width."""

    path: str
    cls: str
    attribute: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path}.{self.attribute} = {self.value!r} ({self.cls})".removeprefix(".")


def follow_numbers(
    model: nn.Module, shapes: dict[str, tuple[Dim, ...]], known: dict[tuple[str, str], Any], solver: Solver
) -> tuple[dict[tuple[str, str], Any], tuple[KeptNumber, ...]]:
    """Numbers that follow a width, (module name, attribute) to its sizes, and those of which nothing can be told.

    ``shapes`` are the settled shapes of the network's tensors; ``known`` the attributes that have their sizes already.
    """
    inside = _sizes_inside(shapes)
    agreeing: dict[tuple[type, str, Any], set[Place]] = {}
    found: list[tuple[str, nn.Module, str, Any, dict[Any, dict[Place, Dim]]]] = []
    for path, module in model.named_modules():
        cls: Any = type(module)  # (a class of modules is no Hashable to mypy)
        if cls.__module__.startswith("torch.nn.modules") or path not in inside:
            continue
        for attribute, value in vars(module).items():
            if attribute in _OWN or (path, attribute) in known or _SETTING.search(attribute) or attribute[0] == "_":
                continue
            numbers = dict(_numbers(value))
            if not numbers or attribute in _read_by_forward(cls):
                continue
            places = {
                key: {place: size for place, size in inside[path] if solver.hint_of(size) == number}
                for key, number in numbers.items()
            }
            for key, agree in places.items():
                so_far = agreeing.setdefault((cls, attribute, key), set(agree))
                so_far &= agree.keys()
            found.append((path, module, attribute, value, places))
    followed: dict[tuple[str, str], Any] = {}
    unclear = []
    for path, module, attribute, value, places in found:
        sizes: dict[Any, Dim] = {}
        for key, agree in places.items():
            common = agreeing[type(module), attribute, key]
            counted = {size for place, size in agree.items() if place in common or not common}
            if any(isinstance(size, Polynomial) for size in counted):
                if len(counted) > 1:
                    unclear.append(KeptNumber(path, type(module).__name__, attribute, value))
                    sizes = {}
                    break
                sizes[key] = counted.pop()
        if sizes:
            followed[path, attribute] = _replaced(value, sizes)
    return followed, tuple(unclear)


def _sizes_inside(shapes: dict[str, tuple[Dim, ...]]) -> dict[str, list[tuple[Place, Dim]]]:
    """For each module the sizes of all tensors in it, each longer than one."""
    inside: dict[str, list[tuple[Place, Dim]]] = defaultdict(list)
    for name, shape in shapes.items():
        sizes = [(axis, size) for axis, size in enumerate(shape) if size != 1]
        parts = name.split(".")
        for depth in range(len(parts)):
            within = ".".join(parts[depth:])
            inside[".".join(parts[:depth])] += [((within, axis), size) for axis, size in sizes]
    return inside


def _numbers(value: Any) -> Iterator[tuple[Any, int]]:
    """The whole numbers above one in an attribute, each with its place: None, an index or a key."""
    if type(value) is int:
        items: Any = [(None, value)]
    elif type(value) in (list, tuple):
        items = enumerate(value)
    elif type(value) is dict:
        items = value.items()
    else:
        return
    yield from ((key, number) for key, number in items if type(number) is int and number > 1)


def _replaced(value: Any, sizes: dict[Any, Dim]) -> Any:
    if type(value) is int:
        return sizes[None]
    if type(value) is dict:
        return {key: sizes.get(key, old) for key, old in value.items()}
    return type(value)(sizes.get(index, old) for index, old in enumerate(value))


@lru_cache(maxsize=1024)
def _read_by_forward(cls: type[nn.Module]) -> frozenset[str]:
    """The names that a class's forward uses, and the methods that it names, and theirs."""
    names: set[str] = set()
    pending, seen = ["forward"], {"forward"}
    while pending:
        method = getattr(cls, pending.pop(), None)
        code = getattr(method, "__code__", None)
        if code is not None:
            new = _names_in(code) - seen
            names |= new
            seen |= new
            pending += new
    return frozenset(names)


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)

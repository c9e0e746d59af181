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
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from precrop.cropping.attributes import codes_in
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


@dataclass(frozen=True)
class _Kept:
    """An attribute with numbers in it: for each, by its place in the value, the axes of its size in the module."""

    path: str
    cls: type
    attribute: str
    value: Any
    agreeing: dict[Any, dict[Place, Dim]]


def follow_numbers(
    model: nn.Module, shapes: dict[str, tuple[Dim, ...]], known: dict[tuple[str, str], Any], solver: Solver
) -> tuple[dict[tuple[str, str], Any], tuple[KeptNumber, ...]]:
    """Numbers that follow a width, (module name, attribute) to its sizes, and those of which nothing can be told.

    ``shapes`` are the settled shapes of the network's tensors; ``known`` the attributes that have their sizes already.
    """
    kept = [
        found for found in _kept(model, _sizes_inside(shapes), solver) if (found.path, found.attribute) not in known
    ]
    everywhere: dict[tuple[type, str, Any], set[Place]] = {}
    for found in kept:
        for key, places in found.agreeing.items():
            so_far = everywhere.setdefault((found.cls, found.attribute, key), set(places))
            so_far &= places.keys()
    followed: dict[tuple[str, str], Any] = {}
    unclear = []
    for found in kept:
        counted = {}
        for key, places in found.agreeing.items():
            common = everywhere[found.cls, found.attribute, key]
            sizes = {size for place, size in places.items() if place in common or not common}
            if any(isinstance(size, Polynomial) for size in sizes):
                counted[key] = sizes
        if any(len(sizes) > 1 for sizes in counted.values()):
            unclear.append(KeptNumber(found.path, found.cls.__name__, found.attribute, found.value))
        elif counted:
            one = {key: size for key, (size,) in counted.items()}
            followed[found.path, found.attribute] = _replaced(found.value, one)
    return followed, tuple(unclear)


def _kept(model: nn.Module, inside: dict[str, list[tuple[Place, Dim]]], solver: Solver) -> Iterator[_Kept]:
    """The attributes whose numbers may count a width: no layer's of torch, no setting, none that a forward reads."""
    for path, module in model.named_modules():
        cls = type(module)
        if cls.__module__.startswith("torch.nn.modules") or path not in inside:
            continue
        for attribute, value in vars(module).items():
            if attribute in _OWN or attribute.startswith("_") or _SETTING.search(attribute):
                continue
            numbers = dict(_numbers(value))
            if numbers and attribute not in _read_by_forward(cls):
                agreeing = {
                    key: {place: size for place, size in inside[path] if solver.hint_of(size) == number}
                    for key, number in numbers.items()
                }
                yield _Kept(path, cls, attribute, value, agreeing)


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


def _read_by_forward(cls: type) -> frozenset[str]:
    """The names that a class's forward uses, and the methods that it names, and theirs."""
    if cls not in _READ:
        names: set[str] = set()
        pending = ["forward"]
        while pending:
            code = getattr(getattr(cls, pending.pop(), None), "__code__", None)
            new = {name for inner in codes_in(code) for name in inner.co_names} - names
            names |= new
            pending += new
        _READ[cls] = frozenset(names)
    return _READ[cls]


# Classes come and go with notebooks' cells.
_READ: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()

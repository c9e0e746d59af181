"""What a trace leaves: the free widths, and every size and cost as a polynomial in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precrop.crop_plan import FixedWidth, Size
from precrop.cropping.kept_numbers import KeptNumber
from precrop.cropping.polynomial import Polynomial
from precrop.cropping.symbolic import Dim
from precrop.words import some_of

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FreeWidth:
    """One width that can vary.

    ``size`` is the present number of channels, always a multiple of ``multiple`` (a
    channel shuffle, a grouped convolution); ``minimum`` is the least number of channels.
    ``layers`` are the layers whose output it is, or is part of.
    """

    name: str
    variable: int
    size: int
    multiple: int
    minimum: int
    layers: tuple[str, ...]


@dataclass
class Layer:
    """A convolution or linear layer met in the forward, and what it costs per image."""

    name: str
    weight: str
    incoming: Dim
    outgoing: Dim
    params: Polynomial
    macs: Polynomial
    activations: Polynomial


@dataclass(frozen=True)
class WidthGraph:
    """Free widths, fixed widths with their reasons, and every size as a polynomial in the free ones.

    ``shapes`` maps a parameter or buffer name to its shape, ``attributes`` maps (module
    name, attribute) to a size or a list of sizes. ``params`` are those that a forward came to, in eval or in train
    mode; ``unused_params`` counts the rest, ``unused`` names the modules that own them. ``outputs`` are the shapes that
    the network puts out for two images, where they must stay; ``trains_apart`` says whether training runs other code.
    ``unclear`` are numbers that modules keep and that may count one width or another.
    """

    input_shape: tuple[int, ...]
    widths: tuple[FreeWidth, ...]
    fixed: tuple[FixedWidth, ...]
    layers: tuple[Layer, ...]
    shapes: dict[str, tuple[Dim, ...]]
    attributes: dict[tuple[str, str], Any]
    params: Polynomial
    macs: Polynomial
    activations: Polynomial
    unused_params: int = 0
    unused: tuple[str, ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    trains_apart: bool = False
    unclear: tuple[KeptNumber, ...] = ()
    _index: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index.update({width.variable: i for i, width in enumerate(self.widths)})

    def __str__(self) -> str:
        from precrop.tables import graph_text

        return graph_text(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user of the crop should know of the network."""
        notes = []
        if self.unused_params:
            notes.append(
                f"{self.unused_params:,} parameters in modules that forward never runs ({some_of(self.unused, 3)}) "
                "stay as they are and count in no budget"
            )
        if self.unclear:
            first = self.unclear[0]
            notes.append(
                "numbers that may count a width and that the forward does not read stay as they are: "
                f"{some_of(self.unclear, 6)}; precrop.register_size_attributes({first.cls}, {first.attribute!r}) says "
                "that it is a size"
            )
        return tuple(notes)

    @property
    def original(self) -> dict[str, int]:
        """The present width of each free width, by name."""
        return {width.name: width.size for width in self.widths}

    def values(self, widths: Mapping[str, int]) -> dict[int, int]:
        """Variable to value for a choice of widths (channels by name)."""
        return {w.variable: widths[w.name] // w.multiple for w in self.widths}

    def size(self, widths: Mapping[str, int]) -> Size:
        """The cost of a choice of widths."""
        values = self.values(widths).__getitem__
        return Size(
            params=self.params.evaluate(values),
            macs=self.macs.evaluate(values),
            activations=self.activations.evaluate(values),
        )

    def compiled(self, cost: Polynomial) -> QuadraticCost:
        """The cost as a vectorised function of the channel counts, in the order of ``widths``."""
        return QuadraticCost(cost, self._index, np.array([w.multiple for w in self.widths], float))


class QuadraticCost:
    """A cost polynomial of the widths, evaluated for many choices of widths at once.

    Parameters and multiply-adds are products of at most two widths nearly everywhere;
    that part is one matrix product, ``w Q w + l w + c``. Longer products are added one by one.
    """

    def __init__(self, cost: Polynomial, index: Mapping[int, int], multiples: Array) -> None:
        n = len(index)
        self.quadratic = np.zeros((n, n))
        self.linear = np.zeros(n)
        self.constant = 0.0
        self.longer: list[tuple[float, list[int]]] = []
        for monomial, coefficient in cost.terms.items():
            places = [index[v] for v in monomial]
            c = float(coefficient / np.prod(multiples[places])) if places else float(coefficient)
            if len(places) == 0:
                self.constant += c
            elif len(places) == 1:
                self.linear[places[0]] += c
            elif len(places) == 2:
                self.quadratic[places[0], places[1]] += c
            else:
                self.longer.append((c, places))
        self.quadratic = (self.quadratic + self.quadratic.T) / 2

    def __call__(self, widths: Array) -> Array:
        """Cost of ``widths``, an array (..., number of widths) of channel counts."""
        total = ((widths @ self.quadratic + self.linear) * widths).sum(-1) + self.constant
        for c, places in self.longer:
            total = total + c * widths[..., places].prod(-1)
        return np.asarray(total)

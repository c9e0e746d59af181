"""What one image costs, from a forward on a batch of several.

A trace runs on two images: BatchNorm in train mode refuses one, and a squeeze would drop the axis. An operator on
tensors that are made of the images costs twice as much for two, also where the batch is folded into another axis or
taken apart image by image. An operator on parameters and tables alone (a weight that is the product of two, an MLP over
relative positions) costs the same for any batch, unless they were repeated for each image first. Shapes do not
tell these apart, two rows may be two images; so the mode knows which tensors are made of the images, and where a
product takes none of them and could still be of two, the forward runs once more on four. A cost ``c(n) = a + b n``
is for one image ``a + b = (3 c(2) - c(4)) / 2``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from precrop.cropping.polynomial import Polynomial, total
from precrop.cropping.shapes import OnProduct, ShapeMode
from precrop.cropping.solver import Solver

BATCH = 2

# Their result has the type of the other tensors, or their device, and neither their sizes nor their values.
_OF_A_TYPE_ONLY = {"to", "_to_copy", "type_as", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"}


class ImageMode(ShapeMode):  # type: ignore[no-untyped-call]
    """A `ShapeMode` that knows which tensors are made of the images."""

    def __init__(self, solver: Solver, on_product: OnProduct) -> None:
        super().__init__(solver, on_product)
        self._of_images: dict[int, torch.Tensor] = {}  # kept, so that no other tensor gets the identity of one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        name = func._schema.name.partition("::")[2]
        taken = args if name not in _OF_A_TYPE_ONLY else () if name.startswith("new_") else args[:1]
        if self.of_images(taken) or (kwargs and self.of_images(kwargs.values())):
            self.follow(result)
        return result

    def follow(self, made: Any) -> None:
        """Remember tensors, or what an operator returned, as made of the images."""
        if isinstance(made, torch.Tensor):
            self._of_images[id(made)] = made
        elif isinstance(made, (list, tuple)):
            for part in made:
                self.follow(part)

    def of_images(self, values: Iterable[Any]) -> bool:
        """Whether any tensor among the values, or in lists of them, is made of the images."""
        known = self._of_images
        for value in values:
            if isinstance(value, torch.Tensor):
                if id(value) in known:
                    return True
            elif isinstance(value, (list, tuple)) and self.of_images(value):
                return True
        return False


class Costs:
    """Multiply-adds and output elements of every operator, by the layer that owns its weight (None for no layer)."""

    def __init__(self) -> None:
        self._of_images = _Run()
        self._of_none = _Run()
        self._of_none_again: _Run | None = None

    def book(self, layer: str | None, macs: Polynomial, activations: Polynomial, of_images: bool) -> None:
        """Add an operator's costs for the whole batch; ``of_images`` says that they are known to grow with it."""
        if self._of_none_again is not None:
            if not of_images:
                self._of_none_again[layer].append((macs, activations))
        else:
            (self._of_images if of_images else self._of_none)[layer].append((macs, activations))

    @property
    def unclear(self) -> bool:
        """Whether a product that takes nothing made of the images could still be one for each image."""
        booked = (macs for costs in self._of_none.values() for macs, _ in costs)
        return any(all(c % BATCH == 0 for c in macs.terms.values()) for macs in booked)

    def run_again(self, forward: Callable[[int], Any]) -> None:
        """Settle it by ``forward(batch)``, which returns nothing where it fails at that batch."""
        self._of_none_again = _Run()
        if not forward(2 * BATCH):
            self._of_none_again = None

    def of_one_image(self, layer: str | None, resolve: Callable[[Polynomial], Polynomial]) -> tuple[Polynomial, ...]:
        """The layer's multiply-adds and output elements for one image, in the variables that ``resolve`` leaves."""

        def summed(run: _Run, kind: int) -> Polynomial:
            return resolve(total(cost[kind] for cost in run.get(layer, ())))

        def cost(kind: int) -> Polynomial:
            found = _divided(summed(self._of_images, kind), BATCH)
            if layer in self._of_none:
                once = summed(self._of_none, kind)
                if self._of_none_again is not None:
                    once = _divided(once.scaled(3) - summed(self._of_none_again, kind), 2)
                found = found + once
            return found

        return cost(0), cost(1)


class _Run(defaultdict[str | None, list[tuple[Polynomial, Polynomial]]]):
    """What one forward booked."""

    def __init__(self) -> None:
        super().__init__(list)


def _divided(cost: Polynomial, divisor: int) -> Polynomial:
    return Polynomial({monomial: c // divisor for monomial, c in cost.terms.items()})

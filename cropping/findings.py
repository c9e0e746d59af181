"""What a trace found: which widths are free and what they are called, which are fixed and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from precrop.crop_plan import FixedWidth
from precrop.cropping.graph import FreeWidth, Layer
from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim, elements


class Findings:
    """Settles a solved trace: names the free variables, gives every fixed width its reason.

    ``layers`` maps a weight's name to its layer; a weight among ``seen`` (those that an operator took)
    without one becomes a layer here. Variables that no layer puts out are set to their present value.
    """

    def __init__(
        self, solver: Solver, layers: dict[str, Layer], shapes: dict[str, tuple[Dim, ...]], seen: set[str]
    ) -> None:
        self.solver = solver
        self.layers = layers
        self.shapes = shapes
        self._book_unnamed(seen)
        owners = self._owners()
        fixed = self._fixed()
        for v, found in list(owners.items()):
            if solver.minimum.get(v, 1) >= solver.hints[v]:
                fixed += self._barred(v, found)
                del owners[v]
        self.fixed = tuple(fixed)
        self.widths = tuple(_distinct([self._width(v, found) for v, found in owners.items()]))
        # Sizes that no layer puts out (an unused module, the pixels of a position embedding) stay.
        for v in range(len(solver.hints)):
            if v not in solver.known and v not in owners:
                solver.known[v] = Polynomial.constant(solver.hints[v])
        for layer in layers.values():
            layer.incoming, layer.outgoing = solver.settle(layer.incoming), solver.settle(layer.outgoing)
            layer.params = solver.resolve(layer.params)
            layer.macs = solver.resolve(layer.macs)
            layer.activations = solver.resolve(layer.activations)

    def _book_unnamed(self, seen: set[str]) -> None:
        """Make a layer of each weight that an operator without a rule multiplied by."""
        owners = self._owners()
        for name in (n for n in self.shapes if n in seen and n not in self.layers and len(self.shapes[n]) > 1):
            sizes = [self.solver.resolve(as_polynomial(size)) for size in self.shapes[name]]
            new = [size for size in sizes if size.variables() and not size.variables() & owners.keys()]
            if new:
                incoming = next((size for size in sizes if size.variables() & owners.keys()), Polynomial.constant(1))
                params, nothing = elements(self.shapes[name]), Polynomial({})
                self.layers[name] = Layer(title_of(name), name, incoming, new[0], params, nothing, nothing)

    def _owners(self) -> dict[int, list[Layer]]:
        """The layers whose output each free variable is, or is part of."""
        owners: dict[int, list[Layer]] = {}
        for layer in self.layers.values():
            for v in self._outgoing(layer).variables():
                owners.setdefault(v, []).append(layer)
        return owners

    def _outgoing(self, layer: Layer) -> Polynomial:
        return self.solver.resolve(as_polynomial(layer.outgoing))

    def _barred(self, v: int, layers: list[Layer]) -> list[FixedWidth]:
        """Free by the equations, but its least value is the present one."""
        reason = str(self.solver.bounded.get(v) or "the code")
        self.solver.known[v] = Polynomial.constant(self.solver.hints[v])
        sizes = {layer.name: self.solver.value(layer.outgoing) for layer in layers}
        return [FixedWidth(layer=name, size=size, reason=reason) for name, size in sizes.items() if size is not None]

    def _width(self, v: int, layers: list[Layer]) -> FreeWidth:
        """Name a free variable after the first layer whose whole output it is; else it is part of one."""
        hint = self.solver.hints[v]
        whole = next((x for x in layers if len(self._outgoing(x).terms) == 1), None)
        own = whole or layers[0]
        multiple = self._outgoing(own).coefficients()[v]
        return FreeWidth(
            name=own.name if whole else f"{own.name}[part]",
            variable=v,
            size=hint * multiple,
            multiple=multiple,
            minimum=self.solver.minimum.get(v, 1) * multiple,
            layers=tuple(layer.name for layer in layers),
        )

    def _fixed(self) -> list[FixedWidth]:
        """The layers whose output cannot vary at all, each with what pinned it."""
        found = []
        for layer in self.layers.values():
            size = self.solver.value(layer.outgoing)
            if size is not None and size > 1:
                found.append(FixedWidth(layer=layer.name, size=size, reason=self._why(layer)))
        return found

    def _why(self, layer: Layer) -> str:
        """The first known reason among the variables that a pinned output (or its weight) was made of."""
        pending = [as_polynomial(size) for size in (layer.outgoing, *self.shapes[layer.weight])]
        while pending:
            for v in sorted(pending.pop(0).variables()):
                if self.solver.pinned.get(v):
                    return str(self.solver.pinned[v])
                pending.append(self.solver.known.get(v, Polynomial({})))
        return "the code"


def title_of(name: str) -> str:
    """A layer's name: its module's, where the parameter is that module's weight."""
    name = name.partition(".parametrizations.weight.")[0]
    return name.removesuffix("_orig").removesuffix("_v").removesuffix(".weight")


def _distinct(widths: list[FreeWidth]) -> list[FreeWidth]:
    """Give widths that would share a name (parts of one layer's output) a number each."""
    seen: Counter[str] = Counter()
    result = []
    for width in widths:
        seen[width.name] += 1
        number = f"#{seen[width.name]}" if seen[width.name] > 1 else ""
        result.append(replace(width, name=width.name + number))
    return result

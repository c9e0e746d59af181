"""An operator's output sizes, read off its own shape function at several input sizes.

An output size of a tensor operator is almost always linear in each input size: a
pooling keeps the channels, a pixel shuffle quarters them, a padding adds to them. So run
the shape function with one size doubled and tripled and fit ``a + b * size``. A size that
cannot change alone, but can together with others of the same value, is tied to them. The least
step at which the form still holds is the unit of the size: 4 for a pixel shuffle by 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim

Shapes = list[list[int]]
Sizes = dict[Polynomial, int]


@dataclass
class _Group:
    """Sizes that change together: how much each output size rises when they double, and where that form holds."""

    members: list[Polynomial]
    value: int
    rises: Shapes
    unit: int
    least: int


def fit(solver: Solver, shapes_at: Callable[[Sizes], Shapes | None], atoms: list[Polynomial]) -> list[list[Dim]] | None:
    """Each output size as a linear form in the ``atoms``; None where no such form exists.

    ``shapes_at({atom: n})`` gives the output shapes with ``atom`` at n and the others at their
    present values, or None where the operator refuses those sizes.
    """
    start = shapes_at({})
    if start is None:
        return None
    alone: list[list[Polynomial]] = []
    stuck: dict[int, list[Polynomial]] = {}
    for atom in atoms:
        value = solver.hint(atom)
        if shapes_at({atom: 2 * value}) is None:
            stuck.setdefault(value, []).append(atom)
        else:
            alone.append([atom])
    groups = []
    for members in (*alone, *stuck.values()):
        group = _fit_group(members, solver.hint(members[0]), start, shapes_at)
        if group is None:
            for member in members:
                solver.pin(member)
        else:
            groups.append(group)
    if len(groups) > 1 and not _adds_up(groups, start, shapes_at):
        return None
    forms: list[list[Dim]] = [list(row) for row in start]
    for group in groups:
        for other in group.members[1:]:
            solver.equate(group.members[0], other)
        solver.divide(group.members[0], group.unit)
        if group.least > group.unit:
            solver.at_least(solver.resolve(group.members[0]), group.least)
        for i, row in enumerate(group.rises):
            for j, rise in enumerate(row):
                if rise:
                    slope = Fraction(rise, group.value)
                    size = solver.resolve(group.members[0]).scaled(slope.numerator)
                    part = solver.divide(size, slope.denominator)
                    forms[i][j] = as_polynomial(forms[i][j]) + part - Polynomial.constant(rise)
    return forms


def _fit_group(
    members: list[Polynomial], value: int, start: Shapes, shapes_at: Callable[[Sizes], Shapes | None]
) -> _Group | None:
    def rises(to: int) -> Shapes | None:
        return _difference(shapes_at(dict.fromkeys(members, to)), start)

    double = rises(2 * value)
    if double is None or rises(3 * value) != _scaled(double, 2):
        return None

    def holds(at: int) -> bool:
        step = _scaled(double, Fraction(at - value, value))
        return step is not None and rises(at) == step

    unit = next(n for n in range(1, value + 1) if value % n == 0 and (n == value or holds(value + n)))
    least = unit
    if not holds(least):  # the largest four of a size need a size of four: bisect for the least
        below, least = least, value
        while least - below > unit:
            middle = below + (least - below) // unit // 2 * unit
            below, least = (below, middle) if holds(middle) else (middle, least)
    return _Group(members, value, double, unit, least)


def _adds_up(groups: list[_Group], start: Shapes, shapes_at: Callable[[Sizes], Shapes | None]) -> bool:
    """Whether all groups together raise the sizes by the sum of what each does: no products of sizes."""
    together = _difference(shapes_at({m: 2 * g.value for g in groups for m in g.members}), start)
    total = [[sum(g.rises[i][j] for g in groups) for j in range(len(row))] for i, row in enumerate(start)]
    return together == total


def _difference(shapes: Shapes | None, start: Shapes) -> Shapes | None:
    if shapes is None or [len(row) for row in shapes] != [len(row) for row in start]:
        return None
    return [[a - b for a, b in zip(row, old, strict=True)] for row, old in zip(shapes, start, strict=True)]


def _scaled(shapes: Shapes, factor: Fraction | int) -> Shapes | None:
    """Every entry times the factor, or None where that is no whole number."""
    scaled = [[entry * Fraction(factor) for entry in row] for row in shapes]
    if any(entry.denominator != 1 for row in scaled for entry in row):
        return None
    return [[int(entry) for entry in row] for row in scaled]

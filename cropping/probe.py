"""An operator's output sizes, read off its own shape function at several input sizes.

An output size of a tensor operator is almost always linear in each input size: a
pooling keeps the channels, a pixel shuffle quarters them, a padding adds to them. So run
the shape function with one size doubled and tripled and fit ``a + b * size``. A size that
cannot change alone, but can together with others of the same value, is tied to them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim

Shapes = list[list[int]]
Scale = dict[Polynomial, int]


def fit(solver: Solver, shapes_at: Callable[[Scale], Shapes | None], atoms: list[Polynomial]) -> list[list[Dim]] | None:
    """Each output size as a linear form in the ``atoms``; None where no such form exists.

    ``shapes_at({atom: k})`` gives the output shapes with ``atom`` at ``k`` times its present
    value, or None where the operator refuses those sizes.
    """
    start = shapes_at({})
    if start is None:
        return None
    groups: list[list[Polynomial]] = []
    stuck: dict[int, list[Polynomial]] = {}
    for atom in atoms:
        if shapes_at({atom: 2}) is None:
            stuck.setdefault(solver.hint(atom), []).append(atom)
        else:
            groups.append([atom])
    groups += stuck.values()

    doubled = [shapes_at(dict.fromkeys(group, 2)) for group in groups]
    tripled = [shapes_at(dict.fromkeys(group, 3)) for group in groups]
    if len(groups) > 1:
        doubled.append(shapes_at(dict.fromkeys(atoms, 2)))
    if not all(shapes is not None and _same_rank(shapes, start) for shapes in (*doubled, *tripled)):
        return None

    rises: list[list[list[int]]] = []
    for i, row in enumerate(start):
        rises.append([])
        for j, size in enumerate(row):
            once = [shapes[i][j] - size for shapes in doubled if shapes is not None]
            twice = [shapes[i][j] - size for shapes in tripled if shapes is not None]
            together = once.pop() if len(groups) > 1 else sum(once)
            if together != sum(once) or twice != [2 * rise for rise in once]:
                return None
            rises[i].append(once)

    for first, *others in groups:
        for other in others:
            solver.equate(first, other)
    forms: list[list[Dim]] = []
    for row, row_rises in zip(start, rises, strict=True):
        forms.append([])
        for size, once in zip(row, row_rises, strict=True):
            form: Dim = size
            for (first, *_), rise in zip(groups, once, strict=True):
                if rise:
                    slope = Fraction(rise, solver.hint(first))
                    part = solver.divide(solver.resolve(first).scaled(slope.numerator), slope.denominator)
                    form = as_polynomial(form) + part - Polynomial.constant(rise)
            forms[-1].append(form)
    return forms


def _same_rank(a: Shapes, b: Shapes) -> bool:
    return [len(row) for row in a] == [len(row) for row in b]

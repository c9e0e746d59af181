"""Symbolic sizes as `torch.SymInt`: what the network's own Python code computes with.

PyTorch lets a Python object stand behind `torch.SymInt`; its C++ code then asks
that object for every sum, product and comparison of sizes. `torch.export` puts
sympy expressions there. A width needs far less: sizes are polynomials and a
demand is a substitution (`precrop.cropping.solver`), which makes one operation a few
microseconds.

All use of torch's private names is in this file and in `precrop.cropping.shapes`.
Tested with torch 2.9 to 2.14.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.fx.experimental.sym_node import SymNode  # (the module also gives torch.SymInt its operators)

from precrop.cropping.origins import is_library
from precrop.cropping.polynomial import Polynomial, product, total
from precrop.cropping.solver import Solver

Dim = int | Polynomial


class _Node:
    """What is common to integer and boolean nodes: the answers to torch's questions of kind."""

    constant = None
    integer = False

    def is_int(self) -> bool:
        return self.integer

    def is_bool(self) -> bool:
        return not self.integer

    def is_float(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def clone(self) -> _Node:
        return self

    def str(self) -> str:
        return repr(self)

    _graph_repr = str


class SizeNode(_Node):
    """The node behind a symbolic size."""

    __slots__ = ("_number", "_size", "_solved", "solver")
    integer = True

    def __init__(self, solver: Solver, size: Polynomial) -> None:
        self.solver = solver
        self._size = size
        self._solved = -1  # how many variables were solved when _size and _number were last brought up to date
        self._number: int | None = None

    @property
    def size(self) -> Polynomial:
        """The size in variables that are free now."""
        if self._solved != len(self.solver.known):
            self._solved = len(self.solver.known)
            self._size = self.solver.resolve(self._size)
            self._number = self._size.offset if self._size.is_constant else None
        return self._size

    @property
    def hint(self) -> int:
        return self.solver.hint(self.size)

    def __repr__(self) -> str:
        return f"{self.hint}[{self.size!r}]"

    _graph_repr = __repr__

    def is_constant(self) -> bool:
        return False  # torch before 2.10 knows constant booleans only; `maybe_as_int` says it of a size

    def maybe_as_int(self) -> int | None:
        # Torch asks this a dozen times for every tensor it makes.
        if self._solved != len(self.solver.known):
            self.size  # noqa: B018 - brings the number up to date
        return self._number

    def guard_int(self, file: str, line: int) -> int:
        return self.solver.pin(self._size)

    def int_(self) -> int:
        return self.solver.pin(self._size)

    def expect_size(self, file: str, line: int) -> bool:  # asked by torch before 2.10
        return True

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(self.solver, Polynomial.constant(number))

    def wrap_bool(self, value: bool) -> BoolNode:
        return BoolNode(self.solver, value)

    def _with(self, size: Polynomial) -> SizeNode:
        return SizeNode(self.solver, size)

    def add(self, other: SizeNode) -> SizeNode:
        return self._with(self.size + other.size)

    def sub(self, other: SizeNode) -> SizeNode:
        return self._with(self.size - other.size)

    def mul(self, other: SizeNode) -> SizeNode:
        return self._with(self.size * other.size)

    def neg(self) -> SizeNode:
        return self._with(-self.size)

    def pos(self) -> SizeNode:
        return self

    ceil = floor = pos

    def int_floordiv(self, other: SizeNode) -> SizeNode:
        return self._with(self.solver.floor_divide(self.size, other.size))

    floordiv = int_floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        if self.hint % other.hint:
            self.solver.pin(self.size)
            return self.wrap_int(self.solver.hint(self.size) % self.solver.pin(other.size))
        self.solver.floor_divide(self.size, other.size)
        return self.wrap_int(0)

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        result = Polynomial.constant(1)
        for _ in range(self.solver.pin(other.size)):
            result = result * self.size
        return self._with(result)

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self._with(self.solver.ordered(self.size, other.size)[1])

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self._with(self.solver.ordered(self.size, other.size)[0])

    def sym_sum(self, terms: Sequence[SizeNode]) -> SizeNode:
        return self._with(total(term.size for term in terms))

    # A width that becomes a float (c * 0.25, sqrt(c)) is computed at the present size. Only a float that
    # turns into a size again would make the crop wrong, so the width is pinned there and reported.
    def sym_float(self) -> _Number:
        return _Number(float(self.solver.pin(self.size)))

    def int_truediv(self, other: SizeNode) -> _Number:
        return _Number(self.solver.pin(self.size) / self.solver.pin(other.size))

    truediv = int_truediv

    def eq(self, other: SizeNode) -> BoolNode:
        return _Comparison(self.solver, self.size, "eq", other.size)

    def ne(self, other: SizeNode) -> BoolNode:
        return _Comparison(self.solver, self.size, "ne", other.size)

    def lt(self, other: SizeNode) -> BoolNode:
        return _Comparison(self.solver, self.size, "lt", other.size)

    def le(self, other: SizeNode) -> BoolNode:
        return _Comparison(self.solver, self.size, "le", other.size)

    def gt(self, other: SizeNode) -> BoolNode:
        return _Comparison(self.solver, other.size, "lt", self.size)

    def ge(self, other: SizeNode) -> BoolNode:
        return _Comparison(self.solver, other.size, "le", self.size)

    # No rule of ours reads strides, and a data-free tensor's layout decides nothing.
    def is_contiguous(self, sizes: object, strides: object) -> BoolNode:
        return BoolNode(self.solver, True)

    is_non_overlapping_and_dense = is_contiguous

    def is_channels_last_contiguous_2d(self, sizes: object, strides: object) -> BoolNode:
        return BoolNode(self.solver, False)

    is_channels_last_contiguous_3d = is_channels_last_contiguous_2d
    is_channels_last_strides_2d = is_channels_last_contiguous_2d
    is_channels_last_strides_3d = is_channels_last_contiguous_2d


class _Number(SymNode):
    """A float that a size turned into; torch unwraps a node that has a constant to the constant itself."""

    def __init__(self, value: float) -> None:
        self.constant = value


class BoolNode(_Node):
    """The node behind a condition on sizes; decided only when somebody asks. This one is a plain answer."""

    def __init__(self, solver: Solver, answer: bool) -> None:
        self.solver = solver
        self.answer = answer

    def __repr__(self) -> str:
        return str(self.answer)

    _graph_repr = __repr__

    def is_constant(self) -> bool:
        return True

    def known(self) -> bool | None:
        """True or False where that holds for all widths, else None."""
        return self.answer

    def by_hint(self) -> bool:
        """The answer at the present sizes."""
        return self.answer

    def demand(self, branch: bool) -> None:
        """Demand what makes the present answer hold; an order of sizes only where the network takes a ``branch``."""

    def negated(self) -> BoolNode:
        """The opposite condition."""
        return BoolNode(self.solver, not self.answer)

    def _decide(self, branch: bool) -> bool:
        answer = self.known()
        if answer is None:
            answer = self.by_hint()
            self.demand(branch)
        return answer

    def decide(self) -> bool:
        """The answer at the present sizes; an equality that holds becomes a demand."""
        return self._decide(branch=False)

    def guard_bool(self, file: str, line: int) -> bool:
        return self.decide()

    def expect_true(self, file: str, line: int) -> bool:
        return self.decide()

    def bool_(self) -> bool:
        """What ``if size < n`` in Python asks.

        The network's own code takes a branch here, and every crop must take the same: an order of the sizes
        becomes a demand, a difference pins them. Torch's own Python code asks the same way, only to check.
        """
        caller = sys._getframe(1)
        while caller.f_code.co_name == "__bool__" and caller.f_back is not None:
            caller = caller.f_back
        return self._decide(branch=not is_library(caller.f_code.co_filename))

    def _at_hint(self, file: str, line: int) -> bool:
        answer = self.known()
        return self.by_hint() if answer is None else answer

    guard_size_oblivious = _at_hint

    def guard_or_false(self, file: str, line: int) -> bool:
        return bool(self.known())

    statically_known_true = guard_or_false

    def guard_or_true(self, file: str, line: int) -> bool:
        return self.known() is not False

    def sym_and(self, other: BoolNode) -> BoolNode:
        return _Both(self, other)

    def sym_or(self, other: BoolNode) -> BoolNode:
        return _Both(self.negated(), other.negated()).negated()

    and_, or_ = sym_and, sym_or

    def sym_not(self) -> BoolNode:
        return self.negated()

    def wrap_bool(self, value: bool) -> BoolNode:
        return BoolNode(self.solver, value)

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(self.solver, Polynomial.constant(number))


_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "le", "le": "lt"}


class _Comparison(BoolNode):
    """Two sizes compared: ``relation`` is ``eq``, ``ne``, ``lt`` or ``le``."""

    def __init__(self, solver: Solver, a: Polynomial, relation: str, b: Polynomial) -> None:
        self.solver, self.a, self.relation, self.b = solver, a, relation, b

    def __repr__(self) -> str:
        return f"{self.a!r} {self.relation} {self.b!r}"

    _graph_repr = __repr__

    def is_constant(self) -> bool:
        return False

    def _holds(self, difference: int) -> bool:
        d = difference
        return {"eq": d == 0, "ne": d != 0, "lt": d > 0, "le": d >= 0}[self.relation]

    def known(self) -> bool | None:
        difference = self.solver.resolve(self.b - self.a)
        if difference.is_constant:
            return self._holds(difference.offset)
        if self.relation in ("lt", "le"):
            one = Polynomial.constant(1)
            if self.solver.is_positive(difference if self.relation == "lt" else difference + one):
                return True
            if self.solver.is_positive(-difference if self.relation == "le" else one - difference):
                return False
        return None

    def by_hint(self) -> bool:
        return self._holds(self.solver.hint(self.b) - self.solver.hint(self.a))

    def demand(self, branch: bool) -> None:
        answer = self.by_hint()
        if answer is (self.relation == "eq") and self.relation in ("eq", "ne"):
            self.solver.equate(self.a, self.b)
        elif not branch:
            self.solver.compared |= self.a.variables() | self.b.variables()
        elif self.relation in ("lt", "le"):
            smaller, larger = (self.a, self.b) if answer else (self.b, self.a)
            self.solver.order(smaller, larger, strict=(self.relation == "lt") == answer)
        else:
            self.solver.pin(self.b - self.a)

    def negated(self) -> BoolNode:
        swapped = self.relation in ("lt", "le")
        a, b = (self.b, self.a) if swapped else (self.a, self.b)
        return _Comparison(self.solver, a, _OPPOSITE[self.relation], b)


class _Both(BoolNode):
    """Two conditions that must both hold, or with ``opposite`` must not both hold."""

    def __init__(self, one: BoolNode, other: BoolNode, opposite: bool = False) -> None:
        self.solver, self.parts, self.opposite = one.solver, (one, other), opposite

    def __repr__(self) -> str:
        return f"{'not ' if self.opposite else ''}({self.parts[0]!r} and {self.parts[1]!r})"

    _graph_repr = __repr__

    def is_constant(self) -> bool:
        return False

    def known(self) -> bool | None:
        known = [part.known() for part in self.parts]
        if False in known:
            return self.opposite
        return None if None in known else not self.opposite

    def by_hint(self) -> bool:
        return all(part.by_hint() for part in self.parts) is not self.opposite

    def demand(self, branch: bool) -> None:
        failing = [part for part in self.parts if not part.by_hint()]
        for part in failing[:1] or self.parts:  # one that fails is enough
            if part.known() is None:
                part.demand(branch)

    def negated(self) -> BoolNode:
        return _Both(*self.parts, opposite=not self.opposite)


def symint(solver: Solver, size: Dim) -> Any:
    """A size as torch takes it: a plain int where it is known, else a `torch.SymInt`."""
    size = solver.settle(size)
    return size if isinstance(size, int) else torch.SymInt(SizeNode(solver, size))  # type: ignore[arg-type]


def dim_of(size: Any) -> Dim:
    """The size behind what torch hands out: an int, or the polynomial behind a `torch.SymInt`."""
    if isinstance(size, torch.SymInt):
        polynomial = cast(SizeNode, size.node).size
        return polynomial.offset if polynomial.is_constant else polynomial
    return int(size)


def shape_of(tensor: torch.Tensor) -> tuple[Dim, ...]:
    """The tensor's shape, each size an int or a polynomial."""
    return tuple([s if type(s) is int else dim_of(s) for s in tensor.shape])


def elements(shape: Sequence[Dim]) -> Polynomial:
    """The number of elements of a shape."""
    return product(shape)

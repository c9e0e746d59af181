"""Sizes as polynomials in the widths.

A tensor's size is a number, a width, a sum of widths (a concatenation), a
multiple of one (a flatten), or a product (the element count of a weight). All
are polynomials with integer coefficients, and so are parameter and MAC counts.

A monomial is the sorted tuple of its variables, ``()`` for the constant; a
variable is an ``int`` identifier handed out by `precrop.cropping.solver.Solver`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from math import gcd

Monomial = tuple[int, ...]


class Polynomial:
    """An immutable polynomial: ``terms`` maps a monomial to its nonzero coefficient."""

    __slots__ = ("_variables", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        # The dictionary is kept, not copied: nobody changes it afterwards.
        self.terms = {monomial: c for monomial, c in terms.items() if c} if 0 in terms.values() else terms
        self._variables: frozenset[int] | None = None

    @staticmethod
    def constant(value: int) -> Polynomial:
        """The polynomial that is ``value`` everywhere."""
        return Polynomial({(): value})

    @staticmethod
    def variable(variable: int) -> Polynomial:
        """The polynomial that is one variable."""
        return Polynomial({(variable,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        return total((self, other))

    def __neg__(self) -> Polynomial:
        return self.scaled(-1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.scaled(-1)

    def __mul__(self, other: Polynomial) -> Polynomial:
        return Polynomial(_product(self.terms, other.terms))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        def term(monomial: Monomial, c: int) -> str:
            return "*".join([str(c)] * (c != 1 or not monomial) + [f"w{v}" for v in monomial])

        return " + ".join(term(m, c) for m, c in sorted(self.terms.items(), reverse=True)) or "0"

    def scaled(self, factor: int) -> Polynomial:
        """This polynomial times an integer."""
        return Polynomial({m: c * factor for m, c in self.terms.items()})

    @property
    def is_constant(self) -> bool:
        """Whether no variable occurs."""
        return not self.terms or (len(self.terms) == 1 and () in self.terms)

    @property
    def is_linear(self) -> bool:
        """Whether no monomial has more than one variable."""
        return max(map(len, self.terms), default=0) < 2

    @property
    def is_sum(self) -> bool:
        """Whether this is a sum of variables, without products and negative terms."""
        return self.is_linear and min(self.terms.values(), default=0) > 0

    @property
    def offset(self) -> int:
        """The constant term."""
        return self.terms.get((), 0)

    def variables(self) -> frozenset[int]:
        """The variables that occur."""
        if self._variables is None:
            self._variables = frozenset(chain.from_iterable(self.terms))
        return self._variables

    def coefficients(self) -> dict[int, int]:
        """Variable to coefficient, of a linear polynomial, without the constant."""
        return {m[0]: c for m, c in self.terms.items() if m}

    def lone_variable(self) -> int | None:
        """The variable that this polynomial is, or None."""
        if len(self.terms) == 1:
            ((monomial, c),) = self.terms.items()
            if c == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    def evaluate(self, values: Callable[[int], int]) -> int:
        """The value where variable ``v`` has the value ``values(v)``."""
        result = 0
        for monomial, c in self.terms.items():
            for v in monomial:
                c *= values(v)
            result += c
        return result

    def substituted(self, known: Mapping[int, Polynomial]) -> Polynomial:
        """This polynomial with every variable of ``known`` replaced."""
        terms: dict[Monomial, int] = {}
        for monomial, c in self.terms.items():
            if known.keys().isdisjoint(monomial):
                terms[monomial] = terms.get(monomial, 0) + c
                continue
            term = {tuple([v for v in monomial if v not in known]): c}
            for v in monomial:
                if v in known:
                    term = _product(term, known[v].terms)
            for m, d in term.items():
                terms[m] = terms.get(m, 0) + d
        return Polynomial(terms)

    def divided_by(self, divisor: Polynomial) -> Polynomial | None:
        """The exact quotient, or None where the division leaves a remainder."""
        if not divisor.terms:
            return None
        lead = max(divisor.terms)
        quotient: dict[Monomial, int] = {}
        rest = self
        while rest.terms:
            monomial = next((m for m in sorted(rest.terms, reverse=True) if _contains(m, lead)), None)
            if monomial is None or rest.terms[monomial] % divisor.terms[lead]:
                return None
            factor = _without(monomial, lead), rest.terms[monomial] // divisor.terms[lead]
            if factor[0] in quotient:
                return None
            quotient[factor[0]] = factor[1]
            rest = rest - divisor * Polynomial(dict([factor]))
        return Polynomial(quotient)

    def primitive(self) -> Polynomial:
        """This polynomial over the greatest common divisor of its coefficients and its common variables."""
        divisor = gcd(*self.terms.values()) if self.terms else 1
        common = None
        for monomial in self.terms:
            common = monomial if common is None else _intersection(common, monomial)
        return Polynomial({_without(m, common or ()): c // divisor for m, c in self.terms.items()})


def total(sizes: Iterable[int | Polynomial]) -> Polynomial:
    """The sum of sizes, each a number or a polynomial."""
    terms: dict[Monomial, int] = {}
    for size in sizes:
        for monomial, c in (((), size),) if isinstance(size, int) else size.terms.items():
            terms[monomial] = terms.get(monomial, 0) + c
    return Polynomial(terms)


def product(sizes: Iterable[int | Polynomial]) -> Polynomial:
    """The product of sizes, each a number or a polynomial."""
    number, result = 1, None
    for size in sizes:
        if isinstance(size, int):
            number *= size
        else:
            result = size if result is None else result * size
    return Polynomial.constant(number) if result is None else result.scaled(number)


def _product(left: Mapping[Monomial, int], right: Mapping[Monomial, int]) -> dict[Monomial, int]:
    terms: dict[Monomial, int] = {}
    for a, c in left.items():
        for b, d in right.items():
            monomial = tuple(sorted(a + b)) if a and b else a or b
            terms[monomial] = terms.get(monomial, 0) + c * d
    return terms


def _contains(monomial: Monomial, part: Monomial) -> bool:
    return all(monomial.count(v) >= part.count(v) for v in part)


def _without(monomial: Monomial, part: Monomial) -> Monomial:
    left = list(monomial)
    for v in part:
        left.remove(v)
    return tuple(left)


def _intersection(a: Monomial, b: Monomial) -> Monomial:
    left, shared = list(b), []
    for v in a:
        if v in left:
            left.remove(v)
            shared.append(v)
    return tuple(shared)

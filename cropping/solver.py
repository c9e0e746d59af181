"""What a network's code demands of its widths.

Every layer's width starts as a free variable with its present size as the
*hint*. Running the forward meets three kinds of demand, and each is solved at
once, exactly, by substitution:

- **equality** of two sizes (a residual add, a layer's input): one variable is
  expressed by the others, ``v := u`` or ``v := a + b``;
- **divisibility** (a channel shuffle, a chunk, a grouped convolution): the sum
  is made divisible by tying equal widths (two halves of a concatenation), or
  else each width becomes a multiple, ``v := d * u``;
- **a number**: the variable is *pinned*, and the line of code that did it is kept.

Two concatenations with other borders are cut into common pieces. A demand that no substitution
with positive coefficients can meet pins every variable in it: such widths cannot vary one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from precrop.cropping.origins import Origin, calling_origin
from precrop.cropping.polynomial import Polynomial


@dataclass
class Solver:
    """The free variables, their hints, and the substitutions found so far.

    ``hints[v]`` is the present value of variable ``v``; ``known`` maps a solved
    variable to a polynomial in free ones; ``pinned`` says why a variable became
    a number; ``minimum`` holds lower bounds above one (a slice of fixed length); ``compared`` are
    variables whose present value decided a branch without becoming a demand; ``bounded`` says what set a
    variable's minimum or multiple.
    """

    hints: list[int] = field(default_factory=list)
    known: dict[int, Polynomial] = field(default_factory=dict)
    pinned: dict[int, Origin | str | None] = field(default_factory=dict)
    minimum: dict[int, int] = field(default_factory=dict)
    compared: set[int] = field(default_factory=set)
    bounded: dict[int, Origin | str | None] = field(default_factory=dict)
    reason: str | None = None

    def fresh(self, hint: int) -> Polynomial:
        """A new free variable whose present value is ``hint``."""
        self.hints.append(hint)
        return Polynomial.variable(len(self.hints) - 1)

    def hint(self, size: Polynomial) -> int:
        """The present value of a size."""
        return size.evaluate(self.hints.__getitem__)

    def hint_of(self, size: int | Polynomial) -> int:
        """The present value of a size that may be a plain number."""
        return size if isinstance(size, int) else self.hint(size)

    def resolve(self, size: Polynomial) -> Polynomial:
        """The size in free variables only."""
        while not self.known.keys().isdisjoint(size.variables()):
            size = size.substituted(self.known)
        return size

    def settle(self, size: int | Polynomial) -> int | Polynomial:
        """The size in free variables only, or a plain number where nothing in it can vary."""
        if isinstance(size, int):
            return size
        size = self.resolve(size)
        return size.offset if size.is_constant else size

    def value(self, size: int | Polynomial) -> int | None:
        """The number that a size is known to be, or None while it can vary."""
        settled = self.settle(size)
        return settled if isinstance(settled, int) else None

    # -- demands -------------------------------------------------------------

    def equate(self, a: int | Polynomial, b: int | Polynomial) -> bool:
        """Demand that two sizes are equal; False if their present values differ."""
        if a is b:
            return True
        a, b = self.resolve(as_polynomial(a)), self.resolve(as_polynomial(b))
        if a == b:
            return True
        if self.hint(a) != self.hint(b):
            return False
        for one, other in ((a, b), (b, a)):
            v = one.lone_variable()
            # What `_solve` would come to, without a look at each of many terms.
            if v is not None and len(other.terms) > 1 and other.is_sum and v not in other.variables():
                self._substitute(v, other)
                return True
        self._solve((a - b).primitive())
        return True

    def pin(self, size: int | Polynomial) -> int:
        """Demand that a size stays the number it is; returns that number."""
        if isinstance(size, int):
            return size
        size = self.resolve(size)
        if size.is_constant:
            return size.offset
        origin = self.reason or calling_origin()
        value = self.hint(size)
        for v in sorted(size.variables()):
            self.pinned[v] = origin
            self._substitute(v, Polynomial.constant(self.hints[v]))
        return value

    def at_least(self, size: Polynomial, bound: int) -> None:
        """Demand ``size >= bound``; kept as a minimum if the size is one width, else the size is pinned."""
        size = self.resolve(size)
        coefficients = size.coefficients()
        if len(coefficients) == 1 and size.is_linear and min(coefficients.values()) > 0:
            ((v, c),) = coefficients.items()
            least = -(-(bound - size.offset) // c)
            if least > self.minimum.get(v, 1):
                self.minimum[v] = least
                self.bounded[v] = self.bounded.get(v) or self.reason or calling_origin()
        elif size.evaluate(lambda v: self.minimum.get(v, 1)) < bound:
            self.pin(size)

    def order(self, smaller: Polynomial, larger: Polynomial, strict: bool) -> None:
        """Demand ``smaller <= larger`` (``<`` if strict) for all widths, as it is now; pins what cannot be kept so."""
        difference = self.resolve(larger - smaller)
        more = Polynomial({m: c for m, c in difference.terms.items() if c > 0})
        less = more - difference
        if less.is_constant:
            self.at_least(more, less.offset + strict)
        elif self.hint(difference) > 0:
            self.part_of(less, more)  # the rest is at least one
        else:
            self.pin(difference)

    def ordered(self, a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
        """The smaller and the larger of two sizes, demanding that this order stays; equal sizes stay equal."""
        smaller, larger = (a, b) if self.hint(a) <= self.hint(b) else (b, a)
        difference = self.resolve(larger - smaller)
        if not self.is_positive(difference + Polynomial.constant(1)):
            if self.hint(difference) == 0:
                self.equate(smaller, larger)
            else:
                self.order(smaller, larger, strict=False)
        return self.resolve(smaller), self.resolve(larger)

    def part_of(self, part: Polynomial, whole: Polynomial) -> Polynomial:
        """Demand ``part <= whole`` for all widths; returns the part.

        A whole that is one free width becomes the part and a rest that varies by itself; a part that
        is one free width becomes the width of the same size in the whole. Else both are pinned.
        """
        part, whole = self.resolve(part), self.resolve(whole)
        if part.is_constant:
            self.at_least(whole, part.offset)
        elif any(c < 0 for c in (whole - part).terms.values()):
            lone = whole.lone_variable()
            twin = self._twin(part.lone_variable(), whole)
            if lone is not None:
                self._substitute(lone, part + self.fresh(self.hint(whole - part)))
            elif twin is not None:
                self.equate(part, Polynomial.variable(twin))
            else:
                self.pin(part)
                self.at_least(whole, self.hint(part))
        return self.resolve(part)

    def _twin(self, v: int | None, whole: Polynomial) -> int | None:
        if v is None or v in whole.variables():
            return None
        return next((u for u, c in sorted(whole.coefficients().items()) if self.hints[u] == self.hints[v]), None)

    def divide(self, size: Polynomial, divisor: int) -> Polynomial:
        """``size // divisor``, demanding that the part that varies divides exactly."""
        size = self.resolve(size)
        bad = self._indivisible(size, divisor)
        if bad:
            if (self.hint(size) - size.offset) % divisor or not size.is_linear:
                return Polynomial.constant(self.pin(size) // divisor)
            by_hint: dict[int, list[int]] = {}
            for v in bad:
                by_hint.setdefault(self.hints[v], []).append(v)
            for group in by_hint.values():
                if len(group) > 1 and sum(bad[v] for v in group) % divisor == 0:
                    for v in group[1:]:
                        self._substitute(v, Polynomial.variable(group[0]))
            size = self.resolve(size)
            for v, c in self._indivisible(size, divisor).items():
                self._make_multiple(v, divisor // gcd(c, divisor))
            size = self.resolve(size)
        return Polynomial({m: c // divisor for m, c in size.terms.items()})

    def floor_divide(self, a: Polynomial, b: Polynomial) -> Polynomial:
        """``a // b`` for any two sizes."""
        a, b = self.resolve(a), self.resolve(b)
        if b.is_constant:
            return self.divide(a, b.offset)
        quotient = a.divided_by(b)
        if quotient is None:
            times, left = divmod(self.hint(a), self.hint(b))
            if left or not self.equate(a, b.scaled(times)):
                return Polynomial.constant(self.pin(a) // self.pin(b))
            quotient = Polynomial.constant(times)
        return quotient

    def is_positive(self, size: Polynomial) -> bool:
        """Whether a size is surely at least one, whatever the widths."""
        size = self.resolve(size)
        return all(c >= 0 for m, c in size.terms.items() if m) and sum(size.terms.values()) >= 1

    # -- solving -------------------------------------------------------------

    def _indivisible(self, size: Polynomial, divisor: int) -> dict[int, int]:
        return {m[0]: c for m, c in size.terms.items() if m and c % divisor}

    def _substitute(self, v: int, value: Polynomial) -> None:
        low = self.minimum.pop(v, None)
        self.known[v] = value
        if low is not None and not value.is_constant:
            self.at_least(value, low)

    def _make_multiple(self, v: int, factor: int) -> None:
        hint = self.hints[v]
        if hint % factor:
            self.pin(Polynomial.variable(v))
        else:
            part = self.fresh(hint // factor)
            self.bounded[len(self.hints) - 1] = self.bounded.get(v) or self.reason or calling_origin()
            self._substitute(v, part.scaled(factor))

    def _solve(self, difference: Polynomial) -> None:
        """Substitute so that a polynomial whose present value is zero is zero."""
        if not difference.is_linear:
            self.pin(difference)
            return
        positive = {v: c for v, c in difference.coefficients().items() if c > 0}
        negative = {v: -c for v, c in difference.coefficients().items() if c < 0}
        offset = difference.offset
        # With an offset and one width alone on its side, equal sizes are a coincidence.
        pairs = {} if offset and 1 in (len(positive), len(negative)) else positive
        for v, c in sorted(pairs.items()):
            twin = next((u for u, d in sorted(negative.items()) if d == c and self.hints[u] == self.hints[v]), None)
            if twin is not None:
                del positive[v], negative[twin]
                # The older variable stays: it carries the name of the earlier layer.
                self._substitute(max(v, twin), Polynomial.variable(min(v, twin)))
        if not positive and not negative:
            return
        sides = [(positive, negative, -1), (negative, positive, 1)]
        # Rather a size plus a number than a size less a number; rather a whole width than a multiple.
        sides.sort(key=lambda side: (side[2] * offset < 0, min(side[0].values(), default=0)))
        for one, others, sign in sides:
            if len(one) == 1 and others:
                ((v, c),) = one.items()
                rest = Polynomial({**{(u,): d for u, d in others.items()}, (): sign * offset})
                quotient = self.divide(rest, c)
                if self.resolve(Polynomial.variable(v)) == Polynomial.variable(v):
                    self._substitute(v, quotient)
                    if quotient.offset < 0:
                        self.at_least(quotient, 1)
                return
        if offset or {*positive.values(), *negative.values()} != {1}:
            self.pin(Polynomial({(v,): 1 for v in (*positive, *negative)}))
        else:
            self._refine(sorted(positive), sorted(negative))

    def _refine(self, left: list[int], right: list[int]) -> None:
        """Solve ``a + b = c + d`` for widths with other borders: lay them along one another, cut at every border.

        Each width becomes the sum of the pieces that it covers, and each piece varies by itself.
        """
        pieces: dict[int, Polynomial] = dict.fromkeys((*left, *right), Polynomial({}))
        rest = {v: self.hints[v] for v in pieces}
        while left and right:
            a, b = left[0], right[0]
            size = min(rest[a], rest[b])
            piece = self.fresh(size)
            for v, side in ((a, left), (b, right)):
                pieces[v] = pieces[v] + piece
                rest[v] -= size
                if not rest[v]:
                    side.pop(0)
        for v, total in pieces.items():
            self._substitute(v, total)


def as_polynomial(size: int | Polynomial) -> Polynomial:
    """A size as a polynomial."""
    return size if isinstance(size, Polynomial) else Polynomial.constant(size)

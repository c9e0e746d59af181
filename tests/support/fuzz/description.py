"""A network as data: what is built, at which widths, from which initial values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from math import gcd, lcm
from typing import Any

#: Channels as a linear form in the widths: name to how often it is in them; "" has a constant.
Form = dict[str, int]


def plus(*forms: Form) -> Form:
    """The channels of a concatenation."""
    total: Form = {}
    for form in forms:
        for name, times in form.items():
            total[name] = total.get(name, 0) + times
    return total


def single(form: Form) -> str | None:
    """The one width that a form is a multiple of; None where there are several, or a constant."""
    return next(iter(form)) if len(form) == 1 and "" not in form else None


def value(form: Form, widths: dict[str, int]) -> int:
    """The channels at some widths."""
    return sum(times * (widths[name] if name else 1) for name, times in form.items())


@dataclass(frozen=True)
class Block:
    """One block: its kind, the names of the widths that it takes, and its options (plain numbers and names)."""

    kind: str
    widths: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """``image`` is one image's shape; ``widths`` the arguments; ``head`` has the kind of head and its options.

    ``taps`` are outputs beside the head's: (after which block, kind). ``weights`` and ``biases`` name the rules of
    `INITIALIZATIONS`, and ``seed`` is that of the initial values.
    """

    image: tuple[int, ...]
    blocks: tuple[Block, ...]
    widths: dict[str, int]
    head: str = "pooled"
    taps: tuple[tuple[int, str], ...] = ()
    container: str = "tuple"
    weights: str = "default"
    biases: str = "default"
    seed: int = 0

    def at(self, widths: dict[str, int]) -> Description:
        """The same network at other widths."""
        return replace(self, widths=dict(widths))

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Description:
        """What `to_json` wrote."""
        read = json.loads(text)
        blocks = tuple(Block(b["kind"], tuple(b["widths"]), b["options"]) for b in read.pop("blocks"))
        taps = tuple((at, kind) for at, kind in read.pop("taps"))
        return cls(**{**read, "image": tuple(read["image"]), "blocks": blocks, "taps": taps})


@dataclass
class Demands:
    """What the blocks demand of the widths: each a multiple of a number, at the least, or fixed by an output."""

    multiples: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)

    def divide(self, form: Form, by: int) -> bool:
        """Demand channels that ``by`` divides; False where no single width can see to that."""
        if all(times % by == 0 for times in form.values()):
            return True
        name = single(form)
        if name is None:
            return False
        self.multiples[name] = lcm(self.multiples.get(name, 1), by // gcd(by, form[name]))
        return True

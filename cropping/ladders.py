"""The sizes that a width may take, and from which real width each is taken.

Kernels run at full speed only on aligned widths, so a width climbs a *ladder*. In a network that has a width of 128
channels or more, and for a target, its rungs are multiples of 16 (of the target's unit); below that they are powers
of two, each taken from an eighth of it on: sixteen channels stay sixteen until their share is below two, since eight
of them run no faster. A narrower network has rungs at multiples of a power of two that grows with the size: 2 from 8
channels, 4 from 16, 8 from 32. ``round_to`` makes all rungs multiples of that alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from precrop.cropping.graph import FreeWidth

Array = NDArray[np.float64]

# Networks with a width of this many channels have units of 16 throughout: a vector of float32 is 8 or 16 long.
WIDE, ALIGNED = 128, 16
# A rung of at most one unit is taken from this share of it on.
EARLY = 0.125


@dataclass(frozen=True)
class Ladder:
    """``rungs`` (K,), ascending, in channels; ``taken_from`` (K - 1,), the real widths at which all but the first are.

    ``unit`` is the alignment, or None where it grows with the size.
    """

    rungs: Array
    taken_from: Array
    unit: int | None

    def rounded(self, widths: Array) -> Array:
        """Real widths, of any shape, to rungs."""
        return np.asarray(self.rungs[np.searchsorted(self.taken_from, widths, side="right")])

    def step_at(self, size: float) -> int:
        """The channels from a rung of this size to the next, before what the width must be a multiple of."""
        return self.unit if self.unit is not None and size >= self.unit else unit_for(int(size))


def unit_for(size: int) -> int:
    """The channels by which a width of about this size changes, where the unit grows with it: 8, 4, 2 or 1."""
    return next(unit for least, unit in ((32, 8), (16, 4), (8, 2), (0, 1)) if size >= least)


def alignment(widths: Sequence[FreeWidth], target: int | None = None) -> int | None:
    """The unit of a network's widths: the target's, else 16 if it is wide enough, else None."""
    return target or (ALIGNED if max(width.size for width in widths) >= WIDE else None)


def ladder(width: FreeWidth, highest: int, round_to: int | None = None, unit: int | None = None) -> Ladder:
    """The ladder of one width up to ``highest`` channels: with ``round_to``, aligned to ``unit``, or with neither."""
    if round_to is not None:
        step = lcm(width.multiple, round_to)
        low = -(-width.minimum // step) * step
        # Narrower than one unit: it stays.
        rungs = np.array(range(low, highest + 1, step) or [width.size], float)
        return Ladder(rungs, (rungs[:-1] + rungs[1:]) / 2, round_to)
    sizes, size = [], width.minimum
    while size < highest:
        sizes.append(size)
        size = _next(size, width.multiple, unit)
    rungs = np.array([*sizes, highest], float)
    halfway = (rungs[:-1] + rungs[1:]) / 2
    return Ladder(rungs, halfway if unit is None else np.where(rungs[1:] <= unit, rungs[1:] * EARLY, halfway), unit)


def _next(size: int, multiple: int, unit: int | None) -> int:
    if unit is not None and size < unit:
        return -(-min(unit, 1 << size.bit_length()) // multiple) * multiple
    wanted = unit or unit_for(size)
    step = lcm(multiple, wanted)
    if step > max(multiple, unit or 0, size // 4):  # an odd multiple (55 groups): aligning it would be too coarse
        step = multiple
    return (size // step + 1) * step

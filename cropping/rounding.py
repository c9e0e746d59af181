"""From a path of real widths to whole channels that meet the budget from below.

Every width climbs a ladder (`precrop.cropping.ladders`); the path says in which order the rungs of all ladders are
climbed. The budget is then met by *first fit*: climb the rungs in that order as far as they fit; then
the next rung of every width that still fits, then the one after, and stop within half a percent of
the cap. If the rungs left are too coarse, half rungs follow, then quarters (not with ``round_to``).

A larger budget never gives a smaller network: compare two budgets at the first rung on which
they differ. It fits the larger one only, so climbing it makes that network exceed the
smaller cap, which the other network never does. (With two caps: in at least one of them.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precrop.cropping.graph import FreeWidth
from precrop.cropping.ladders import Ladder
from precrop.cropping.paths import WidthPath

Array = NDArray[np.float64]

CLOSE_ENOUGH = 0.995
WITHIN = 0.99


@dataclass
class Fit:
    """The widths found, and the share of the tighter cap that they use."""

    widths: NDArray[np.int64]
    used: float


def first_fit(
    widths: Sequence[FreeWidth],
    path: WidthPath,
    used: Callable[[Array], Array],
    ladders: Sequence[Ladder],
    refine: bool = True,
) -> Fit:
    """Whole channels along ``path`` under the caps.

    ``used(w)`` takes widths (..., G) to the share used of the tighter cap (1 is full). The
    smallest network must fit: ``used`` of the lowest rungs is at most one. ``refine`` allows parts of rungs at the end.
    """
    order = _climbs(widths, path, ladders)
    state = np.array([steps.rungs[0] for steps in ladders])

    climbed, sizes = np.array([g for g, _ in order], int), np.array([size for _, size in order], float)

    def after(count: int) -> Array:
        reached = state.copy()
        reached[climbed[:count]] = sizes[:count]  # of one width's rungs the last, the highest, stays
        return reached

    # As far as all rungs fit: every climb costs, so the place can be found by halving.
    fitting, beyond = 0, len(order) + 1
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if used(after(middle)) <= 1 else (fitting, middle)
    state = after(fitting)

    full: set[int] = set()
    share = float(used(state))
    for g, size in _by_rounds(order[fitting:]):
        if share >= CLOSE_ENOUGH:
            break
        if g not in full:
            share = _climb(state, g, size, used, share, full)

    if refine:
        split = 2
        while share < WITHIN and split <= 16:
            for g, width in enumerate(widths):
                step = ladders[g].step_at(state[g]) // split // width.multiple * width.multiple or width.multiple
                target = min(state[g] + step, ladders[g].rungs[-1])
                if share < CLOSE_ENOUGH and target > state[g]:
                    share = _climb(state, g, target, used, share, set())
            split *= 2
    return Fit(state.astype(np.int64), share)


def _by_rounds(climbs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The next rung of every width, then the one after of every width: none runs far ahead of the path."""
    seen: Counter[int] = Counter()
    numbered = []
    for place, (g, size) in enumerate(climbs):
        numbered.append((seen[g], place, g, size))
        seen[g] += 1
    return [(g, size) for _, _, g, size in sorted(numbered)]


def _climb(state: Array, g: int, size: float, used: Callable[[Array], Array], share: float, full: set[int]) -> float:
    """Set one width if that fits, else mark it full; the share used then."""
    before, state[g] = state[g], size
    now = float(used(state))
    if now <= 1:
        return now
    state[g] = before
    full.add(g)
    return share


def _climbs(widths: Sequence[FreeWidth], path: WidthPath, ladders: Sequence[Ladder]) -> list[tuple[int, float]]:
    """All rungs above the lowest in the order in which the path rounds up to them."""
    climbs = []
    for g, (width, steps) in enumerate(zip(widths, ladders, strict=True)):
        points = path.reached_at(g, np.log(steps.taken_from / width.size)).tolist()
        climbs += [(point, k, g, steps.rungs[k]) for k, point in enumerate(points, start=1)]
    return [(g, size) for _, _, g, size in sorted(climbs)]

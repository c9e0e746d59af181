"""From a path of real widths to whole channels that meet the budget from below.

Every width climbs a ladder (`precrop.cropping.ladders`); the path says in which order the rungs of all ladders are
climbed. The budget is then met by *first fit*: climb the rungs in that order as far as they fit; then
the next rung of every width that still fits, then the one after, and stop within half a percent of
the cap. If the rungs left are too coarse, half rungs follow, then quarters, at last the least steps that the
network's code allows, round by round until none fits (not with ``round_to``, whose unit is the user's).

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


@dataclass(frozen=True)
class Step:
    """The next step of a width, ``channels`` more of it, and the share of the tighter cap that this would use."""

    width: FreeWidth
    channels: int
    used: float


@dataclass(frozen=True)
class Fit:
    """The widths found, and the share of the tighter cap that they use.

    ``beyond`` is the finest step that did not fit: the one that would exceed the cap by least. None where the
    budget is filled, or where no width can grow.
    """

    widths: NDArray[np.int64]
    used: float
    beyond: Step | None = None


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

    if refine and share < WITHIN:
        share = _refine(widths, ladders, state, used, share)
    finest = _finest(widths, ladders, state, used, refine) if share < WITHIN else None
    return Fit(state.astype(np.int64), share, finest)


def _refine(
    widths: Sequence[FreeWidth],
    ladders: Sequence[Ladder],
    state: Array,
    used: Callable[[Array], Array],
    share: float,
) -> float:
    """Climb parts of rungs in ``state``, ever smaller ones, until the budget is filled or nothing fits; the share used.

    It keeps the order of budgets: what is tried next depends on the state alone, and it ends where the share is large
    enough, which comes no later for the smaller budget.
    """
    split = 2
    while share < WITHIN and split <= 16:
        for g, width in enumerate(widths):
            step = ladders[g].step_at(state[g]) // split // width.multiple * width.multiple or width.multiple
            target = min(state[g] + step, ladders[g].rungs[-1])
            if share < CLOSE_ENOUGH and target > state[g]:
                share = _climb(state, g, target, used, share, set())
        split *= 2
    if share >= WITHIN:
        return share
    full: set[int] = set()  # costs only rise: what has not fitted never will
    while len(full) < len(widths):
        for g, width in enumerate(widths):
            if share >= CLOSE_ENOUGH:
                return share
            target = state[g] + width.multiple
            if target > ladders[g].rungs[-1]:
                full.add(g)
            elif g not in full:
                share = _climb(state, g, target, used, share, full)
    return share


def _finest(
    widths: Sequence[FreeWidth],
    ladders: Sequence[Ladder],
    state: Array,
    used: Callable[[Array], Array],
    refine: bool,
) -> Step | None:
    """Of the next steps of all widths the one that exceeds the cap by least."""
    steps = []
    for g, width in enumerate(widths):
        higher = ladders[g].rungs[ladders[g].rungs > state[g]]
        if len(higher):
            wider = state.copy()
            wider[g] = state[g] + width.multiple if refine else higher[0]
            steps.append(Step(width, int(wider[g] - state[g]), float(used(wider))))
    return min(steps, key=lambda step: step.used, default=None)


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

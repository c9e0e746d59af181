"""Times of several networks that can be divided by one another.

A machine's speed drifts (frequency, temperature, other work), so the networks are run in turns within one process:
every round runs each of them once, and the one that starts changes from round to round. Times of one round
can be divided by one another; medians of separate runs cannot. A network finds the caches full of another's weights,
as it never does where it is used, so in each turn it runs once before it is timed.

With t_0 the time of the reference and t_i that of a network in the same round, its *speed-up* s is the median of
t_0 / t_i over the rounds, and its spread the range from the 5 % to the 95 % quantile. With r its share of the
reference's multiply-adds, the *realised share* is s / (1 / r) = s · r: 1 when half the multiply-adds take half the
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LOW, HIGH = 0.05, 0.95


def interleaved_ms(
    times_ms: Sequence[Callable[[], float]], warmup: int, rounds: int, report: Callable[[int, int], None] | None = None
) -> np.ndarray[Any, Any]:
    """(rounds, networks): what each of ``times_ms``, which run a network once, returned in each round that counts.

    In its turn a network runs twice, and the second counts.
    """
    taken = np.zeros((rounds, len(times_ms)))
    for turn in range(-warmup, rounds):
        first = turn % len(times_ms)
        for index in (*range(first, len(times_ms)), *range(first)):
            times_ms[index]()
            elapsed_ms = times_ms[index]()
            if turn >= 0:
                taken[turn, index] = elapsed_ms
        if report is not None:
            report(turn + warmup + 1, warmup + rounds)
    return taken


@dataclass(frozen=True)
class Speedup:
    """How much faster than the reference: the median over the rounds, and the 5 % and 95 % quantiles."""

    median: float
    low: float
    high: float


def speedup(reference_ms: np.ndarray[Any, Any], taken_ms: np.ndarray[Any, Any]) -> Speedup:
    """The speed-up of the times ``taken_ms`` over those of the reference in the same rounds."""
    low, median, high = np.quantile(reference_ms / taken_ms, (LOW, 0.5, HIGH))
    return Speedup(float(median), float(low), float(high))


def realised_share(speedup: float, macs_ratio: float) -> float:
    """The speed-up as a share of what the multiply-adds promise."""
    return speedup * macs_ratio

"""``python -m fuzz``: check a thousand random networks, print faults with their seeds, exit with 1 if there are any."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter

import torch

from .checks import CHECKS, Fault, check
from .generator import Case, draw
from .shrinking import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many networks")
    parser.add_argument(
        "--start", type=int, default=0, help="the first seed: a run that was stopped goes on from there"
    )
    parser.add_argument("--seed", type=int, help="this one alone, with its description")
    parser.add_argument("--onnx", type=float, default=0.0, metavar="SHARE", help="share of the networks to export")
    parser.add_argument("--only", choices=CHECKS, help="this check alone")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller network with the same fault")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seeds = [given.seed] if given.seed is not None else range(given.start, given.start + given.count)
    kinds: Counter[str] = Counter()
    faulty, began = 0, time.monotonic()
    for done, seed in enumerate(seeds, start=1):
        case = draw(seed)
        # One in so many, spread evenly over the seeds.
        onnx = int((seed + 1) * given.onnx) > int(seed * given.onnx)
        faults = checked(case, onnx, given.only)
        if faults:
            faulty += 1
            kinds.update({fault.check for fault in faults})
            report(case, faults)
            if given.shrink:
                report_smaller(case, faults[0].check, onnx, given.only)
        elif given.seed is not None:
            print(case)
        if done % 25 == 0:
            seconds = time.monotonic() - began
            line = f"{done} networks, {faulty} with faults, next seed {seed + 1}, {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)
    counts = ", ".join(f"{name} {count}" for name, count in kinds.most_common())
    print(f"{len(seeds)} networks, {faulty} with faults{f': {counts}' if counts else ''}")
    return int(faulty > 0)


def checked(case: Case, onnx: bool, only: str | None) -> list[Fault]:
    try:
        return check(case, onnx, only)
    except Exception as error:
        return [Fault("generator", f"{type(error).__name__}: {error}")]


def report(case: Case, faults: list[Fault]) -> None:
    print(f"seed {case.seed}: {case}")
    for fault in faults:
        print(f"  {fault}", flush=True)


def report_smaller(case: Case, name: str, onnx: bool, only: str | None) -> None:
    """The smallest network found on which the check of this name fails too."""
    smaller = shrink(case, lambda one: any(fault.check == name for fault in checked(one, onnx, only)))
    print("  smaller:", smaller)
    for fault in checked(smaller, onnx, only):
        print("   ", fault, flush=True)


if __name__ == "__main__":
    sys.exit(main())

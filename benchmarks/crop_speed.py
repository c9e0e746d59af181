"""Time to crop a network to half: precrop beside Torch-Pruning, in one process, on one thread.

    pip install torch-pruning==1.6.1
    python benchmarks/crop_speed.py [--rounds 3] [NETWORK ...]

precrop runs ``precrop.precrop(model, 0.5)`` whole: trace, allocate, build, draw fresh weights.
Torch-Pruning builds its dependency graph and prunes the channels to the same share of the parameters
by random importance (its cheapest), the classifier ignored. The two take turns; the fastest round counts.
Prints a table in Markdown, the ratio for each network and the geometric mean of the ratios.
"""

from __future__ import annotations

import argparse
import copy
import math
import platform
import re
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
from networks import NETWORKS, build
from torch import nn

import precrop

IMAGE = (1, 3, 224, 224)
# Channels kept so that about half of the parameters are.
CHANNELS_CUT = 1 - math.sqrt(0.5)


def time_precrop(model: nn.Module) -> float:
    start = time.perf_counter()
    precrop.precrop(model, 0.5)
    return time.perf_counter() - start


def time_torch_pruning(model: nn.Module) -> float:
    import torch_pruning as tp

    model = copy.deepcopy(model).eval()
    image = torch.randn(IMAGE)
    last = [
        m
        for m in model.modules()
        if isinstance(m, (nn.Linear, nn.Conv2d))
        and 1000 in (getattr(m, "out_features", 0), getattr(m, "out_channels", 0))
    ]
    before = sum(p.numel() for p in model.parameters())
    start = time.perf_counter()
    pruner = tp.BasePruner(
        model,
        image,
        importance=tp.importance.RandomImportance(),
        pruning_ratio=CHANNELS_CUT,
        ignored_layers=last,
    )
    pruner.step()
    seconds = time.perf_counter() - start
    model(image)
    if sum(p.numel() for p in model.parameters()) == before:
        raise RuntimeError("nothing was pruned")
    return seconds


def machine(*packages: str) -> str:
    """The machine and the versions of packages that the figures depend on."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    processor = re.search(r"model name\s*: (.*)", text)
    cpu = processor[1] if processor else platform.processor()
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{cpu}, one thread, Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print(machine("torch", "torchvision", "timm", "torch-pruning"), "\n")
    print("| network | precrop s | Torch-Pruning s | ratio |\n|---|---|---|---|", flush=True)
    ratios, slowest = [], 0.0
    for name in args.networks:
        model = build(name)
        ours: list[float] = []
        theirs: list[float] = []
        failure = ""
        for _ in range(args.rounds):
            ours.append(time_precrop(model))
            if not failure:
                try:
                    theirs.append(time_torch_pruning(model))
                except Exception as error:
                    failure = f"fails: {type(error).__name__}"
        mine = min(ours)
        slowest = max(slowest, mine)
        peer = f"{failure} | –"
        if not failure:
            ratios.append(mine / min(theirs))
            peer = f"{min(theirs):.2f} | {ratios[-1]:.2f}"
        print(f"| {name} | {mine:.2f} | {peer} |", flush=True)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    print(f"\ngeometric mean of the ratios over {len(ratios)} networks: {mean:.2f}; slowest precrop: {slowest:.2f} s")


if __name__ == "__main__":
    main()

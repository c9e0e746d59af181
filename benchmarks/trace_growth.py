"""How the time of `precrop.plan` grows with the number of layers.

    python benchmarks/trace_growth.py [--rounds 5]

Plans a crop to half the parameters of ResNets and DenseNets of growing depth, on one thread, without data (the networks
are on the meta device: a trace reads no values). Seconds are of processor time, the fastest round counts. Prints a
table in Markdown per family and the exponent k of seconds ~ layers^k, fitted by least squares on the logarithms.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time

import numpy as np
import torch
from coverage_networks import Network, build
from crop_speed import machine
from torch import nn

import precrop

FAMILIES = {
    "ResNet": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200"),
    "ResNetV2": ("resnetv2_18", "resnetv2_34", "resnetv2_50", "resnetv2_101", "resnetv2_152"),
    "DenseNet": ("densenet121", "densenet161", "densenet169", "densenet201", "densenet264d"),
}


def seconds_to_plan(model: nn.Module, rounds: int) -> float:
    """Time of one plan: the fastest of some rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        precrop.plan(model, params=0.5)
        times.append(time.process_time() - start)
    return min(times)


def exponent(layers: list[int], seconds: list[float]) -> float:
    """k of seconds ~ layers^k."""
    return float(np.polyfit(np.log(layers), np.log(seconds), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine("torch", "timm"), "\n")
    precrop.plan(build(Network("precrop/resnet20", ""), on_meta=True), params=0.5)  # imports what is imported late
    for family, names in FAMILIES.items():
        print(f"{family}\n\n| network | layers | seconds | ms per layer |\n|---|---|---|---|")
        layers, seconds = [], []
        for name in names:
            model = build(Network(f"timm/{name}", ""), on_meta=True)
            layers.append(len(precrop.plan(model, params=0.5).layers))
            seconds.append(seconds_to_plan(model, args.rounds))
            print(f"| {name} | {layers[-1]} | {seconds[-1]:.3f} | {1000 * seconds[-1] / layers[-1]:.2f} |", flush=True)
        print(f"\nseconds ~ layers^{exponent(layers, seconds):.2f}\n")


if __name__ == "__main__":
    main()

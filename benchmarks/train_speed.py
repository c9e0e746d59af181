"""Is a cropped network faster to train? Step time and peak memory, dense against params 0.5 and 0.25.

    python benchmarks/train_speed.py [--batch 32] [--image 112] [--rounds 5] [--threads 1] [NETWORK ...]

A step is forward, cross-entropy, backward and SGD with momentum on random images, in channels_last. The networks take
turns, one step each; the median counts. "Realised" is the speed-up as a share of the MACs ratio: 1 when a network of a
quarter of the MACs takes a quarter of the time. Peak memory is a GPU's own count of network, optimizer and activations;
on a CPU each network runs in a process of its own, and what is told is its peak above what it took before the first
step (activations, gradients, momentum; read from Linux's /proc).
Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
from crop_speed import machine
from torch.nn import functional

import precrop

NETWORKS = ("torchvision/resnet50", "torchvision/mobilenet_v2", "torchvision/shufflenet_v2_x1_0")
SHARES = (None, 0.5, 0.25)


class Steps:
    """A network with its optimizer and a batch, ready to take steps."""

    def __init__(self, name: str, share: float | None, batch: int, image: int, device: str) -> None:
        torch.manual_seed(0)
        model = precrop.create_model(name)
        shape = (3, image, image)
        plan = precrop.plan(model, params=share or 1.0, input_shape=shape, scorer="synexp" if share else "uniform")
        self.size = plan.cropped
        self.model = precrop.apply(model, plan).train().to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)
        self.images = torch.randn(batch, *shape, device=device).to(memory_format=torch.channels_last)
        self.targets = torch.randint(1000, (batch,), device=device)
        self.device = device

    def step(self) -> float:
        """Seconds of one step."""
        self.wait()
        start = time.perf_counter()
        scores = self.model(self.images)
        loss: torch.Tensor = functional.cross_entropy(scores, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def peak_bytes(name: str, share: float | None, args: argparse.Namespace) -> float:
    """The memory that training steps take."""
    if args.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        steps = Steps(name, share, args.batch, args.image, args.device)
        steps.step()
        steps.step()
        return float(torch.cuda.max_memory_allocated() - before)
    command = [
        sys.executable,
        __file__,
        "--memory-of",
        name,
        "--share",
        str(share or 0),
        "--threads",
        str(args.threads),
    ]
    command += ["--batch", str(args.batch), "--image", str(args.image)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(args: argparse.Namespace) -> None:
    """The child process: the bytes that steps need above what the network alone takes."""
    steps = Steps(args.memory_of, args.share or None, args.batch, args.image, "cpu")
    # Linux: forget the peak so far (of building the network); the resource module's would be the parent's.
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    for _ in range(3):
        steps.step()
    print(status_bytes("VmHWM") - before)


def status_bytes(key: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--image", type=int, default=112)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    warnings.filterwarnings("ignore")
    if args.memory_of:
        print_peak(args)
        return
    where = torch.cuda.get_device_name() if args.device == "cuda" else machine("torch", "torchvision", "timm")
    print(f"Batch {args.batch}, images of {args.image} pixels, float32. {where}\n")
    print(
        "| network | params | MACs | step s | speed-up | realised | peak MB |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in args.networks:
        variants = [Steps(name, share, args.batch, args.image, args.device) for share in SHARES]
        for variant in variants:
            variant.step()
        taken = [[variant.step() for variant in variants] for _ in range(args.rounds)]
        medians = [statistics.median(column) for column in zip(*taken, strict=True)]
        dense = variants[0].size
        for share, variant, seconds in zip(SHARES, variants, medians, strict=True):
            params, macs = variant.size.params / dense.params, variant.size.macs / dense.macs
            faster = medians[0] / seconds
            memory = peak_bytes(name, share, args) / 1e6
            title = f"{name}{f', params {share}' if share else ', dense'}"
            cells = (f"{params:.3f}×", f"{macs:.3f}×", f"{seconds:.3f}", f"{faster:.2f}×", f"{faster * macs:.2f}")
            print(f"| {title} | {' | '.join(cells)} | {memory:,.0f} |", flush=True)


if __name__ == "__main__":
    main()

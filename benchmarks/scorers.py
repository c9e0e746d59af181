"""The scorers compared: how near SynExp is to SynFlow, how near crops come to densities, time and memory.

    python benchmarks/scorers.py [densities] [time] [rounds] [--write docs/SCORERS.md]

Each table is printed as Markdown; with ``--write`` it replaces the one between its markers in the file. One thread.

``densities``: five networks at the input sizes given, the mean over the layers of |log(SynExp / SynFlow)|, and for each
scorer the mean over the layers of |log(kept / density)|, kept being the share of the layer's parameters in the
crop to a tenth of the parameters. The images are scikit-learn's digits, enlarged, in three channels.

``time``: each scorer in units of one training step (forward, backward, SGD) of the same network at a batch of 32. Of
scorers in rounds a few are timed, and multiplied. Peak memory is what the process held beyond
what it held before, at most.

``rounds``: one round of SynFlow in units of a plain forward and backward of one image in float64, and in float32.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from crop_speed import machine
from torch import nn
from torch.nn import functional

import precrop
from precrop.scoring import SCORERS

NETWORKS = {
    "precrop/vgg16_bn": (32, {"num_classes": 100}),
    "torchvision/resnet18": (64, {}),
    "torchvision/resnet50": (64, {}),
    "torchvision/mobilenet_v2": (64, {}),
    "torchvision/shufflenet_v2_x1_0": (64, {}),
}
DENSITIES = (0.5, 0.1, 0.01)
CROPPED_TO = 0.1
TIMED = ("torchvision/resnet50", "torchvision/mobilenet_v2")
BATCH = 32
TIMED_SIZE = 112
TIMED_ROUNDS = 2


def digits(size: int, count: int = BATCH) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8)
    images = (images - images.mean()) / images.std()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    batches = []
    for chosen in order.split(count)[:8]:
        enlarged = functional.interpolate(images[chosen], (size, size), mode="bilinear")
        batches.append((enlarged.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(labels)[chosen].long()))
    return batches


def distance(a: Any, b: Any) -> float:
    """Mean |log(a / b)| over layers, both mappings of layer name to share."""
    return sum(abs(math.log(a[layer] / b[layer])) for layer in a) / len(a)


def densities() -> str:
    names = list(SCORERS)
    head = ["network", "input", *(f"SynExp to SynFlow at {d:g}" for d in DENSITIES), *(f"crop to {n}" for n in names)]
    lines = [_row(head), _row(["---"] * len(head))]
    for network, (size, kwargs) in NETWORKS.items():
        torch.manual_seed(0)
        model = precrop.create_model(network, **kwargs)
        shape = (3, size, size)
        data = digits(size)
        cells = [network, f"{size}×{size}"]
        flow = {}
        for density in DENSITIES:
            flow[density] = precrop.score(model, "synflow", density, input_shape=shape)
            straight = precrop.score(model, "synexp", density, input_shape=shape)
            cells.append(f"{distance(straight, flow[density]):.2f}")
        for name in names:
            found = (
                flow[CROPPED_TO]
                if name == "synflow"
                else precrop.score(model, name, CROPPED_TO, data=data, input_shape=shape)
            )
            crop = precrop.plan(model, params=CROPPED_TO, scorer=found)
            cells.append(f"{distance(found, {row.name: row.density for row in crop.layers}):.2f}")
            print(f"{network}: {name} {cells[-1]}", flush=True)
        lines.append(_row(cells))
    return "\n".join(lines)


class _Enough(Exception):
    """Raised from the progress report once enough rounds were timed."""


def timed(run: Any) -> tuple[float, int]:
    """Seconds of a scorer, and how many rounds it has; rounds after the first few are not run."""
    marks: list[float] = []
    total = 1

    def report(done: int, rounds: int) -> None:
        nonlocal total
        marks.append(time.perf_counter())
        total = rounds
        if done > TIMED_ROUNDS:
            raise _Enough

    start = time.perf_counter()
    try:
        run(report)
        return time.perf_counter() - start, total
    except _Enough:
        # The first round also holds the preparation.
        return (marks[0] - start) + (marks[-1] - marks[0]) / (len(marks) - 1) * (total - 1), total


def peak_memory_mib(run: Any) -> tuple[Any, float]:
    """What ``run`` returns, and the most resident memory meanwhile beyond what was resident before."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # hand back what the allocator keeps for later
    Path("/proc/self/clear_refs").write_text("5")  # begin the peak anew
    before = _resident("VmRSS")
    result = run()
    return result, (_resident("VmHWM") - before) / 1024


def _resident(kind: str) -> float:
    match = re.search(rf"{kind}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return float(match.group(1))


def step_seconds(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, float]:
    """The faster of two training steps, and the memory of one."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> float:
        start = time.perf_counter()
        functional.cross_entropy(model.train()(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    first, memory = peak_memory_mib(step)
    return min(first, step()), memory


def times() -> str:
    columns = [f"{name.rpartition('/')[2]} {what}" for name in TIMED for what in ("steps", "peak MiB")]
    table: dict[str, list[str]] = {name: [] for name in ("a training step", *SCORERS)}
    notes = []
    for network in TIMED:
        model, data = precrop.create_model(network), digits(TIMED_SIZE)
        shape = (3, TIMED_SIZE, TIMED_SIZE)
        precrop.score(model, "erk", 0.5, input_shape=shape)  # what is loaded once
        seconds, memory = step_seconds(model, data[0])
        notes.append(f"{network} {seconds:.2f} s")
        table["a training step"] += ["1", f"{memory:.0f}"]
        for name in SCORERS:

            def run(name: str = name, model: nn.Module = model, data: Any = data, shape: Any = shape) -> Any:
                return timed(lambda r: precrop.score(model, name, 0.1, data=data, input_shape=shape, progress=r))

            (taken, _), memory = peak_memory_mib(run)
            table[name] += [f"{taken / seconds:.2f}", f"{memory:.0f}"]
            print(f"{network}: {name} {table[name][-2]} steps, {memory:.0f} MiB", flush=True)
    lines = [_row(["scorer", *columns]), _row(["---"] * (len(columns) + 1))]
    lines += [_row([name, *cells]) for name, cells in table.items()]
    return "\n".join(
        [*lines, "", f"A training step: {', '.join(notes)} at {BATCH} images of {TIMED_SIZE}×{TIMED_SIZE}."]
    )


def rounds() -> str:
    lines = [_row(["network", "input", "÷ forward and backward in float64", "÷ in float32"]), _row(["---"] * 4)]
    for network, size in (("precrop/vgg16_bn", 32), ("torchvision/resnet50", 224), ("torchvision/mobilenet_v2", 224)):
        model = precrop.create_model(network).eval()
        marks: list[float] = []
        starts: list[float] = []
        plain: dict[torch.dtype, list[float]] = {torch.float64: [], torch.float32: []}

        def report(
            done: int,
            total: int,
            model: nn.Module = model,
            size: int = size,
            plain: Any = plain,
            marks: list[float] = marks,
            starts: list[float] = starts,
        ) -> None:
            """After each round of SynFlow, one plain pass of each type: both see the same machine."""
            marks.append(time.perf_counter())
            for kind, seconds in plain.items():
                model.to(kind)
                image = torch.ones(1, 3, size, size, dtype=kind)
                start = time.perf_counter()
                with torch.enable_grad():
                    model(image).sum().backward()
                seconds.append(time.perf_counter() - start)
                model.zero_grad()
            starts.append(time.perf_counter())
            if done > 12:
                raise _Enough

        with suppress(_Enough):
            precrop.score(model, "synflow", 0.1, input_shape=(3, size, size), progress=report)
        taken = [end - start for start, end in zip(starts, marks[1:], strict=False)]
        ratios = [min(taken) / min(seconds) for seconds in plain.values()]
        lines.append(_row([network, f"{size}×{size}", *(f"{ratio:.2f}" for ratio in ratios)]))
        print(lines[-1], flush=True)
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


SECTIONS = {"densities": densities, "time": times, "rounds": rounds}


def results(chosen: list[str]) -> Iterator[tuple[str, str]]:
    for name in chosen:
        yield name, f"{SECTIONS[name]()}\n\nMeasured on {machine('torch', 'torchvision', 'scikit-learn')}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, text in results(args.sections or list(SECTIONS)):
        print(f"\n{text}\n", flush=True)
        if args.write is not None:
            page = args.write.read_text()
            begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
            before, _, rest = page.partition(begin)
            _, _, after = rest.partition(end)
            args.write.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    main()

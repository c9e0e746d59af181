"""One GPU, eight minutes: is a crop faster to train and to run there, and does all of precrop that uses a GPU work?

    python -m pip install torch torchvision numpy scipy pydantic safetensors
    PYTHONPATH=. python benchmarks/gpu_check.py [--minutes 8] [--json gpu.json]

runs from a checkout and needs torch ≥ 2.9 built for CUDA (with its own Triton and a C compiler for torch.compile).
Where `tensorrt` or `tensorrt_rtx` is installed as well, and onnx, onnxscript and onnxruntime, engines are built too.

First it checks, against the CPU: outputs of crops, scores, a step in float16. Then it measures each network dense and
cropped, in turns, by CUDA events, the most telling first: training steps in channels_last (AMP in float16 and bfloat16,
TF32, float32), inference in PyTorch's eager mode, the same kernels replayed from a CUDA graph, torch.compile with CUDA
graphs, and TensorRT. *Realised* is the speed-up times the MACs ratio: 1 when half the MACs take half the time. Each
row is printed, and the JSON file written anew, as soon as it is measured; what the time does not allow is listed as
skipped. The exit status is 1 if a check failed.

    python benchmarks/gpu_check.py --tiny     on a CPU in a minute: does the script run?
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_correct import amp_steps_are_finite, outputs_match, scores_match
from gpu_measure import ENGINES, INFERENCE, Setting, Subject, forget, infer, subjects, train
from gpu_order import ORDER, ORDER_TINY, PAIR
from gpu_record import Check, OutOfTime, Record, describe

from precrop.errors import MissingExtraError
from precrop.export.machine import gpu, processor, versions

NETWORKS = (
    "torchvision/resnet50",
    "torchvision/mobilenet_v2",
    "torchvision/shufflenet_v2_x1_0",
    "torchvision/efficientnet_b0",
)
TINY = ("torchvision/shufflenet_v2_x1_0",)
# Network and pixels: SynFlow takes a hundred passes, on the CPU as well.
SCORED, SCORED_TINY = ("torchvision/mobilenet_v2", 64), ("precrop/resnet20", 32)
PARTS = ("checks", "train", *ENGINES)
ON_GPU_ONLY = ("cuda-graph", "tensorrt")
# Seconds that the first task of a kind is thought to take; afterwards the longest that was seen.
FIRST_GUESS_S = {
    "checks": 20.0,
    "train": 10.0,
    "eager": 10.0,
    "cuda-graph": 10.0,
    "tensorrt": 60.0,
    "torch-compile": 60.0,
}


@dataclass(frozen=True)
class Task:
    """Something to do; ``part`` is what tasks of about the same length have in common."""

    title: str
    part: str
    do: Callable[[], None]


class Networks:
    """The subjects of each network, built when they are first asked for."""

    def __init__(self, image: int, device: str) -> None:
        self.image, self.device = image, device
        self.built: dict[str, dict[str, Subject]] = {}

    def of(self, name: str, crops: tuple[str, ...]) -> list[Subject]:
        known = self.built.setdefault(name, {})
        missing = [crop for crop in crops if crop not in known]
        if missing:
            known |= {subject.crop: subject for subject in subjects(name, missing, self.image, self.device)}
        return [known[crop] for crop in crops]


def main() -> None:
    args = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.tiny:
        sys.exit(
            f"error: PyTorch {torch.__version__} finds no NVIDIA GPU. Run this where there is one, or with --tiny to "
            "see whether the script works."
        )
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.benchmark = True  # shapes are fixed: let cuDNN try its kernels
    batches = (1, 2) if args.tiny else (1, 32, 128)
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            device=device,
            seconds=0.1 if args.tiny else 1.2,
            most_rounds=3 if args.tiny else 100,
            batches=batches,
            train_batch=4 if args.tiny else 128,
            folder=Path(folder),
        )
        record = Record(machine(device), settings(args, setting), args.json)
        print(describe(record), flush=True)
        run(tasks(args, setting, record), args.minutes * 60, record, device)
    record.clocks["end"] = gpu(clocks=True)
    record.save()
    print(f"\n{record.summary()}\n\n{time.monotonic() - record.begun:.0f} s of {args.minutes * 60:.0f} s.")
    sys.exit(1 if record.failed else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--minutes", type=float, default=8.0, help="when to stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all that is found")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to do")
    parser.add_argument("--image", type=int, help="pixels (224)")
    parser.add_argument("--tiny", action="store_true", help="one network, small images, few rounds; runs on a CPU")
    args = parser.parse_args()
    args.networks = args.networks or (TINY if args.tiny else NETWORKS)
    args.image = args.image or (64 if args.tiny else 224)
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"cannot write {args.json}: its folder does not exist. Create it first.")
    if args.minutes <= 0:
        parser.error(f"--minutes is {args.minutes:g}; expected a positive number.")
    return args


def tasks(args: argparse.Namespace, setting: Setting, record: Record) -> list[Task]:
    """All that there is to do, in its order."""
    networks = Networks(args.image, setting.device)
    found = []
    if "checks" in args.only:
        for name in args.networks:
            found += checks_of(name, networks, setting, record)
        for scorer in ("synflow", "snip"):
            check = scoring_check(scorer, SCORED_TINY if args.tiny else SCORED, setting, record)
            found.append(Task(f"densities of {scorer}", "checks", check))
    for part, precision, batch, crops in ORDER_TINY if args.tiny else ORDER:
        if part not in args.only:
            continue
        for name in args.networks:
            title = f"{part} {precision} {name}" + (f" batch {batch}" if batch else "")
            found.append(Task(title, part, measurement(part, precision, batch, name, crops, networks, setting, record)))
    return found


def checks_of(name: str, networks: Networks, setting: Setting, record: Record) -> list[Task]:
    def outputs() -> None:
        record.check(outputs_match(networks.of(name, PAIR)[1], setting.device))

    def amp() -> None:
        record.check(amp_steps_are_finite(networks.of(name, PAIR)[1], setting.device, min(32, setting.train_batch)))

    return [Task(f"outputs of {name}", "checks", outputs), Task(f"float16 steps of {name}", "checks", amp)]


def scoring_check(scorer: str, scored: tuple[str, int], setting: Setting, record: Record) -> Callable[[], None]:
    return lambda: record.check(scores_match(scorer, *scored, setting.device))


def measurement(
    part: str,
    precision: str,
    batch: int | None,
    name: str,
    crops: tuple[str, ...],
    networks: Networks,
    setting: Setting,
    record: Record,
) -> Callable[[], None]:
    def do() -> None:
        chosen = networks.of(name, crops)
        rows = infer(chosen, part, precision, batch, setting) if batch else train(chosen, precision, setting)
        for row in rows:
            record.add(row)
            if row.error is not None and not row.error <= INFERENCE[precision][2]:
                seen = f"error {row.error:.1e} of the largest output, allowed {INFERENCE[precision][2]:g}"
                record.check(Check(f"outputs of {row.network} {row.crop} in {part} {precision}", False, seen))

    return do


def run(found: list[Task], seconds: float, record: Record, device: str) -> None:
    """Do what the time allows; a fault in one task is told, and the next is begun."""
    end = record.begun + seconds
    longest = dict(FIRST_GUESS_S)
    seen: set[str] = set()
    unable: dict[str, str] = {}
    alarm = Alarm(end - time.monotonic())
    for task in found:
        left, needed = end - time.monotonic(), longest[task.part]
        if task.part in unable or (task.part in ON_GPU_ONLY and device != "cuda"):
            record.skip(task.title, unable.get(task.part, "needs a GPU"))
            continue
        if left < needed:
            record.skip(task.title, f"{max(0.0, left):.0f} s were left, and it takes about {needed:.0f} s")
            continue
        begun = time.monotonic()
        try:
            with alarm:
                task.do()
        except OutOfTime:
            record.skip(task.title, "the time was over before it was done")
        except MissingExtraError as error:
            unable[task.part] = str(error)
            record.skip(task.title, str(error))
        except Exception as error:  # of an engine, of every kind
            reason = str(error).strip().partition("\n")[0]
            record.skip(task.title, f"fails with {type(error).__name__}: {reason}")
            if task.part == "checks" or isinstance(error, FloatingPointError):
                record.check(Check(task.title, False, f"{type(error).__name__}: {reason}"))
        else:
            took = time.monotonic() - begun
            longest[task.part] = max(took, longest[task.part]) if task.part in seen else took
            seen.add(task.part)
        forget(device, task.part)
        if device == "cuda" and "under load" not in record.clocks and task.part == "train":
            record.clocks["under load"] = gpu(clocks=True)


class Alarm:
    """Raises `OutOfTime` inside its ``with`` block when the seconds are over, where the system has such a signal."""

    def __init__(self, seconds: float) -> None:
        self.armed = False
        if hasattr(signal, "setitimer") and seconds > 0:
            signal.signal(signal.SIGALRM, self._over)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _over(self, *_: object) -> None:
        if self.armed:
            raise OutOfTime

    def __enter__(self) -> None:
        self.armed = True

    def __exit__(self, *_: object) -> None:
        self.armed = False


def machine(device: str) -> dict[str, Any]:
    cudnn = torch.backends.cudnn.version() if device == "cuda" else None
    return {"gpu": gpu(clocks=True), "processor": processor(), "cudnn": cudnn, "versions": versions()}


def settings(args: argparse.Namespace, setting: Setting) -> dict[str, Any]:
    return {
        "minutes": args.minutes,
        "networks": list(args.networks),
        "image": args.image,
        "device": setting.device,
        "train_batch": setting.train_batch,
        "seconds_each": setting.seconds,
        "most_rounds": setting.most_rounds,
        "memory_format": "channels_last",
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


if __name__ == "__main__":
    main()

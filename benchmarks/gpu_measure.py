"""Training steps and inference of a dense network and its crops, in turns, timed by the GPU's own events."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from gpu_record import DENSE, Row
from torch import nn
from torch.nn import functional

import precrop
from precrop.crop_plan import CropPlan
from precrop.export.backends import BACKENDS, BuildSettings, Runner, RunSettings
from precrop.export.backends.torch import TorchRunner, cuda_time_ms
from precrop.export.timing import interleaved_ms, realised_share, speedup

CROPS: dict[str, dict[str, float]] = {
    DENSE: {},
    "macs 0.5": {"macs": 0.5},
    "params 0.5": {"params": 0.5},
    "macs 0.25": {"macs": 0.25},
}
REFERENCE_IMAGES = 2  # compared with float32 on the CPU
SCALES = 24  # halvings from the scaler's first scale to where only a gradient that is no number overflows
SEED = 0

# What a training step computes in: the type under autocast (none: float32) and whether float32 may be TF32.
TRAINING: dict[str, tuple[torch.dtype | None, bool]] = {
    "amp-fp16": (torch.float16, True),
    "amp-bf16": (torch.bfloat16, True),
    "tf32": (None, True),
    "fp32": (None, False),
}
# What an inference computes in: the precision of `RunSettings`, whether float32 may be TF32, and the error allowed as a
# share of the largest output. TF32 keeps as many bits of a factor as float16 does.
INFERENCE: dict[str, tuple[str, bool, float]] = {
    "fp16": ("fp16", True, 5e-2),
    "tf32": ("fp32", True, 5e-2),
    "fp32": ("fp32", False, 1e-3),
}


@dataclass
class Subject:
    """A network on the CPU, in inference mode, dense or cropped."""

    network: str
    crop: str
    model: nn.Module
    params_ratio: float
    macs_ratio: float
    input_shape: tuple[int, ...]
    reference: np.ndarray[Any, Any]  # (REFERENCE_IMAGES, classes), float32 on the CPU


@dataclass(frozen=True)
class Setting:
    """Where and how long: ``seconds`` and ``most_rounds`` are of one measurement, ``folder`` is for engines' files."""

    device: str
    seconds: float
    most_rounds: int
    batches: tuple[int, ...]
    train_batch: int
    folder: Path


class Timed(Protocol):
    """Something that can be run and timed."""

    def time_ms(self) -> float: ...


def subjects(name: str, crops: Sequence[str], image: int, device: str) -> list[Subject]:
    """The network dense and cropped, with the statistics of its norms settled on random images."""
    torch.manual_seed(SEED)
    shape = (3, image, image)
    dense = precrop.create_model(name).eval()
    whole = precrop.plan(dense, 1.0, input_shape=shape)
    found = []
    for crop in crops:
        model = precrop.precrop(dense, input_shape=shape, **CROPS[crop]) if CROPS[crop] else copy.deepcopy(dense)
        plan: CropPlan = getattr(model, "crop_plan", whole)
        settle(model, shape, device)
        with torch.inference_mode():
            reference = model(torch.from_numpy(images(REFERENCE_IMAGES, shape))).numpy()
        title = name.rpartition("/")[2]
        found.append(Subject(title, crop, model, plan.params_ratio, plan.macs_ratio, shape, reference))
    return found


def settle(model: nn.Module, shape: tuple[int, ...], device: str) -> None:
    """Give the norms the statistics of random images: with those of a fresh network float16 may overflow."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None  # the average of all that is seen
        norm.reset_running_stats()
    with torch.no_grad():
        model.to(device).train()(torch.from_numpy(images(16, shape)).to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.cpu().eval()


def images(count: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Standard normal images; the first ones are the same in every batch size."""
    found: np.ndarray[Any, Any] = np.random.default_rng(SEED).standard_normal((count, *shape), dtype=np.float32)
    return found


def allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


class TrainStep:
    """A copy of a network with its optimizer and a batch on the device, in channels_last."""

    def __init__(self, subject: Subject, precision: str, batch: int, device: str) -> None:
        self.dtype, _ = TRAINING[precision]
        self.device = device
        self.model = copy.deepcopy(subject.model).train().to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device, enabled=self.dtype is torch.float16)
        source = torch.from_numpy(images(batch, subject.input_shape))
        self.images = source.to(device, memory_format=torch.channels_last)
        classes = subject.reference.shape[1]
        self.labels = torch.randint(classes, (batch,), generator=torch.Generator().manual_seed(SEED)).to(device)
        self.loss = torch.zeros(())

    def step(self) -> None:
        """Forward, cross-entropy, backward, SGD; on a GPU it is only begun."""
        computing = nullcontext() if self.dtype is None else torch.autocast(self.device, self.dtype)
        with computing:
            self.loss = functional.cross_entropy(self.model(self.images), self.labels)
        self.scaler.scale(self.loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def settle_scale(self) -> None:
        """Step until the scaler's scale lets one through: the first in float16 overflow and are left out."""
        for _ in range(SCALES if self.scaler.is_enabled() else 0):
            before = self.scaler.get_scale()
            self.step()
            if self.scaler.get_scale() >= before:
                return
        if self.scaler.is_enabled():
            raise FloatingPointError(f"gradients in float16 are not finite even scaled by {self.scaler.get_scale():g}")

    def time_ms(self) -> float:
        """One step, between two events of the GPU, or by the wall clock."""
        if self.device == "cuda":
            return cuda_time_ms(self.step)
        start = time.perf_counter()
        self.step()
        return (time.perf_counter() - start) * 1e3


class GraphRunner(TorchRunner):
    """PyTorch's own kernels replayed from a CUDA graph: what eager costs without its launches."""

    def open(self) -> None:
        super().open()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                super().run()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            super().run()

    def run(self) -> None:
        self.graph.replay()


def torch_engine(kind: type[Runner]) -> Callable[[Subject, Any, RunSettings, Setting], Runner]:
    return lambda subject, batch, settings, setting: kind(subject.model, batch, settings)


def tensorrt_engine(subject: Subject, batch: Any, settings: RunSettings, setting: Setting) -> Runner:
    """An engine for all batch sizes, built once."""
    from precrop.export import export_onnx

    backend = BACKENDS["tensorrt"]
    assert backend.build is not None
    name = f"{subject.network} {subject.crop} {settings.precision}"
    path = setting.folder / f"{name}.plan"
    if not path.exists():
        graph = setting.folder / f"{name}.onnx"
        # Fresh weights pass rounding on with more gain than trained ones; `INFERENCE` has what is allowed in the end.
        allowed = max(row[2] for row in INFERENCE.values() if row[0] == settings.precision)
        export_onnx(subject.model, graph, subject.input_shape, precision=settings.precision, tolerance=allowed)
        backend.build(graph, path, BuildSettings(subject.input_shape, setting.batches, settings.precision))
    return backend.runner(path, batch, settings)


ENGINES: dict[str, Callable[[Subject, Any, RunSettings, Setting], Runner]] = {
    "eager": torch_engine(BACKENDS["torch"].runner),
    "cuda-graph": torch_engine(GraphRunner),
    "torch-compile": torch_engine(BACKENDS["torch-compile"].runner),
    "tensorrt": tensorrt_engine,
}


def train(chosen: Sequence[Subject], precision: str, setting: Setting) -> list[Row]:
    """Step times; raises `FloatingPointError` for a loss that is not finite."""
    allow_tf32(TRAINING[precision][1])
    steps = [TrainStep(subject, precision, setting.train_batch, setting.device) for subject in chosen]
    for step in steps:
        step.settle_scale()
    rows = rows_of("train", precision, setting.train_batch, chosen, steps, setting)
    for subject, step in zip(chosen, steps, strict=True):
        if not torch.isfinite(step.loss):
            raise FloatingPointError(f"the loss of {subject.network} {subject.crop} became {step.loss.item()}")
    return rows


def infer(chosen: Sequence[Subject], engine: str, precision: str, batch: int, setting: Setting) -> list[Row]:
    """Latencies in one engine, and how far its outputs are off."""
    kind, tf32, _ = INFERENCE[precision]
    allow_tf32(tf32)
    settings = RunSettings(torch.get_num_threads(), setting.device, kind)
    with ExitStack() as stack:
        runners: list[Runner] = []
        errors = []
        for subject in chosen:
            source = images(batch, subject.input_shape)
            runners.append(stack.enter_context(ENGINES[engine](subject, source, settings, setting)))
            runners[-1].run()
            errors.append(error_of(runners[-1].output(), subject.reference))
        return rows_of(engine, precision, batch, chosen, runners, setting, errors)


def error_of(output: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    """Largest difference as a share of the largest output; the batch may hold fewer images than the reference."""
    count = min(len(output), len(reference))
    return float(np.abs(output[:count] - reference[:count]).max() / np.abs(reference[:count]).max())


def rows_of(
    what: str,
    precision: str,
    batch: int,
    chosen: Sequence[Subject],
    timed: Sequence[Timed],
    setting: Setting,
    errors: Sequence[float] | None = None,
) -> list[Row]:
    """Time them in turns, for about ``setting.seconds``; the first is what the others are compared with."""
    for entry in timed:  # the first pass chooses kernels
        entry.time_ms()
    round_s = sum(entry.time_ms() for entry in timed) / 1e3
    rounds = max(2, min(setting.most_rounds, int(setting.seconds / round_s)))
    taken_ms = interleaved_ms([entry.time_ms for entry in timed], max(1, rounds // 5), rounds)
    rows = []
    for i, subject in enumerate(chosen):
        faster = speedup(taken_ms[:, 0], taken_ms[:, i])
        median_ms = float(np.median(taken_ms[:, i]))
        rows.append(
            Row(
                what=what,
                precision=precision,
                batch=batch,
                network=subject.network,
                crop=subject.crop,
                params_ratio=subject.params_ratio,
                macs_ratio=subject.macs_ratio,
                median_ms=median_ms,
                images_per_s=batch / median_ms * 1e3,
                speedup=faster.median,
                speedup_low=faster.low,
                speedup_high=faster.high,
                realised_share=realised_share(faster.median, subject.macs_ratio),
                rounds=rounds,
                error=None if errors is None else errors[i],
            )
        )
    return rows


def forget(device: str, engine: str) -> None:
    """Give back what the last measurement took."""
    if engine == "torch-compile":
        torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()

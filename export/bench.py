"""Measure networks against one another in one engine: dense and cropped, in turns, in one process.

The first is the reference. What is told of each is its median and 99 % time, images a second, the speed-up with its
spread and the realised share (`precrop.export.timing`).
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precrop.cropping.copying import copy_structure
from precrop.errors import ExportError
from precrop.export.backends import Backend, BuildSettings, LayerTime, Runner, RunSettings, backend_named, named
from precrop.export.calibration import calibration_batches
from precrop.export.front import checked_batch, checked_calibration, image_shape
from precrop.export.graph import computes_in, count_macs, input_of, module_names, read_graph
from precrop.export.machine import gpu, processor, versions
from precrop.export.onnx import export_onnx
from precrop.export.precision import checked_precision
from precrop.export.timing import interleaved_ms, realised_share, speedup

ROUNDS, WARMUP = 200, 20
LAYER_ROUNDS = 50
Source = nn.Module | str | Path
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class BenchRow:
    """One network at one batch size; ``speedup`` and what follows are against the reference at the same batch size.

    ``speedup_low`` and ``speedup_high`` are the 5 % and 95 % quantiles over the rounds.
    """

    name: str
    batch: int
    macs: int
    macs_ratio: float
    median_ms: float
    p99_ms: float
    images_per_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    realised_share: float


@dataclass(frozen=True)
class BenchResult:
    """What was measured, how, and on what."""

    rows: tuple[BenchRow, ...]
    backend: str
    precision: str
    threads: int
    device: str
    rounds: int
    warmup: int
    machine: dict[str, Any]
    layers: Mapping[str, tuple[LayerTime, ...]]

    def to_json(self) -> str:
        """All of it."""
        return json.dumps(asdict(self), indent=2)

    def to_csv(self) -> str:
        """A line for each network and batch size."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(asdict(self.rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self.rows)
        return text.getvalue()


def bench(
    networks: Mapping[str, Source],
    backend: str = "onnxruntime",
    *,
    batch: int | Sequence[int] = 1,
    threads: int = 1,
    precision: str = "fp32",
    device: str | None = None,
    calibration: Any = None,
    input_shape: Sequence[int] | None = None,
    rounds: int = ROUNDS,
    warmup: int = WARMUP,
    layers: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Time networks in an engine, in turns.

    Args:
        networks: name to a network or an ONNX file; the first is what the others are compared with.
        backend: a name of `precrop.export.BACKENDS`.
        batch: images per run; each size is measured on its own.
        threads: threads within an operator, on a CPU.
        precision: what the networks compute in; an ONNX file must have been exported so (OpenVINO computes in fp16
            and bf16 from float32 files as well).
        device: ``"cpu"`` or ``"cuda"``; by default the backend's first.
        calibration: batches of images for int8.
        input_shape: one image's (C, H, W); by default found from each model.
        rounds: rounds that count; in each every network runs once.
        warmup: rounds that do not.
        layers: measure each layer as well, at the first batch size.
        seed: of the standard normal images.
        progress: called with a line on what is being done.

    Raises:
        MissingExtraError: the engine is not installed.
        ExportError: an unknown backend, a precision or a device that it has not, no networks, a file that
            it cannot run.
    """
    row = backend_named(backend)
    checked_precision(precision, row.runs, f"the backend {backend}")
    sizes = checked_batch(batch)
    device = device or row.devices[0]
    if device not in row.devices:
        raise ExportError(f"the backend {backend} runs on {' or '.join(row.devices)}, got {device!r}.")
    for name, count, least in (("threads", threads, 1), ("rounds", rounds, 1), ("warmup", warmup, 0)):
        if count < least:
            raise ExportError(f"got {name}={count}; expected at least {least}.")
    checked_calibration(precision, calibration)
    if device == "cuda" and not torch.cuda.is_available():
        raise ExportError(f"the backend {backend} is to run on an NVIDIA GPU, and PyTorch finds none here.")
    if not networks:
        raise ExportError("there is nothing to measure: expected at least one network.")
    row.check()
    say = progress or (lambda line: None)
    with tempfile.TemporaryDirectory() as folder:
        prepared: list[_Prepared] = []
        for name, source in networks.items():
            say(f"preparing {name}")
            place = Path(folder, str(len(prepared)))
            place.mkdir()
            if isinstance(source, nn.Module):
                network = copy_structure(source, {}).to("cpu", torch.float32).eval()
                shape = image_shape(network, input_shape)
                if precision == "int8" and not isinstance(calibration, list):
                    # Read once: a loader that shuffles would give each network ranges of other images.
                    calibration = calibration_batches(calibration, shape)
                prepared.append(_of_network(name, network, shape, row, precision, calibration, place, seed))
            else:
                prepared.append(_of_file(name, Path(source), row, precision, place))
        settings = RunSettings(threads, device, precision)
        shapes = {entry.shape for entry in prepared}
        if len(shapes) > 1:
            listed = ", ".join(f"{entry.name} {'x'.join(map(str, entry.shape))}" for entry in prepared)
            raise ExportError(
                f"the networks take images of different shapes ({listed}); expected one shape. Pass input_shape=."
            )
        rows: list[BenchRow] = []
        times_by_layer: dict[str, tuple[LayerTime, ...]] = {}
        for size in sizes:
            say(f"loading at batch {size}")
            images: Any = np.random.default_rng(seed).standard_normal((size, *prepared[0].shape), dtype=np.float32)
            with ExitStack() as stack:
                runners: list[Runner] = [
                    stack.enter_context(row.runner(entry.for_batch(size), images, settings)) for entry in prepared
                ]

                def report(done: int, of: int, size: int = size) -> None:
                    say(f"batch {size}: round {done} of {of}")

                taken_ms = interleaved_ms([runner.time_ms for runner in runners], warmup, rounds, report)
                rows += [_row(entry, prepared[0], size, taken_ms, i) for i, entry in enumerate(prepared)]
                if layers and size == sizes[0]:
                    for entry, runner in zip(prepared, runners, strict=True):
                        say(f"layers of {entry.name}")
                        found = runner.layers(max(1, min(rounds, LAYER_ROUNDS)))
                        times_by_layer[entry.name] = tuple(named(found, entry.modules()))
    on_gpu = device == "cuda"
    machine = {"processor": processor(), "gpu": gpu(clocks=True) if on_gpu else None, "versions": versions()}
    return BenchResult(tuple(rows), backend, precision, threads, device, rounds, warmup, machine, times_by_layer)


@dataclass
class _Prepared:
    """A network as its backend runs it, and its multiply-adds; ``onnx`` where the backend reads a file."""

    name: str
    backend: Backend
    precision: str
    folder: Path
    shape: tuple[int, ...]
    macs: int
    network: nn.Module | None = None
    onnx: Path | None = None

    def modules(self) -> dict[str, str]:
        """Names in the graph to the names of the network's modules."""
        return {} if self.onnx is None else module_names(read_graph(self.onnx))

    def for_batch(self, size: int) -> Any:
        """What a runner is given: the network, or a file built for this batch size."""
        if self.onnx is None:
            return self.network
        if self.backend.format == "onnx":
            return self.onnx
        path = self.folder / f"batch{size}{self.backend.suffixes[0]}"
        self.backend.write(self.onnx, path, BuildSettings(self.shape, (size,), self.precision))
        return path


def _of_file(name: str, path: Path, backend: Backend, precision: str, folder: Path) -> _Prepared:
    """An ONNX file."""
    graph = read_graph(path)
    if backend.format is None:
        raise ExportError(
            f"{path} is an ONNX file, which {backend.title} does not run. Pass its checkpoint, or choose onnxruntime, "
            "openvino or tensorrt."
        )
    found = computes_in(graph)
    if not backend.runs_file_of(found, precision):
        raise ExportError(
            f"{path} computes in {found}, and the precision is {precision}. Pass precision={found!r} (--precision "
            f"{found}), or export the network in {precision}."
        )
    return _Prepared(name, backend, precision, folder, input_of(graph, path), count_macs(graph), onnx=path)


def _of_network(
    name: str,
    network: nn.Module,
    shape: tuple[int, ...],
    backend: Backend,
    precision: str,
    calibration: Any,
    folder: Path,
    seed: int,
) -> _Prepared:
    """A network, exported if the backend reads files."""
    from precrop import api

    traced = api.inspect(network, shape)
    prepared = _Prepared(name, backend, precision, folder, shape, traced.size(traced.original).macs, network)
    if backend.format is not None:
        prepared.onnx = folder / "network.onnx"
        export_onnx(
            network,
            prepared.onnx,
            shape,
            precision=backend.graph_precision(precision),
            calibration=calibration,
            seed=seed,
        )
    return prepared


def _row(entry: _Prepared, reference: _Prepared, size: int, taken_ms: np.ndarray[Any, Any], index: int) -> BenchRow:
    own = taken_ms[:, index]
    faster = speedup(taken_ms[:, 0], own)
    macs_ratio = entry.macs / reference.macs
    median_ms = float(np.median(own))
    return BenchRow(
        name=entry.name,
        batch=size,
        macs=entry.macs,
        macs_ratio=macs_ratio,
        median_ms=median_ms,
        p99_ms=float(np.percentile(own, 99)),
        images_per_s=size / median_ms * 1e3,
        speedup=faster.median,
        speedup_low=faster.low,
        speedup_high=faster.high,
        realised_share=realised_share(faster.median, macs_ratio),
    )

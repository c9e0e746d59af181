"""What a backend is: a row that says what it reads and writes, a builder, and a runner."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from precrop.errors import ExportError
from precrop.export.extras import require
from precrop.export.graph import module_of

Images = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LayerTime:
    """The time of one layer as its engine sees it; ``layer`` is the module of the network, where that is known."""

    name: str
    kind: str
    ms: float
    layer: str = ""


def named(layers: list[LayerTime], modules: Mapping[str, str]) -> list[LayerTime]:
    """The layers with the modules that they compute, by the names that `precrop.export.graph.module_names` gave."""
    return [replace(layer, layer=layer.layer or module_of(layer.name, modules)) for layer in layers]


@dataclass(frozen=True)
class RunSettings:
    """How a network is run: threads within an operator, ``cpu`` or ``cuda``, and what it computes in."""

    threads: int = 1
    device: str = "cpu"
    precision: str = "fp32"


@dataclass(frozen=True)
class BuildSettings:
    """What a builder is told beside the ONNX file: one image's shape, batch sizes, precision."""

    input_shape: tuple[int, ...]
    batch: tuple[int, ...]
    precision: str = "fp32"


class Runner(ABC):
    """A network in its engine with one batch of input in place; open it with ``with``.

    ``source`` is a file that the backend reads, or the network itself. `run` is one pass, whatever it takes for its
    results to be there; `time_ms` is the time of one; `output` is what the last one gave, (N, classes) float32.
    """

    def __init__(self, source: Any, images: Images, settings: RunSettings | None = None) -> None:
        self.source = source
        self.images = images
        self.settings = settings or RunSettings()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def open(self) -> None:
        """Load the network and put the input in place; raises `ExportError`."""

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what `open` took."""

    @abstractmethod
    def run(self) -> None:
        """One pass."""

    @abstractmethod
    def output(self) -> Images:
        """What the last pass gave."""

    def time_ms(self) -> float:
        """The time of one pass, by the wall clock."""
        start = time.perf_counter()
        self.run()
        return (time.perf_counter() - start) * 1e3

    def layers(self, rounds: int) -> list[LayerTime]:
        """Each layer's time, in the order in which they run: the median of ``rounds`` passes."""
        raise ExportError(f"{type(self).__name__} has no times by layer.")


@dataclass(frozen=True)
class Backend:
    """A row of `BACKENDS`.

    ``extra`` and ``modules`` are what must be installed; ``runs`` are the precisions that it runs; ``format`` is what
    ``precrop export --to`` calls its files and ``suffixes`` how their names end (none: it runs the network itself),
    and ``writes`` the precisions of those files. ``build(onnx, path, settings)`` writes a file from an ONNX file and
    returns facts for the sidecar; ``companions`` names the files that belong to the one written. ``converts`` are the
    precisions that it makes of a float32 graph as it builds, ``casts`` those in which it runs a float32 file.
    ``found`` looks for a package that is one of several, and raises `MissingExtraError`.
    """

    title: str
    extra: str
    modules: tuple[str, ...]
    runs: tuple[str, ...]
    runner: type[Runner]
    devices: tuple[str, ...] = ("cpu",)
    format: str | None = None
    suffixes: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    build: Callable[[Path, Path, BuildSettings], dict[str, Any]] | None = None
    companions: Callable[[Path], tuple[Path, ...]] = field(default=lambda path: ())
    converts: tuple[str, ...] = ()
    casts: tuple[str, ...] = ()
    found: Callable[[], Any] = field(default=lambda: None)

    def graph_precision(self, precision: str) -> str:
        """The precision of the ONNX graph that a file of this one is built from."""
        return "fp32" if precision in self.converts else precision

    def runs_file_of(self, found: str, precision: str) -> bool:
        """Whether it runs an ONNX file that computes in ``found`` as one of ``precision``."""
        return found == precision or (found == "fp32" and precision in self.casts)

    def write(self, onnx: Path, path: Path, settings: BuildSettings) -> dict[str, Any]:
        """Write a file from an ONNX file with its `build`; raises `ExportError` where it has none."""
        if self.build is None:
            raise ExportError(f"{self.title} has no files of its own. Choose a backend that builds one.")
        return self.build(onnx, path, settings)

    def check(self) -> None:
        """Raise `MissingExtraError` if what the backend needs is not installed."""
        require(self.extra, *self.modules)
        self.found()

"""TensorRT: the ``tensorrt`` package, versions 10 and 11, or ``tensorrt_rtx``; one code path for all three.

Networks are strongly typed: an engine computes in the types that the ONNX graph says, and there are no flags for
precision. What differs is small and asked for by name: TensorRT times kernels while it builds, and keeps the times in a
cache beside the engine. TensorRT for RTX chooses kernels when the engine is loaded, and builds without a GPU; a timing
cache would change nothing and make it ask for one.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from precrop.errors import ExportError, MissingExtraError, PrecropError
from precrop.export.backends.base import Backend, BuildSettings, Images, LayerTime, Runner
from precrop.export.graph import module_names, read_graph
from precrop.files import parsed_json, write_atomically

PACKAGES = ("tensorrt", "tensorrt_rtx")
_loggers: dict[str, Any] = {}


def package(name: str | None = None) -> ModuleType:
    """The TensorRT package of this name, or the first that can be imported; raises `MissingExtraError`.

    Raises `ExportError` for another name than those of `PACKAGES`: it comes from a file.
    """
    if name is not None and name not in PACKAGES:
        raise ExportError(f"an engine of the package {name!a}; expected one of {', '.join(PACKAGES)}.")
    faults = []
    for candidate in (name,) if name else PACKAGES:
        try:
            return import_module(candidate)
        except ImportError as error:
            faults.append(f"{candidate} ({error})")
    raise MissingExtraError(
        f"cannot import {' or '.join(faults)}. Install TensorRT with: pip install 'precrop[tensorrt]', or TensorRT for "
        "RTX, which builds engines without a GPU, with: pip install 'precrop[tensorrt-rtx]'"
    )


@contextmanager
def _messages(trt: Any) -> Iterator[list[str]]:
    """What TensorRT says of errors inside the block. It takes one logger for a process, so that one is kept."""
    if trt.__name__ not in _loggers:

        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.errors: list[str] = []

            def log(self, severity: Any, message: str) -> None:
                if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                    self.errors.append(message)

        _loggers[trt.__name__] = Logger()
    logger = _loggers[trt.__name__]
    logger.errors.clear()
    yield logger.errors


def build(onnx: Path, path: Path, settings: BuildSettings) -> dict[str, Any]:
    """Build an engine for the batch sizes given: the least, the one it is made best for, the most.

    Raises `ExportError` with the parser's own message and the layer, or the builder's.
    """
    trt = package()
    with _messages(trt) as errors:
        logger = _loggers[trt.__name__]
        builder = _made(trt.Builder, logger, errors, "a builder")
        # Version 10 must be told; 11 knows nothing else, and takes the flag as before.
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        if not parser.parse(onnx.read_bytes()):
            raise ExportError(_refused(parser, onnx))
        config = builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # layers keep their names in the report
        profile = builder.create_optimization_profile()
        low, best, high = batch_range(settings.batch)
        profile.set_shape("input", *((size, *settings.input_shape) for size in (low, best, high)))
        config.add_optimization_profile(profile)
        cache = _timing_cache(trt, config, path)
        engine = builder.build_serialized_network(network, config)
        if engine is None:
            raise ExportError(f"TensorRT cannot build the engine: {telling(errors) or 'it says nothing of why'}.")
        path.write_bytes(memoryview(engine))
        if cache is not None:
            with suppress(PrecropError):  # only the next build's time depends on it
                write_atomically(cache, bytes(memoryview(config.get_timing_cache().serialize())))
    return {
        "package": trt.__name__,
        "package_version": trt.__version__,
        "profile": {"min": low, "opt": best, "max": high},
        "tf32": bool(config.get_flag(trt.BuilderFlag.TF32)),
        "timing_cache": None if cache is None else cache.name,
    }


def _made(kind: Any, logger: Any, errors: list[str], what: str) -> Any:
    """A builder or a runtime; raises `ExportError` where the package cannot make one, as without a driver."""
    try:
        return kind(logger)
    except TypeError as error:  # what the bindings make of a null pointer
        raise ExportError(
            f"TensorRT cannot make {what}: {telling(errors) or error}. It needs an NVIDIA GPU and its driver here; "
            "TensorRT for RTX builds engines without: pip install 'precrop[tensorrt-rtx]'."
        ) from error


def batch_range(batch: tuple[int, ...]) -> tuple[int, int, int]:
    """The least, the middle and the largest of the batch sizes: what an optimization profile is made of."""
    ordered = sorted(batch)
    return ordered[0], ordered[len(ordered) // 2], ordered[-1]


def _timing_cache(trt: Any, config: Any, path: Path) -> Path | None:
    """Give the builder the times of earlier builds in this folder; the file where they are kept, if any."""
    if trt.__name__ != "tensorrt":
        return None
    cache = path.parent / f"tensorrt-{trt.__version__}.timing"
    content = cache.read_bytes() if cache.is_file() else b""
    # A cache of another GPU is refused by the builder, which then begins an empty one.
    if not config.set_timing_cache(config.create_timing_cache(content), False):
        config.set_timing_cache(config.create_timing_cache(b""), False)
    return cache


def _refused(parser: Any, onnx: Path) -> str:
    """The parser's own message, with the operator, the node and the module that it came from."""
    graph = read_graph(onnx)
    modules = module_names(graph)
    faults = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        message = telling(error.desc().splitlines()) or "no reason given"
        operator, node = error.node_operator(), error.node_name()
        if not node:  # a constant that cannot be read: told by the node that takes it
            words = set(re.split(r"\W+", message))
            taker = next((entry for entry in graph.graph.node if words & set(entry.input)), None)
            operator, node = (taker.op_type, taker.name) if taker is not None else ("unknown", f"{error.node()}")
        where = f" of layer {modules[node]}" if modules.get(node) else ""
        faults.append(f"operator {operator} (node {node}{where}): {error.code().name}: {message}")
    return (
        f"TensorRT's parser refuses the network: {'; '.join(faults) or 'it says nothing of why'}. Replace the operator "
        "in the network, or run the ONNX file in ONNX Runtime."
    )


def telling(messages: list[str]) -> str:
    """The first of TensorRT's messages that is not the echo of another."""
    echoes = ("[checkMacros", "While parsing", "--- ", "ModelImporter")
    kept = [line.strip() for line in messages if line.strip() and not line.strip().startswith(echoes)]
    return (kept or messages or [""])[0].strip().rstrip(".")


class TensorRTRunner(Runner):
    """An engine on the GPU; input and output stay there, and the time is the GPU's own."""

    def open(self) -> None:
        """Load the engine and put its input on the GPU."""
        import torch

        self.torch = torch
        trt, self.engine = load(Path(self.source))
        self.trt = trt
        self.context = self.engine.create_execution_context()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        (self.input_name,) = (n for n in names if self.engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT)
        (self.output_name,) = (n for n in names if self.engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT)
        if not self.context.set_input_shape(self.input_name, tuple(self.images.shape)):
            low, _, high = self.engine.get_tensor_profile_shape(self.input_name, 0)
            raise ExportError(
                f"the engine {self.source} does not take images {tuple(self.images.shape)}; it was built for "
                f"{tuple(low)} to {tuple(high)}. Export it again with --batch {len(self.images)} among the sizes."
            )
        self.input = torch.from_numpy(self.images).cuda()
        self.result = torch.empty(
            tuple(self.context.get_tensor_shape(self.output_name)), dtype=torch.float32, device="cuda"
        )
        self.context.set_tensor_address(self.input_name, self.input.data_ptr())
        self.context.set_tensor_address(self.output_name, self.result.data_ptr())
        torch.cuda.synchronize()

    def run(self) -> None:
        """Begin one pass on the runner's stream."""
        if not self.context.execute_async_v3(self.stream.cuda_stream):
            raise ExportError(f"the engine {self.source} failed while it ran.")

    def output(self) -> Images:
        """The output, when it is there."""
        self.stream.synchronize()
        found: Images = self.result.cpu().numpy()
        return found

    def time_ms(self) -> float:
        """One pass, between two events of the GPU."""
        from precrop.export.backends.torch import cuda_time_ms

        return cuda_time_ms(self.run, self.stream)

    def layers(self, rounds: int) -> list[LayerTime]:
        """Times of the engine's layers, by its profiler."""
        times: dict[str, list[float]] = {}

        class Profiler(self.trt.IProfiler):  # type: ignore[misc, name-defined]
            def __init__(self, base: Any) -> None:
                base.__init__(self)

            def report_layer_time(self, name: str, ms: float) -> None:
                times.setdefault(name, []).append(ms)

        profiler = Profiler(self.trt.IProfiler)
        self.context.profiler = profiler
        for _ in range(rounds):
            self.run()
            self.stream.synchronize()
        return [LayerTime(name, "", statistics.median(taken)) for name, taken in times.items()]


def load(path: Path) -> tuple[ModuleType, Any]:
    """The package that an engine is for, and the engine; raises `ExportError` that says what does not fit.

    The sidecar beside the engine says what it was built by and for. Without one TensorRT's own message has to do.
    """
    import torch

    if not path.is_file():
        raise ExportError(f"{path}: no such file. Expected an engine that precrop export wrote.")
    beside = path.with_name(path.name + ".json")
    try:
        facts = parsed_json(beside.read_bytes()) if beside.is_file() else {}
        made_by = dict(facts.get("build") or {})
        gpu = dict(facts.get("gpu") or {}).get("name")
    except (OSError, ValueError, AttributeError, TypeError):  # of something else, or damaged
        made_by, gpu = {}, None
    try:
        trt: Any = package(made_by.get("package"))
    except ExportError as error:
        raise ExportError(f"{beside} says that {path} is {error} The sidecar is not of precrop.") from error
    built = f"{path} was built by {made_by.get('package')} {made_by.get('package_version')}"
    with _messages(trt) as errors:
        runtime = _made(trt.Runtime, _loggers[trt.__name__], errors, "a runtime")
        engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is not None:
        return trt, engine
    said = telling(errors) or "it says nothing of why"
    if made_by and made_by.get("package_version") != trt.__version__:
        raise ExportError(
            f"{built}, and this is version {trt.__version__}: an engine is only for the version that built it. Export "
            f"the network again here. ({said})"
        )
    if not torch.cuda.is_available() and "magic" not in said:
        raise ExportError(
            f"cannot load the engine {path}: PyTorch finds no NVIDIA GPU here, and an engine runs on nothing else. "
            f"({said})"
        )
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    if gpu and here and gpu != here:
        raise ExportError(
            f"{built} on {gpu}, and this is {here}: an engine is only for the GPU that it was built on. Export the "
            f"network again here. ({said})"
        )
    raise ExportError(
        f"cannot load the engine {path}: {said}. It is damaged, or of another version of TensorRT or another GPU: "
        "export the network again here."
    )


BACKEND = Backend(
    title="TensorRT",
    extra="tensorrt",
    modules=(),
    runs=("fp32", "fp16", "bf16", "int8"),
    runner=TensorRTRunner,
    devices=("cuda",),
    format="tensorrt",
    suffixes=(".plan", ".engine"),
    writes=("fp32", "fp16", "bf16", "int8"),
    build=build,
    found=package,
)

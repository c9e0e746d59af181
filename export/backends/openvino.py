"""OpenVINO on the CPU: an .xml with the graph beside a .bin with the weights.

A CPU computes in what the `INFERENCE_PRECISION_HINT` says, whatever the file holds, and by default OpenVINO takes
bfloat16 where the processor has it, for float32 files too. So the hint is always set here. fp32 computes in float32.
fp16 keeps the weights in half the space, and computes in float16 where the processor can, else in float32. bf16
computes in bfloat16 where the processor can, else in float32. int8 computes the quantized layers in int8, the rest in
float32.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from precrop.errors import ExportError
from precrop.export.backends.base import Backend, BuildSettings, Images, LayerTime, Runner
from precrop.export.extras import require


def hint(precision: str, capabilities: list[str]) -> str:
    """What the processor is asked to compute in."""
    wanted = {"fp16": ("FP16", "f16"), "bf16": ("BF16", "bf16")}.get(precision)
    return wanted[1] if wanted is not None and wanted[0] in capabilities else "f32"


class OpenVinoRunner(Runner):
    """An .xml or an ONNX file, compiled for one batch size."""

    def open(self) -> None:
        """Compile it."""
        self.request = self._compiled({}).create_infer_request()

    def run(self) -> None:
        """One pass, on the input in place."""
        self.request.infer({0: self.images}, share_inputs=True, share_outputs=True)

    def output(self) -> Images:
        """The first output."""
        first: Images = self.request.get_output_tensor(0).data.copy()
        return first

    def layers(self, rounds: int) -> list[LayerTime]:
        """Times of the layers that ran, by OpenVINO's own counters."""
        request = self._compiled({"PERF_COUNT": True}).create_infer_request()
        times: dict[tuple[str, str], list[float]] = {}
        for turn in range(rounds + 1):
            request.infer({0: self.images})
            for entry in request.profiling_info if turn else ():
                if "NOT_RUN" not in str(entry.status) and entry.node_type not in ("Parameter", "Result"):
                    key = entry.node_name, f"{entry.node_type} {entry.exec_type}"
                    times.setdefault(key, []).append(entry.real_time.total_seconds() * 1e3)
        return [LayerTime(name, kind, statistics.median(taken)) for (name, kind), taken in times.items()]

    def _compiled(self, more: dict[str, Any]) -> Any:
        require("openvino", "openvino")
        import openvino

        core = openvino.Core()
        settings: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": self.settings.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": hint(
                self.settings.precision, core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            ),
        }
        try:
            model = core.read_model(os.fspath(self.source))
            model.reshape(list(self.images.shape))
            return core.compile_model(model, "CPU", settings | more)
        except RuntimeError as error:
            raise ExportError(
                f"OpenVINO cannot load {self.source}: {reason(error)}. Expected a file that precrop export wrote, the "
                ".bin beside its .xml."
            ) from error


def build(onnx: Path, path: Path, settings: BuildSettings) -> dict[str, Any]:
    """Convert an ONNX file; the weights go to ``path`` with the suffix .bin."""
    import openvino

    try:
        model = openvino.convert_model(os.fspath(onnx))
        openvino.save_model(model, os.fspath(path), compress_to_fp16=settings.precision == "fp16")
    except RuntimeError as error:
        raise ExportError(f"OpenVINO refuses the network: {reason(error)}.") from error
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {"computes_here_in": hint(settings.precision, capabilities)}


def reason(error: Exception) -> str:
    """The line of an OpenVINO message that says what is wrong: the first ones are where it was found."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from", "Check '", "While "))]
    return (telling or lines or [type(error).__name__])[0].rstrip(".")


BACKEND = Backend(
    title="OpenVINO",
    extra="openvino",
    modules=("openvino",),
    runs=("fp32", "fp16", "bf16", "int8"),
    runner=OpenVinoRunner,
    format="openvino",
    suffixes=(".xml",),
    writes=("fp32", "fp16", "bf16", "int8"),
    build=build,
    companions=lambda path: (path.with_suffix(".bin"),),
    converts=("fp16",),  # it halves the weights as it writes them
    casts=("fp16", "bf16"),
)

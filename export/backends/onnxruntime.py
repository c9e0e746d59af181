"""ONNX Runtime on the CPU: runs ONNX files, and times their layers by its own profiler."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from precrop.errors import ExportError
from precrop.export.backends.base import Backend, BuildSettings, Images, LayerTime, Runner
from precrop.export.extras import require

KERNEL = "_kernel_time"


class OnnxRuntimeRunner(Runner):
    """An ONNX file in a session; the batch is fixed, so that the session can plan for it."""

    def open(self) -> None:
        """Make the session."""
        self.session = self._session()
        source = self.session.get_inputs()[0]
        self.feed = {source.name: self.images}
        self.outputs: list[Any] = []

    def run(self) -> None:
        """One pass."""
        self.outputs = self.session.run(None, self.feed)

    def output(self) -> Images:
        """The first output."""
        first: Images = self.outputs[0]
        return first

    def layers(self, rounds: int) -> list[LayerTime]:
        """Times of the kernels, by ONNX Runtime's profiler, in a session of their own."""
        with tempfile.TemporaryDirectory() as folder:
            session = self._session(profile=str(Path(folder, "profile")))
            for _ in range(rounds + 1):
                session.run(None, self.feed)
            events = json.loads(Path(session.end_profiling()).read_text())
        times: dict[tuple[str, str], list[float]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith(KERNEL):
                key = event["name"].removesuffix(KERNEL), event["args"].get("op_name", "")
                times.setdefault(key, []).append(event["dur"] / 1e3)
        return [LayerTime(name, kind, statistics.median(taken[1:])) for (name, kind), taken in times.items()]

    def _session(self, profile: str | None = None) -> Any:
        require("onnx", "onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.settings.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_free_dimension_override_by_name("batch", len(self.images))
        # Idle threads of one network must not spin while another is being timed.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        try:
            return onnxruntime.InferenceSession(os.fspath(self.source), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no base of their own
            reason = str(error).strip().partition("\n")[0]
            raise ExportError(
                f"ONNX Runtime cannot load {self.source}: {reason}. Expected a file that precrop export wrote."
            ) from error


def build(onnx: Path, path: Path, settings: BuildSettings) -> dict[str, Any]:
    """The ONNX file is what is run."""
    shutil.copyfile(onnx, path)
    return {}


BACKEND = Backend(
    title="ONNX Runtime",
    extra="onnx",
    modules=("onnx", "onnxruntime"),
    runs=("fp32", "fp16", "int8"),
    runner=OnnxRuntimeRunner,
    format="onnx",
    suffixes=(".onnx",),
    writes=("fp32", "fp16", "bf16", "int8"),
    build=build,
)

"""PyTorch as it is, operator by operator, in channels_last."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn

from precrop.cropping.copying import copy_structure
from precrop.errors import ExportError
from precrop.export.backends.base import Backend, Images, LayerTime, Runner
from precrop.export.precision import PRECISIONS


class TorchRunner(Runner):
    """A network in inference mode, on the CPU or a GPU; threads are torch's own, as they were after it is closed."""

    def open(self) -> None:
        """Copy the network and its input to the device."""
        if not isinstance(self.source, nn.Module):
            raise ExportError(
                f"PyTorch runs networks, and {self.source} is a file of an engine. Expected a checkpoint or a MODEL "
                "name."
            )
        if self.settings.device == "cuda" and not torch.cuda.is_available():
            raise ExportError("device is cuda, and PyTorch finds no NVIDIA GPU here. Expected cpu.")
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.settings.threads)
        dtype = PRECISIONS[self.settings.precision].dtype
        network = copy_structure(self.source, {}).eval().requires_grad_(False).to(self.settings.device, dtype)
        self.network: Any = network.to(memory_format=torch.channels_last)
        images = torch.from_numpy(self.images).to(self.settings.device, dtype)
        self.input = images.to(memory_format=torch.channels_last) if images.dim() == 4 else images
        self.result: Any = None

    def close(self) -> None:
        """Give the threads back."""
        torch.set_num_threads(self.before)

    def run(self) -> None:
        """One pass; on a GPU it is only begun."""
        with torch.inference_mode():
            self.result = self.network(self.input)

    def output(self) -> Images:
        """The output as float32 on the CPU."""
        found: Images = self.result.float().cpu().numpy()
        return found

    def time_ms(self) -> float:
        """One pass: between two events of the GPU, or by the wall clock."""
        if self.settings.device != "cuda":
            return super().time_ms()
        return cuda_time_ms(self.run)

    def layers(self, rounds: int) -> list[LayerTime]:
        """Times of the leaf modules; hooks cost some microseconds each."""
        times: dict[str, list[float]] = {}
        kinds = {}
        handles = []
        waiting: dict[str, Any] = {}
        for name, module in self.network.named_modules():
            if not any(True for _ in module.children()):  # an empty Sequential is a child, and false
                kinds[name] = type(module).__name__
                handles.append(module.register_forward_pre_hook(lambda *_, n=name: waiting.update({n: self._now()})))
                handles.append(
                    module.register_forward_hook(
                        lambda *_, n=name: times.setdefault(n, []).append((self._now() - waiting[n]) * 1e3)
                    )
                )
        try:
            for _ in range(rounds):
                self.run()
        finally:
            for handle in handles:
                handle.remove()
        return [LayerTime(name, kinds[name], statistics.median(taken), name) for name, taken in times.items()]

    def _now(self) -> float:
        import time

        if self.settings.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def cuda_time_ms(run: Any, stream: Any = None) -> float:
    """The time between two events of the GPU around ``run``, without data transfers."""
    stream = stream or torch.cuda.current_stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record(stream)
    run()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end))


BACKEND = Backend(
    title="PyTorch",
    extra="",
    modules=(),
    runs=("fp32", "fp16", "bf16"),
    runner=TorchRunner,
    devices=("cpu", "cuda"),
)

"""PyTorch compiled by ``torch.compile`` for one batch size; on a GPU with CUDA graphs."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from precrop.errors import ExportError
from precrop.export.backends.base import Backend, LayerTime
from precrop.export.backends.torch import TorchRunner


class CompiledRunner(TorchRunner):
    """As `TorchRunner`; the first pass, which compiles, is made when it is opened."""

    def open(self) -> None:
        """Compile the network."""
        super().open()
        network = self.network

        def forward(images: torch.Tensor) -> Any:
            return network(images)

        # The compiler keeps what it made by code object, and after eight runs the next ones uncompiled: one of its own
        # for each network, or the ninth of a class would be timed so.
        own = FunctionType(forward.__code__.replace(), globals(), closure=forward.__closure__)
        mode = "reduce-overhead" if self.settings.device == "cuda" else "default"
        self.network = torch.compile(own, mode=mode, dynamic=False)
        try:
            self.run()
        except Exception as error:  # the compiler's are of many kinds
            self.close()
            reason = str(error).strip().partition("\n")[0]
            raise ExportError(
                f"torch.compile fails on {type(self.source).__name__}: {reason}. It needs a C++ compiler on a CPU and "
                "Triton on a GPU."
            ) from error

    def layers(self, rounds: int) -> list[LayerTime]:
        """None: the compiler fuses the layers into kernels without names."""
        raise ExportError("torch.compile fuses layers into kernels that bear no names; ask for the layers of torch.")


BACKEND = Backend(
    title="torch.compile",
    extra="",
    modules=(),
    runs=("fp32", "fp16", "bf16"),
    runner=CompiledRunner,
    devices=("cpu", "cuda"),
)

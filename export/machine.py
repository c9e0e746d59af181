"""What figures and engines depend on: versions, the processor, the GPU with its driver and clocks."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("precrop", "torch", "torchvision", "timm", "onnx", "onnxscript", "onnxruntime", "openvino")
TENSORRT = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx")
QUERY = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "compute_cap")


def versions() -> dict[str, str]:
    """Python and the packages that have a part in an export, those that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES + TENSORRT:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The name of the CPU."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def gpu(clocks: bool = False) -> dict[str, Any] | None:
    """The current GPU as PyTorch names it, with driver and, where asked, present clocks; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    found: dict[str, Any] = {"name": torch.cuda.get_device_name(), "compute_capability": f"{major}.{minor}"}
    found |= {"cuda": torch.version.cuda}
    asked = nvidia_smi()
    found["driver"] = asked.get("driver_version")
    if clocks:
        found |= {key: asked.get(key) for key in ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit")}
    return found


def nvidia_smi() -> dict[str, str]:
    """What nvidia-smi says of the first GPU; nothing where it cannot be run."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    first = done.stdout.splitlines()[:1]
    return dict(zip(QUERY, (part.strip() for part in first[0].split(",")), strict=False)) if first else {}

"""Which line of whose code made a demand: a walk up the stack.

The network's own code is any file that is not torch's, Python's library's or this package's. A network that has no
file of its own (a bare ``nn.Sequential``, a graph module of ``torch.fx``) is named by the module that was running, or
by the line of the graph.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch
from torch import nn

_TORCH_ROOT = torch.__file__.rsplit("__init__", 1)[0]
_OWN_ROOT = __file__.rsplit("origins.py", 1)[0]
_PYTHON_ROOT = sysconfig.get_paths()["stdlib"]
# What torch.fx calls the files of the code that it writes.
_GRAPH = "<eval_with_key>"


@dataclass(frozen=True)
class Origin:
    """The place that made a demand: a line of the network's own source, or a module of it.

    ``module`` is the module's name and class, where no line of the network's own stands between it and the demand.
    """

    file: str
    line: int
    module: str = ""

    def __str__(self) -> str:
        if self.module:
            return self.module
        source = linecache.getline(self.file, self.line).strip()
        place = "the graph" if self.file.startswith(_GRAPH) else f"{Path(self.file).name}:{self.line}"
        return place + (f" ({source})" if source else "")


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file is torch's, Python's own or this package's, so that no line of it is the network's."""
    if file.startswith((_TORCH_ROOT, _OWN_ROOT, "<frozen ")):
        return True
    return file.startswith(_PYTHON_ROOT) and "-packages" not in file


def calling_origin() -> Origin | None:
    """The innermost line of the network's own code on the stack; else the innermost module of torch that runs."""
    frame: FrameType | None = sys._getframe(1)
    module: nn.Module | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file) and (module is None or not file.startswith(_GRAPH)):
            return Origin(file, frame.f_lineno)
        if file.startswith(_OWN_ROOT):
            if frame.f_code.co_name == "run_forward":
                return _module_origin(module, frame.f_locals["model"])
        elif module is None:
            module = _running(frame)
        frame = frame.f_back
    return None


def _running(frame: FrameType) -> nn.Module | None:
    """The module whose method a frame of torch's is."""
    module = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
    return module if isinstance(module, nn.Module) and not isinstance(module, torch.fx.GraphModule) else None


def _module_origin(module: nn.Module | None, model: nn.Module) -> Origin | None:
    if module is None:
        return None
    name = next((name for name, inner in model.named_modules() if inner is module), "")
    kind = type(module).__name__
    return Origin("", 0, f"{name}: {kind}" if name else kind)

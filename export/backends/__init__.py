"""Engines: one file and one row each. Importing this loads none of them."""

from __future__ import annotations

from precrop.errors import ExportError
from precrop.export.backends import onnxruntime, openvino, tensorrt, torch, torch_compile
from precrop.export.backends.base import Backend as Backend
from precrop.export.backends.base import BuildSettings as BuildSettings
from precrop.export.backends.base import LayerTime as LayerTime
from precrop.export.backends.base import Runner as Runner
from precrop.export.backends.base import RunSettings as RunSettings
from precrop.export.backends.base import named as named

BACKENDS: dict[str, Backend] = {
    "onnxruntime": onnxruntime.BACKEND,
    "openvino": openvino.BACKEND,
    "torch": torch.BACKEND,
    "torch-compile": torch_compile.BACKEND,
    "tensorrt": tensorrt.BACKEND,
}


def backend_named(name: str) -> Backend:
    """The row of this name; raises `ExportError` that lists all."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise ExportError(f"unknown backend {name!r}; expected one of {', '.join(BACKENDS)}.")
    return BACKENDS[name]


def backend_for_format(to: str | None, suffix: str) -> Backend:
    """The backend that writes files of this format, or (no format) of this suffix; raises `ExportError`."""
    writing = {row.format: row for row in BACKENDS.values() if row.format is not None}
    known = ", ".join(f"{name} ({', '.join(row.suffixes)})" for name, row in writing.items())
    if to is not None:
        if not isinstance(to, str) or to not in writing:
            raise ExportError(f"unknown format {to!r}; expected one of {known}.")
        row = writing[to]
        if suffix not in row.suffixes:
            raise ExportError(f"a file of {to} ends in {' or '.join(row.suffixes)}, got {suffix or 'no suffix'!r}.")
        return row
    for row in writing.values():
        if suffix in row.suffixes:
            return row
    raise ExportError(f"cannot tell the format from the suffix {suffix!r}; expected one of {known}.")

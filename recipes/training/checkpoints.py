"""Checkpoints of a training: one safetensors file each, whole or refused, without pickle.

A checkpoint is a tree of dicts, lists and tensors. The tensors are stored under their paths in the
tree; the tree itself, with the tensors' names in their places, is JSON in the metadata:

- ``format``: ``"precrop training"``;
- ``of``: what is trained, so that a checkpoint of another training is not taken for one's own;
- ``tree``: the JSON;
- ``sha256``: over ``of``, ``tree`` and every tensor's name, type, shape and bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from precrop.errors import PrecropError, RecipeError
from precrop.files import parsed_json, replacing

FORMAT = "precrop training"
KEPT = 2  # the last one, and the one before in case that one is torn
NAME = re.compile(r"step-(\d+)\.safetensors")


def checkpoint_path(folder: Path, step: int) -> Path:
    """The file of the checkpoint after ``step`` steps."""
    return folder / f"step-{step:08d}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the latest first."""
    found = (path for path in folder.glob("step-*.safetensors") if NAME.fullmatch(path.name))
    return sorted(found, key=lambda path: path.name, reverse=True)


def prune(folder: Path) -> None:
    """Keep the last checkpoints, and nothing that a killed process left half written."""
    for path in checkpoints(folder)[KEPT:]:
        path.unlink(missing_ok=True)
    for path in folder.glob(".step-*.part"):
        path.unlink(missing_ok=True)


def last_whole(folder: Path, of: str, say: Callable[[str], None]) -> Path | None:
    """The latest checkpoint of the training ``of`` that is whole; each one refused is said, with its reason."""
    for path in checkpoints(folder):
        try:
            read_checkpoint(path, of)
        except RecipeError as error:
            say(f"not used: {error}")
        else:
            return path
    return None


def write_checkpoint(path: Path, of: str, tree: dict[str, Any]) -> None:
    """Write a checkpoint beside ``path`` and rename it, so that ``path`` is whole whenever it exists."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_pack(tree, "", tensors))
    metadata = {"format": FORMAT, "of": of, "tree": text, "sha256": _digest(of, text, tensors)}
    with replacing(path) as beside:
        try:
            save_file(tensors, beside, metadata=metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error  # a full disk, which `replacing` reports
        # On the disk before it takes the name: a power cut must not leave an empty file under it.
        descriptor = os.open(beside, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_checkpoint(path: Path, of: str) -> dict[str, Any]:
    """The tree in a checkpoint; raises `RecipeError` for one that is torn, changed, or of another training."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise RecipeError(f"the checkpoint {path} is torn or no safetensors file ({error}).") from error
    if metadata.get("format") != FORMAT:
        raise RecipeError(f"{path} is a safetensors file, but no checkpoint of a training. Was it put there by hand?")
    if metadata.get("of") != of:
        raise RecipeError(
            f"the checkpoint {path} is of another training ({metadata.get('of')}); expected one of {of}. "
            "Was it copied from another run, or was the network changed?"
        )
    text = metadata.get("tree", "")
    if metadata.get("sha256") != _digest(of, text, tensors):
        raise RecipeError(f"the checkpoint {path} is damaged: its content does not have the checksum that it names.")
    try:
        tree = _unpack(parsed_json(text), tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecipeError(f"the checkpoint {path} holds no training ({type(error).__name__}: {error}).") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"the checkpoint {path} holds no training: expected a dict, got a {type(tree).__name__}.")
    return tree


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON: scalars as they are, anything else as an object of one key, its kind."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        strided = value.detach().cpu()
        last = strided.dim() == 4 and strided.is_contiguous(memory_format=torch.channels_last)
        # A copy: a tensor may be a view of another, which safetensors refuses.
        tensors[path] = strided.contiguous().clone() if strided.is_contiguous() else strided.contiguous()
        return {"tensor": path, "channels_last": last and not strided.is_contiguous()}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(entry, f"{path}/{key}", tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(entry, f"{path}/{index}", tensors) for index, entry in enumerate(value)]}
    raise PrecropError(f"a checkpoint cannot hold {path}, a {type(value).__name__}: expected tensors and plain values.")


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        tensor = tensors[value["tensor"]]
        # The order in memory too: kernels for another one may round differently.
        return tensor.contiguous(memory_format=torch.channels_last) if value["channels_last"] else tensor
    if "dict" in value:
        return {key: _unpack(entry, tensors) for key, entry in value["dict"]}
    ((kind, entries),) = value.items()
    return {"list": list, "tuple": tuple}[kind](_unpack(entry, tensors) for entry in entries)


def _digest(of: str, text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(f"{of}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

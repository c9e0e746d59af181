"""Saving and loading cropped networks: one safetensors file, the plan in its metadata.

The file holds the state dict under the network's own names, and as metadata

- ``format``: ``"precrop"``;
- ``plan``: the `CropPlan` as JSON, with the way to build the original when it is known;
- ``shared``: JSON, for each name that shares its tensor with another, that other name.

Nothing is pickled: loading builds the original, crops it by the plan and fills in the tensors.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from precrop.allowed import create_named
from precrop.crop_plan import CropPlan, listed
from precrop.errors import ModelNameError, PlanError, PrecropError, PrecropWarning
from precrop.files import checked_path, parsed_json, replacing
from precrop.names import is_users_own
from precrop.origin import identify

FORMAT = "precrop"


def save(model: nn.Module, path: str | Path) -> None:
    """Write a cropped network and its plan to one safetensors file.

    A model in ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` is saved as
    the network inside, under that network's own parameter names. Tensors may be on any device
    and keep their precision; a tensor with several names is stored once. When a builder is found
    that gives exactly this network's original (the one named in the plan, or one of torchvision,
    timm or precrop), the file and ``model.crop_plan`` name it, and `load` needs no ``model=``.
    Warns (`PrecropWarning`) when the one named in the plan gives another network.

    An existing file is replaced only once the new one is whole. Raises `PlanError` for a
    model without a ``crop_plan`` or with state that safetensors cannot hold, `PrecropError`
    when the file cannot be written.
    """
    if not isinstance(model, nn.Module):
        raise PlanError(f"got {model!r} to save; expected a cropped network, such as precrop.precrop returns.")
    model = _unwrap(model)
    plan = getattr(model, "crop_plan", None)
    if not isinstance(plan, CropPlan):
        raise PlanError(
            f"cannot save this {type(model).__name__}: it has no crop_plan, so it could not be built again. "
            "Expected a model that precrop.precrop, precrop.apply or precrop.load returned."
        )
    spec = identify(model, plan)
    # A factory that only a loaded file names was not tried, and `load` would not call it either.
    tried = plan.model is not None and (not is_users_own(plan.model.name) or hasattr(model, "model_spec"))
    if plan.model is not None and tried and spec is None:
        warnings.warn(
            f"{plan.model.name} does not build the original of this {type(model).__name__} (changed after "
            "it was built, built with arguments that a file may not give, or the file is gone), so the checkpoint "
            "does not name it. Load it with precrop.load(path, model=...), passing the original as you built it.",
            PrecropWarning,
            stacklevel=2,
        )
    plan = plan.model_copy(update={"model": spec})
    vars(model)["crop_plan"] = plan
    tensors, shared = _tensors(model)
    metadata = {"format": FORMAT, "plan": plan.to_json(), "shared": json.dumps(shared)}
    with replacing(path) as beside:
        try:
            save_file(tensors, beside, metadata=metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error  # a full disk, which `replacing` reports


def load(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Build the cropped network that `save` wrote to ``path``.

    ``model`` is a fresh original, uncropped; it is not changed. Without it the original is
    built by the name in the plan, in train mode on the default device, if that is one of timm,
    torchvision or precrop: nothing else that a file names is called or imported
    (`precrop.allowed.create_named`), so that the checkpoint of a ``file.py:factory`` needs ``model``.
    The result has the original's mode and device, the stored tensors in their precision, and
    the plan as ``crop_plan``.

    Raises `PlanError` for a file that is missing, damaged, or not precrop's; for a plan of a
    newer precrop, or one that is not true of the original; when the original is not known or
    may not or cannot be built; and when ``model`` is another network than the one that was cropped.
    """
    from precrop.api import apply

    path = checked_path(path)
    plan = read_plan(path)
    state = _read_tensors(path)
    if model is None:
        model = _original(path, plan)
    with warnings.catch_warnings():
        # "its training is not carried over" is no news here: the tensors come from the file.
        warnings.simplefilter("ignore", PrecropWarning)
        try:
            cropped = apply(model, plan)
        except PrecropError as error:
            raise PlanError(f"{path} was not cropped from this {type(model).__name__}: {error}") from error
    _check_state(path, cropped, state)
    for name, tensor in cropped.state_dict(keep_vars=True).items():
        tensor.data = tensor.data.to(state[name].dtype)
    # Into the network's own state dict, which carries the versions that some modules' loading asks for.
    target = cropped.state_dict()
    target.update(state)
    cropped.load_state_dict(target)
    vars(cropped)["crop_plan"] = plan
    return cropped


def read_plan(path: str | Path) -> CropPlan:
    """The plan in a checkpoint (``.safetensors``) or in a file that `CropPlan.save` wrote (``.json``).

    Raises `PlanError` for a file that is missing, damaged, foreign, or of a newer precrop.
    """
    path = checked_path(path)
    if path.suffix == ".json":
        return CropPlan.load(path)
    return CropPlan.from_json(_metadata(path)["plan"], f"the plan in {path}")


def _original(path: Path, plan: CropPlan) -> nn.Module:
    if plan.model is None:
        raise PlanError(
            f"{path} does not say how to build the original network: its class is your own, or it was built "
            "with settings that precrop cannot read. Pass a fresh, uncropped one: "
            "precrop.load(path, model=MyNet())."
        )
    try:
        return create_named(plan.model)
    except ModelNameError as error:
        raise PlanError(
            f"cannot build the original network of {path}: {error} Build it yourself, uncropped, and pass it: "
            "precrop.load(path, model=...), on the command line --original."
        ) from error


def _unwrap(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(compiled := model._modules.get("_orig_mod"), nn.Module):
            model = compiled
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


def _tensors(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The state dict ready to be written, and for each repeated tensor the name it is stored under."""
    tensors: dict[str, torch.Tensor] = {}
    shared: dict[str, str] = {}
    stored: dict[object, str] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            raise PlanError(
                f"cannot save {name}: a safetensors file holds dense tensors, got {type(value).__name__}"
                f"{f' of layout {value.layout}' if isinstance(value, torch.Tensor) else ''}."
            )
        if value.is_meta:
            raise PlanError(f"cannot save {name}: it is on the meta device and has no values. Use to_empty first.")
        same = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and same in stored:
            shared[name] = stored[same]
            continue
        stored[same] = name
        # A copy where the values are not packed, or where other tensors lie in the same memory.
        packed = value.detach().cpu().contiguous()
        whole = packed.untyped_storage().nbytes() == packed.numel() * packed.element_size()
        tensors[name] = packed if whole else packed.clone()
    return tensors, shared


def _metadata(path: Path) -> dict[str, str]:
    """A checkpoint's metadata, known to be precrop's."""
    if not path.is_file():
        raise PlanError(f"{path}: no such file. Expected a checkpoint that precrop.save wrote.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise PlanError(
            f"{path} is damaged or no safetensors file ({error}). Expected a whole file from precrop.save."
        ) from error
    if metadata.get("format") != FORMAT or "plan" not in metadata:
        raise PlanError(
            f"{path} is a safetensors file that precrop did not write: it has no crop plan. Expected a "
            "checkpoint of a cropped network, from precrop.save."
        )
    return metadata


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in a checkpoint, repeated tensors under all their names."""
    try:
        shared = parsed_json(_metadata(path).get("shared", "{}"))
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        state.update({name: state[kept] for name, kept in shared.items()})
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise PlanError(f"{path} is damaged: its tensors cannot be read ({error}).") from error
    return state


def _check_state(path: Path, model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Raise `PlanError` unless names and shapes are the model's."""
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    faults = [
        f"{name}: {found.get(name, 'absent')} in the file, {expected.get(name, 'absent')} in the network"
        for name in {**expected, **found}
        if found.get(name) != expected.get(name)
    ]
    if faults:
        raise PlanError(
            f"the tensors in {path} are not those of this {type(model).__name__}: {listed(faults)}. Was it changed "
            "after it was cropped, or is the model passed another one?"
        )

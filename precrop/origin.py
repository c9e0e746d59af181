"""From a cropped network back to the name that its original is built by.

A user may build a network himself and crop it. For a checkpoint that loads by
itself, the builder is found again: by trying those that live beside the model's class.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from precrop.allowed import refusal
from precrop.crop_plan import CropPlan, ModelSpec
from precrop.errors import ModelNameError
from precrop.names import create_model, is_users_own, listed


def identify(model: nn.Module, plan: CropPlan) -> ModelSpec | None:
    """Find how the original of a cropped ``model`` was built; None when no builder fits.

    The candidates are the name that the model carries, which `create_model` gave it, and the plan's,
    then the builders of torchvision, timm and `precrop.zoo` that live beside the model's class. A
    builder is accepted only if ``plan`` turns its network into exactly this one: same modules, same
    settings, same parameter names and shapes. Values are not compared, nor weights allocated.

    The plan may have come from a file, so that what only it names is built only if a file may name it
    (`precrop.allowed.create_named`). A network of one of the families is named only in a way in which it can be loaded.
    """
    carried = getattr(model, "model_spec", None)
    specs = [spec for spec in (carried, plan.model) if isinstance(spec, ModelSpec)]
    allowed = [spec for spec in specs if not refusal(spec) or (spec == carried and is_users_own(spec.name))]
    return _first_match(allowed, model, plan) or _first_match(_beside(model, plan), model, plan)


class _EmptyOnMeta(TorchFunctionMode):
    """Put parameters on the meta device while a network is built.

    Layers make their parameters with ``torch.empty``. Under ``torch.device("meta")``
    builders that compute widths with tensors (torchvision's RegNet) would fail.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _first_match(specs: Iterable[ModelSpec], model: nn.Module, plan: CropPlan) -> ModelSpec | None:
    from precrop.api import apply

    layout = _layout(model)
    originals = []
    for spec in specs:
        try:
            # What the stored plan will give back: JSON turns tuples into lists and refuses objects.
            stored = ModelSpec(name=spec.name, kwargs=json.loads(json.dumps(spec.kwargs)))
            if refusal(stored) and not is_users_own(stored.name):
                continue
            original = _without_memory(stored)
        except (ModelNameError, TypeError, ValueError):
            continue
        if _layout(original) == layout:
            originals.append((stored, original))
    # Siblings such as resnet50 and wide_resnet50_2 share a layout; the likely one is tried first.
    originals.sort(key=lambda pair: _count(pair[1]) != plan.original.params)
    for stored, original in originals:
        try:
            if _same_network(apply(original, plan), model):
                return stored
        except Exception:
            continue  # whatever a wrong candidate fails with, it is no match
    return None


def _without_memory(spec: ModelSpec) -> nn.Module:
    """The network on the meta device."""
    try:
        with _EmptyOnMeta():
            return create_model(spec.name, **spec.kwargs).to("meta")
    except ModelNameError:
        # A builder that runs part of the network to measure it needs real tensors.
        return create_model(spec.name, **spec.kwargs).to("meta")


def _beside(model: nn.Module, plan: CropPlan) -> Iterator[ModelSpec]:
    """The builders in the module of the model's class, with the arguments that can be read off it."""
    module = type(model).__module__
    classes, in_chans = _classes(model), plan.input_shape[0]
    if module.startswith("torchvision."):
        from torchvision.models import get_model_builder, list_models

        arguments: dict[str, Any] = {"num_classes": classes}
        if isinstance(aux_logits := getattr(model, "aux_logits", None), bool):
            arguments["aux_logits"] = aux_logits
        for short in list_models():
            if get_model_builder(short).__module__ == module:
                yield ModelSpec(name=f"torchvision/{short}", kwargs=arguments)
    elif module.startswith("timm."):
        config = getattr(model, "pretrained_cfg", None) or {}
        # Newer timm also keeps the arguments that the model was made with.
        arguments = {**getattr(model, "_model_args", {}), "num_classes": classes, "in_chans": in_chans}
        yield ModelSpec(name=f"timm/{config.get('architecture')}", kwargs=arguments)
    elif module == "precrop.zoo":
        for short in listed("precrop"):
            yield ModelSpec(name=f"precrop/{short}", kwargs={"num_classes": classes, "in_chans": in_chans})


def _classes(model: nn.Module) -> int:
    """The size of the output: what the model says, else its last layer's."""
    if isinstance(said := getattr(model, "num_classes", None), int):
        return said
    sizes = [0]
    for module in model.modules():
        if isinstance(module, nn.Linear):
            sizes.append(module.out_features)
        elif isinstance(module, nn.Conv2d):
            sizes.append(module.out_channels)
    return sizes[-1]


def _layout(model: nn.Module) -> list[tuple[str, type]]:
    return [(name, type(module)) for name, module in model.named_modules()]


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _same_network(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks compute the same function of the same parameters.

    ``repr`` shows most settings of the layers. Others, such as GoogLeNet's
    ``transform_input`` or the number of attention heads, are only attributes.
    """
    shapes = [
        {key: getattr(value, "shape", None) for key, value in model.state_dict().items()} for model in (one, other)
    ]
    if shapes[0] != shapes[1] or _layout(one) != _layout(other) or repr(one) != repr(other):
        return False
    return all(_same_settings(a, b) for a, b in zip(one.modules(), other.modules(), strict=True))


def _same_settings(one: nn.Module, other: nn.Module) -> bool:
    bookkeeping = {*vars(nn.Module()), "crop_plan", "model_spec"}
    for key, value in vars(one).items():
        if key not in bookkeeping and _plain(value):
            found = vars(other).get(key, inspect.Parameter.empty)
            if not _plain(found) or found != value:
                return False
    return True


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str | type | FunctionType)

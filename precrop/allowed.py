"""What a file may have built: a network that the library itself can build, with plain arguments.

No file chooses what is imported, called, opened or fetched. It may name a network of timm, torchvision or precrop,
and of the arguments those that the network's builder or class declares, except the ones that ask for trained weights
or say where something lies.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable
from typing import Any

from torch import nn

from precrop.crop_plan import ModelSpec
from precrop.errors import ModelNameError
from precrop.names import FAMILIES, create_model

# What timm's builders take beside what the classes of its networks declare.
_TIMM_OPTIONS = frozenset({"features_only", "out_indices", "feature_cls", "output_stride", "bn_momentum", "bn_eps"})
# Declared by builders or classes, and not for a file: trained weights, where they come from, where the network lies.
_NOT_FOR_FILES = re.compile(
    r"self|args|kwargs|progress|device|dtype|.*(weights|pretrained|checkpoint|cache|url|path|file).*"
)
# Named like those, and yet sizes or rules of the layers.
_HARMLESS = frozenset({"init_weights", "pretrained_window_sizes", "drop_path_rate", "transformer_drop_path"})
# The names of layers, poolings and rules: no separator of paths and URLs.
_WORD = re.compile(r"(\w[\w.,+-]{0,63})?", re.ASCII)
_SHORT_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
_LARGEST = 2**31
_DEEPEST = 8


def create_named(spec: ModelSpec) -> nn.Module:
    """Build the network that a file names, with fresh weights, on the current default device.

    Raises `ModelNameError` for what `refusal` refuses, before anything is called, and as `create_model` does.
    """
    if reason := refusal(spec):
        raise ModelNameError(reason)
    return create_model(spec.name, **spec.kwargs)


def refusal(spec: ModelSpec) -> str:
    """Why a file may not have this network built; empty where it may.

    It may name a network of timm, torchvision or precrop, with arguments that are plain data (None, a truth value,
    a finite number, a word, or lists and dicts of those) and that the network's builder or class declares, except
    those that ask for trained weights or say where something lies.
    """
    family, _, short = spec.name.partition("/")
    if family not in FAMILIES or not _SHORT_NAME.fullmatch(short):
        return (
            f"a file may name only a network that precrop can build itself (timm/NAME, torchvision/NAME, "
            f"precrop/NAME), and this one names {_quoted(spec.name)}."
        )
    builder = FAMILIES[family](short)
    if builder is None:
        return f"{family} has no network {short!r}."
    allowed = _declared(family, short)
    faults = []
    for key, value in spec.kwargs.items():
        if key not in allowed:
            faults.append(f"{_quoted(key)}, which is none that {spec.name} declares for its layers")
        elif not _is_plain(value):
            faults.append(f"{key}={_quoted(value)}, which is neither a number nor a word, nor lists and dicts of those")
    return f"a file may not pass {'; nor '.join(faults)}." if faults else ""


def _declared(family: str, short: str) -> set[str]:
    """The arguments of a network that a file may give: those that its builder and its class declare."""
    if family == "torchvision":
        from torchvision.models import get_model_builder

        found, names = get_model_builder(short), {"in_chans"}
    elif family == "timm":
        from timm.models import model_entrypoint

        found, names = model_entrypoint(short.partition(".")[0]), set(_TIMM_OPTIONS)
    else:
        from precrop.zoo import ZOO

        found, names = ZOO[short], set()
    for declaring in (found, *(vars(cls)["__init__"] for cls in _classes_of(found) if "__init__" in vars(cls))):
        names |= set(inspect.signature(declaring).parameters)
    return set(filter(_is_open, names))


def _is_open(name: str) -> bool:
    """Whether a file may give an argument of this name."""
    return name in _HARMLESS or not _NOT_FOR_FILES.fullmatch(name)


def _classes_of(builder: Callable[..., Any]) -> list[type]:
    """The classes of the network that a builder says it returns; where it says none, those of its module."""
    unwrapped = inspect.unwrap(builder)
    try:
        returned = typing.get_type_hints(unwrapped).get("return")
    except (NameError, AttributeError, TypeError):  # an annotation of what is not there when it runs
        returned = None
    if isinstance(returned, type) and issubclass(returned, nn.Module) and returned is not nn.Module:
        tops = [returned]
    else:
        module = sys.modules[unwrapped.__module__]
        tops = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, nn.Module)]
    return [cls for top in tops for cls in top.__mro__ if cls not in (nn.Module, object)]


def _is_plain(value: object, depth: int = _DEEPEST) -> bool:
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return abs(value) <= _LARGEST  # neither NaN nor infinite
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, list | tuple):
        return depth > 0 and all(_is_plain(entry, depth - 1) for entry in value)
    if isinstance(value, dict):
        return depth > 0 and all(
            isinstance(key, str) and _is_plain(key) and _is_open(key) and _is_plain(entry, depth - 1)
            for key, entry in value.items()
        )
    return False


def _quoted(value: object) -> str:
    """What a file says, safe to print: quoted, and not without end."""
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."

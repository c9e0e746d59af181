"""MODEL names: from a name to a network (`precrop.origin` goes the other way).

A MODEL is one of

- ``timm/NAME`` or ``torchvision/NAME``: any network in their registries, without weights;
- ``precrop/NAME``: the CIFAR-size networks of `precrop.zoo`;
- ``path/file.py:factory``: a function (or class) of a Python file that returns a network;
- ``path/file.safetensors``: a cropped network that `precrop.save` wrote.

`create_model` builds any of them, since it is the user who names it. What a *file* names is for
`precrop.allowed.create_named`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from precrop.crop_plan import ModelSpec
from precrop.errors import ModelNameError

FORMS = "timm/NAME, torchvision/NAME, precrop/NAME, path/file.py:FACTORY, or path/file.safetensors"


def create_model(name: str, **kwargs: Any) -> nn.Module:
    """Build the network called ``name``, with fresh weights, on the current default device.

    >>> create_model("torchvision/resnet18", num_classes=10)
    >>> create_model("timm/mobilenetv2_100", num_classes=10, in_chans=1)
    >>> create_model("nets/mine.py:small", depth=3)

    ``kwargs`` go to the builder: timm and precrop take ``num_classes`` and ``in_chans``,
    torchvision takes ``num_classes``, a factory what it declares, a checkpoint none.
    A Python file is imported once per process, with its own folder importable.

    Raises `ModelNameError` for a name, file or factory that does not exist, for weights
    asked for by name, and for a builder that fails or returns something else than a
    network; `PlanError` for a damaged or foreign checkpoint.
    """
    if not isinstance(name, str):
        raise ModelNameError(f"got {name!r} as a model's name, a {type(name).__name__}. Expected {FORMS}.")
    if weights := [key for key in ("weights", "pretrained") if kwargs.pop(key, None)]:
        raise ModelNameError(
            f"{name}: {weights[0]}= asks for trained weights; a crop starts from fresh ones. Leave it out."
        )
    if name.endswith(".safetensors"):
        return _from_checkpoint(name, kwargs)
    own = _split_factory(name)
    builder = _from_registry(name, kwargs) if own is None else _from_file(*own, name)
    return _build(builder, name, kwargs)


def is_users_own(name: str) -> bool:
    """Whether a MODEL name is that of a function in a Python file."""
    return _split_factory(name) is not None


def _split_factory(name: str) -> tuple[str, str] | None:
    """``file.py:factory`` as file and factory, the factory empty where it is missing; None for other names."""
    file, colon, factory = name.rpartition(":")
    if name.endswith(".py"):
        return name, ""
    return (file, factory) if colon and file.endswith(".py") else None


def _from_checkpoint(name: str, kwargs: dict[str, Any]) -> nn.Module:
    from precrop.checkpoint import load

    if kwargs:
        raise ModelNameError(f"{name} is a saved network and takes no arguments, got {_show(kwargs)}. Leave them out.")
    if not Path(name).is_file():
        raise ModelNameError(f"{name}: no such file. Expected a checkpoint that precrop.save wrote.")
    return load(name)


def _from_registry(name: str, kwargs: dict[str, Any]) -> Callable[..., nn.Module]:
    family, slash, short = name.partition("/")
    if not slash or family not in FAMILIES:
        found = [f"{family}/{name}" for family in FAMILIES if name in listed(family)]
        near = found or _near(name.rpartition("/")[2], [f"{f}/{n}" for f in FAMILIES for n in listed(f)])
        problem = f"{name!r} does not say where the model comes from" if found else f"unknown model {name!r}"
        raise ModelNameError(f"{problem}.{_did_you_mean(near)} Expected {FORMS}.")
    if family == "torchvision" and kwargs.get("in_chans", 3) != 3:
        raise ModelNameError(
            f"{name} takes images of 3 channels, got in_chans={kwargs['in_chans']!r}. Use timm/ or "
            "precrop/, which take in_chans, or a path/file.py:FACTORY that changes the first layer."
        )
    builder = FAMILIES[family](short)
    if builder is None:
        near = [f"{family}/{close}" for close in _near(short.partition(".")[0], listed(family))]
        raise ModelNameError(f"unknown model {name!r}: {family} has no {short!r}.{_did_you_mean(near)}")
    return builder


def _torchvision(short: str) -> Callable[..., nn.Module] | None:
    from torchvision.models import get_model_builder, list_models

    if short not in list_models():
        return None
    found = get_model_builder(short)

    def builder(**kwargs: Any) -> nn.Module:
        kwargs.pop("in_chans", None)
        # Detectors would download a trained backbone by default.
        if "weights_backbone" in inspect.signature(found).parameters:
            kwargs.setdefault("weights_backbone", None)
        # The default of these two, which they warn about when it is not spelled out.
        if short in ("googlenet", "inception_v3"):
            kwargs.setdefault("init_weights", True)
        model: nn.Module = found(**kwargs)
        return model

    return builder


def _timm(short: str) -> Callable[..., nn.Module] | None:
    import timm

    # False, too, for names such as "hf-hub:...", which would be fetched from the network.
    if not timm.is_model(short):
        return None
    return lambda **kwargs: timm.create_model(short, **kwargs)


def _zoo(short: str) -> Callable[..., nn.Module] | None:
    from precrop.zoo import ZOO

    return ZOO.get(short)


FAMILIES: dict[str, Callable[[str], Callable[..., nn.Module] | None]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "precrop": _zoo,
}


def listed(family: str) -> list[str]:
    """The names that a family offers."""
    if family == "torchvision":
        from torchvision.models import list_models

        return list(list_models())
    if family == "timm":
        import timm

        return list(timm.list_models())
    from precrop.zoo import ZOO

    return list(ZOO)


def _from_file(file: str, factory: str, name: str) -> Callable[..., nn.Module]:
    path = Path(file)
    if not path.is_file():
        raise ModelNameError(f"{name}: there is no file {file}. Expected path/file.py:FACTORY.")
    module = _import_file(path, name)
    callables = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not key.startswith("_")
    ]
    if not factory:
        raise ModelNameError(
            f"{name} does not say which function builds the network. Expected {file}:FACTORY. "
            f"It defines: {', '.join(callables) or 'no function or class'}."
        )
    builder: Callable[..., nn.Module] | None = getattr(module, factory, None)
    if not callable(builder):
        problem = f"defines no {factory!r}" if builder is None else f"has a {factory!r} that cannot be called"
        raise ModelNameError(
            f"{name}: {file} {problem}.{_did_you_mean(_near(factory, callables))} "
            f"It defines: {', '.join(callables) or 'no function or class'}."
        )
    found = builder

    def called(**kwargs: Any) -> nn.Module:
        with _importable(path.parent):
            return found(**kwargs)

    return called


def _import_file(path: Path, name: str) -> ModuleType:
    resolved = path.resolve()
    digest = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    module_name = f"precrop_file_{digest}_{path.stem}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, resolved)
    if spec is None or spec.loader is None:
        raise ModelNameError(f"{name}: {path} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: dataclasses and pickling look their module up by name.
    sys.modules[module_name] = module
    try:
        with _importable(resolved.parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ModelNameError(f"{name}: importing {path} failed with {_show_error(error)}.") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let a file import its neighbours, as it could when run as a script."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def _build(builder: Callable[..., nn.Module], name: str, kwargs: dict[str, Any]) -> nn.Module:
    try:
        model = builder(**kwargs)
    except Exception as error:
        arguments = f" with {_show(kwargs)}" if kwargs else ""
        raise ModelNameError(f"{name} could not be built{arguments}: {_show_error(error)}.") from error
    if not isinstance(model, nn.Module):
        raise ModelNameError(f"{name} returned {type(model).__name__}. Expected a torch.nn.Module.")
    vars(model)["model_spec"] = ModelSpec(name=name, kwargs=kwargs)
    return model


def _near(word: str, options: Iterable[str]) -> list[str]:
    """The options whose last part resembles ``word``, whatever the case."""
    by_name: dict[str, list[str]] = {}
    for option in options:
        by_name.setdefault(option.rpartition("/")[2].lower(), []).append(option)
    close = difflib.get_close_matches(word.lower(), by_name, n=3)
    return [option for key in close for option in by_name[key]]


def _did_you_mean(near: list[str]) -> str:
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _show(kwargs: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in kwargs.items())


def _show_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")

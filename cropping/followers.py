"""Numbers that a model tells of itself and downstream code reads.

A detector reads a backbone's ``num_features``, a segmentation head reads ``feature_info``; after
a crop both must tell the new channels. Such a number is found again by what it counts:

- an attribute called as in `INPUT_NAMES` or `OUTPUT_NAMES` is a variable of its own while the forward runs. If the
  forward reads it, the code ties or pins it like any size. If not, it follows the size of its value among what
  enters or leaves its module;
- timm's ``num_features`` is a size of what ``forward_features`` returns, ``head_hidden_size`` of what enters
  the classifier, and ``feature_info`` lists sizes of what its modules return.

Only a number that agrees with the traced size follows it; any other stays, and so does one that decided a branch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from precrop.cropping.layers import INPUT_NAMES
from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver
from precrop.cropping.symbolic import Dim, shape_of

# HRNet's feature_info names stages, whose outputs are lists; the maps meant come out of these modules.
_FEATURE_MODULES = {
    "HighResolutionNet": {"stem": "conv2", **{f"stage{i + 1}": f"incre_modules.{i}" for i in range(4)}},
}


def returns_features(model: nn.Module) -> bool:
    """Whether a model is one of timm's feature extractors (``features_only=True``).

    Their output channels are no classes and may be cropped. A classifier's ``feature_info`` is a plain list.
    """
    info = type(getattr(model, "feature_info", None))
    return info.__name__ == "FeatureInfo" and info.__module__.startswith("timm.")


class Followers:
    """Watches a traced forward and finds the sizes that a model's own numbers count.

    ``told`` maps (module name, attribute) to the attribute's variable.
    """

    def __init__(self, model: nn.Module, solver: Solver, told: dict[tuple[str, str], Dim]) -> None:
        self.model = model
        self.solver = solver
        self.told = {key: size for key, size in told.items() if isinstance(size, Polynomial)}
        self.values = {key: solver.hint(size) for key, size in self.told.items()}
        self.found: dict[tuple[str, str], Dim] = {}
        self.feature_maps: dict[str, list[Dim]] = {}
        names: dict[str, list[str]] = {}
        for path, name in self.told:
            if path:
                names.setdefault(path, []).append(name)
        for path, attributes in names.items():
            model.get_submodule(path).register_forward_hook(self._watch(path, attributes))
        self._watch_timm()

    def _watch(self, path: str, names: list[str]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for name in names:
                # A head's num_features counts what enters it.
                self._follow(path, name, (args, output) if name in INPUT_NAMES else (output, args))

        return hook

    def _follow(self, path: str, name: str, tensors: Any) -> None:
        size = self._size_of(self.values[path, name], tensors)
        if size is not None:
            self.found.setdefault((path, name), size)

    def _size_of(self, value: int, tensors: Any) -> Dim | None:
        """The first symbolic size that has this value now, among the axes of the tensors; None after a fixed one."""
        for tensor in tree_leaves(tensors):
            for size in shape_of(tensor)[1:] if isinstance(tensor, torch.Tensor) else ():
                if isinstance(size, Polynomial) and self.solver.hint(size) == value:
                    return size
                if size == value:
                    return None
        return None

    # -- timm ------------------------------------------------------------------

    def _watch_timm(self) -> None:
        model = self.model
        body: Any = getattr(model, "forward_features", None)
        if ("", "num_features") in self.told and callable(body):

            def forward_features(*args: Any, **kwargs: Any) -> Any:
                output = body(*args, **kwargs)
                self._follow("", "num_features", output)
                return output

            vars(model)["forward_features"] = forward_features
        get_classifier: Any = getattr(model, "get_classifier", None)
        classifier = get_classifier() if callable(get_classifier) else None
        if ("", "head_hidden_size") in self.told and isinstance(classifier, nn.Module):
            classifier.register_forward_hook(lambda module, args, output: self._follow("", "head_hidden_size", args))
        modules = dict(model.named_modules())
        for entry in feature_entries(model):
            named = entry.get("module", "")
            module = modules.get(_FEATURE_MODULES.get(type(model).__name__, {}).get(named, named))
            if module is not None and not returns_features(model):
                module.register_forward_hook(self._watch_feature(entry))

    def _watch_feature(self, entry: dict[str, Any]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            size = self._size_of(entry["num_chs"], output)
            if size is not None:
                self.feature_maps[entry["module"]] = [size]

        return hook

    def finish(self, output: Any, used: set[int]) -> dict[tuple[str, str], Any]:
        """Every number with its size: (module name, attribute) to size, ``feature_info`` to a list of sizes.

        ``used`` are the variables that the network's tensors are made of.
        """
        return {**self._numbers(used), **self._feature_channels(output)}

    def _numbers(self, used: set[int]) -> dict[tuple[str, str], Any]:
        sizes: dict[tuple[str, str], Any] = {}
        for key, variable in self.told.items():
            size = self.solver.resolve(variable)
            read = size.is_constant or bool(size.variables() & used)
            decided = bool((size.variables() | variable.variables()) & self.solver.compared)
            sizes[key] = size if read else self.values[key] if decided else self.found.get(key, self.values[key])
        return sizes

    def _feature_channels(self, output: Any) -> dict[tuple[str, str], Any]:
        entries = feature_entries(self.model)
        channels: list[Dim] = [entry["num_chs"] for entry in entries]
        if returns_features(self.model):
            tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
            info: Any = self.model.feature_info
            for index, tensor in zip(info.out_indices, tensors, strict=False):
                size = self._size_of(entries[index]["num_chs"], tensor)
                channels[index] = entries[index]["num_chs"] if size is None else size
        else:
            for i, entry in enumerate(entries):
                channels[i] = self.feature_maps.get(entry.get("module", ""), [channels[i]])[0]
        return {("", "feature_info"): channels} if any(not isinstance(size, int) for size in channels) else {}


def feature_entries(model: nn.Module) -> list[dict[str, Any]]:
    """timm's list of feature maps, of a model or of a feature extractor; empty for any other model."""
    info = getattr(model, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, (list, tuple)):
        return []
    return [entry for entry in entries if isinstance(entry, dict) and "num_chs" in entry]


def set_attribute(model: nn.Module, path: str, attribute: str, value: Any) -> None:
    """Give a cropped model one of the numbers that `Followers` or a layer row found."""
    if attribute == "feature_info":
        for entry, channels in zip(feature_entries(model), value, strict=True):
            entry["num_chs"] = channels
    else:
        setattr(model.get_submodule(path), attribute, value)

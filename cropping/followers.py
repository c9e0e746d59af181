"""Numbers that a model tells of itself and no forward reads, but downstream code does.

A detector reads a backbone's ``num_features``, a segmentation head reads ``feature_info``; after
a crop both must tell the new channels. Such a number is found again by what it counts:

- an attribute called as in `INPUT_NAMES` or `OUTPUT_NAMES` whose value is a size of what enters
  or leaves its module follows that size;
- timm's ``num_features`` is a size of what ``forward_features`` returns, ``head_hidden_size`` of what enters
  the classifier, and ``feature_info`` lists sizes of what its modules return.

Only a number that agrees with the traced size follows it; any other stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim, shape_of

INPUT_NAMES = ("in_channels", "in_chs", "in_features", "in_dim", "head_hidden_size")
OUTPUT_NAMES = ("out_channels", "out_chs", "out_features", "out_dim", "num_features")

#: timm's wrappers that return feature maps: their output channels are no classes and may be cropped.
FEATURE_EXTRACTORS = ("FeatureDictNet", "FeatureListNet", "FeatureHookNet", "FeatureGetterNet")


def returns_features(model: nn.Module) -> bool:
    """Whether a model is one of timm's feature extractors (``features_only=True``)."""
    return type(model).__name__ in FEATURE_EXTRACTORS and type(model).__module__.startswith("timm.")


class Followers:
    """Watches a traced forward and finds the sizes that a model's own numbers count."""

    def __init__(self, model: nn.Module, solver: Solver, known: Iterable[tuple[str, str]]) -> None:
        self.model = model
        self.solver = solver
        self.found: dict[tuple[str, str], Any] = {}
        self.feature_maps: dict[str, list[Dim]] = {}
        skip = set(known)
        for path, module in model.named_modules():
            ends = {
                name: name in INPUT_NAMES
                for name in (*INPUT_NAMES, *OUTPUT_NAMES)
                if type(vars(module).get(name)) is int and (path, name) not in skip
            }
            if path and ends:
                module.register_forward_hook(self._watch(path, ends))
        self._watch_timm()

    def _watch(self, path: str, ends: dict[str, bool]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            for name, is_input in ends.items():
                self._follow(path, name, getattr(module, name), args if is_input else output)

        return hook

    def _follow(self, path: str, name: str, value: int, tensors: Any) -> None:
        size = self._size_of(value, tensors)
        if size is not None:
            self.found.setdefault((path, name), size)

    def _size_of(self, value: int, tensors: Any) -> Dim | None:
        """The symbolic size that has this value now, among the axes of the first tensor."""
        first = next((t for t in tree_leaves(tensors) if isinstance(t, torch.Tensor)), None)
        sizes = () if first is None else shape_of(first)[1:]
        return next(
            (s for s in sizes if not isinstance(s, int) and self.solver.hint(as_polynomial(s)) == value),
            None,
        )

    # -- timm ------------------------------------------------------------------

    def _watch_timm(self) -> None:
        model = self.model
        value = vars(model).get("num_features")
        body = getattr(model, "forward_features", None)
        if type(value) is int and callable(body):

            def forward_features(*args: Any, **kwargs: Any) -> Any:
                output = body(*args, **kwargs)
                self._follow("", "num_features", value, output)
                return output

            vars(model)["forward_features"] = forward_features
        hidden = vars(model).get("head_hidden_size")
        classifier = model.get_classifier() if hasattr(model, "get_classifier") else None
        if type(hidden) is int and isinstance(classifier, nn.Module):
            classifier.register_forward_hook(
                lambda module, args, output: self._follow("", "head_hidden_size", hidden, args)
            )
        modules = dict(model.named_modules())
        for entry in feature_entries(model):
            module = modules.get(entry.get("module", ""))
            if module is not None and not returns_features(model):
                module.register_forward_hook(self._watch_feature(entry))

    def _watch_feature(self, entry: dict[str, Any]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            size = self._size_of(entry["num_chs"], output)
            if size is not None:
                self.feature_maps[entry["module"]] = [size]

        return hook

    def finish(self, output: Any) -> dict[tuple[str, str], Any]:
        """What follows, as attributes: (module name, attribute) to size, ``feature_info`` to a list of sizes."""
        entries = feature_entries(self.model)
        channels: list[Dim] = [entry["num_chs"] for entry in entries]
        if returns_features(self.model):
            tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
            for index, tensor in zip(self.model.feature_info.out_indices, tensors, strict=False):  # type: ignore[union-attr]
                size = self._size_of(entries[index]["num_chs"], tensor)
                channels[index] = entries[index]["num_chs"] if size is None else size
        else:
            for i, entry in enumerate(entries):
                channels[i] = self.feature_maps.get(entry.get("module", ""), [channels[i]])[0]
        if any(not isinstance(size, int) for size in channels):
            self.found["", "feature_info"] = channels
        return self.found


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

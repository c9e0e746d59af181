"""What `latency.py` times: a network, its crops, and what others do at the same saving.

* a *crop*: `precrop.precrop` at a share of the parameters or of the multiply-adds;
* *Torch-Pruning* 1.6.1: channels removed at random, the same share of every layer, the classifier kept. Its pruning
  ratio is found by bisection, so that its multiply-adds are as near as it can come to those of a crop;
* a *mask*: weights of convolutions and linear layers set to zero at random, the same share in every layer. The kernels
  are dense and multiply by the zeros too.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import precrop
from precrop.crop_plan import CropPlan, Size
from precrop.errors import PrecropError

DENSE, CROP, TORCH_PRUNING, MASK = "dense", "precrop", "Torch-Pruning", "mask"
BISECTIONS = 10
CLOSE_ENOUGH = 2e-3  # of the multiply-adds wanted
NO_TARGET = "none"


@dataclass(frozen=True)
class Variant:
    """A network to be timed, and what it keeps.

    ``kind`` and ``share`` are the budget, such as macs and 0.5, and ``widths`` what was asked of the widths. ``macs``
    is what the kept weights need: for a mask less than what its dense kernels compute. ``failure`` says why there is
    no ``model``.
    """

    method: str
    kind: str
    share: float
    widths: str
    params: int = 0
    macs: int = 0
    model: nn.Module | None = None
    plan: CropPlan | None = None
    target: str | None = None
    failure: str = ""

    @property
    def label(self) -> str:
        """The row's name."""
        if self.method == DENSE:
            return DENSE
        return ", ".join(filter(None, (self.method, f"{self.kind} {self.share:g}", self.widths)))


@dataclass(frozen=True)
class Choices:
    """Which crops and which peers."""

    budgets: Sequence[tuple[str, float]]  # ("macs", 0.5)
    round_to: Sequence[int]  # 0: the default
    scorers: Sequence[str]
    targets: Sequence[str]
    peers: Sequence[str]
    peer_round_to: Sequence[int]  # 0: any width


def variants(model: nn.Module, choices: Choices, say: Callable[[str], None]) -> list[Variant]:
    """The dense network, then its crops, then the peers."""
    shape = precrop.plan(model, 1.0).input_shape
    dense = size_of(model, shape)
    found = [Variant(DENSE, "macs", 1.0, "", dense.params, dense.macs, model)]
    for kind, share in choices.budgets:
        for scorer in choices.scorers:
            for unit in choices.round_to:
                for target in choices.targets:
                    say(f"cropping to {kind} {share:g}")
                    found.append(cropped(model, shape, kind, share, scorer, unit, target))
    if TORCH_PRUNING in choices.peers:
        for share, macs in equal_macs(found).items():
            for unit in choices.peer_round_to:
                say(f"Torch-Pruning to macs {share:g}, widths in multiples of {unit or 1}")
                found.append(torch_pruned(model, shape, share, macs, unit))
    if MASK in choices.peers:
        for share in dict.fromkeys(share for _, share in choices.budgets):
            say(f"masking to {share:g}")
            found.append(masked(model, shape, share))
    return found


def equal_macs(crops: Sequence[Variant]) -> dict[float, int]:
    """The multiply-adds that the peers are to have: for each share of them, those of the first crop."""
    found: dict[float, int] = {}
    for crop in crops:
        if crop.method == CROP and crop.kind == "macs" and not crop.failure:
            found.setdefault(crop.share, crop.macs)
    return found


def size_of(model: nn.Module, shape: tuple[int, ...]) -> Size:
    """Parameters and multiply-adds, as precrop counts them."""
    graph = precrop.inspect(model, shape)
    return graph.size(graph.original)


def cropped(
    model: nn.Module, shape: tuple[int, ...], kind: str, share: float, scorer: str, unit: int, target: str
) -> Variant:
    """A crop; one that cannot be made says why."""
    how = ([scorer] if scorer != "synexp" else []) + ([f"multiples of {unit}"] if unit else [])
    more: dict[str, Any] = {}
    if target != NO_TARGET:
        if "target" not in inspect.signature(precrop.precrop).parameters:
            raise PrecropError("this precrop takes no target=. Leave out --targets, or upgrade precrop.")
        more["target"] = target
        how.append(f"for {target}")
    widths = ", ".join(how)
    aim = None if target == NO_TARGET else target
    try:
        small = precrop.precrop(model, scorer=scorer, round_to=unit or None, input_shape=shape, **{kind: share}, **more)
    except PrecropError as error:
        return Variant(CROP, kind, share, widths, target=aim, failure=str(error))
    plan: CropPlan = small.crop_plan  # type: ignore[assignment]
    return Variant(CROP, kind, share, widths, plan.cropped.params, plan.cropped.macs, small, plan, aim)


def torch_pruned(model: nn.Module, shape: tuple[int, ...], share: float, wanted_macs: int, unit: int) -> Variant:
    """Torch-Pruning's network whose multiply-adds are nearest to ``wanted_macs``; what it raises is told."""
    widths = f"multiples of {unit}" if unit else "any width"
    low, high = 0.0, 1.0
    best: tuple[int, nn.Module, Size] | None = None
    try:
        for _ in range(BISECTIONS):
            cut = (low + high) / 2
            small = prune(model, shape, cut, unit)
            size = size_of(small, shape)
            away = abs(size.macs - wanted_macs)
            if best is None or away < best[0]:
                best = away, small, size
            if away < CLOSE_ENOUGH * wanted_macs:
                break
            low, high = (cut, high) if size.macs > wanted_macs else (low, cut)
        assert best is not None
        with torch.inference_mode():
            best[1](torch.randn(2, *shape))
    except Exception as error:  # of Torch-Pruning, of every kind
        reason = str(error).strip().partition("\n")[0]
        return Variant(TORCH_PRUNING, "macs", share, widths, failure=f"raises {type(error).__name__}: {reason}")
    return Variant(TORCH_PRUNING, "macs", share, widths, best[2].params, best[2].macs, best[1])


def prune(model: nn.Module, shape: tuple[int, ...], cut: float, unit: int) -> nn.Module:
    """A copy without the share ``cut`` of every layer's channels, which are drawn at random."""
    import torch_pruning as tp

    small = copy.deepcopy(model).eval()
    image = torch.randn(1, *shape)
    with torch.inference_mode():
        classes = small(image).shape[1]
    last = [m for m in small.modules() if classes in (getattr(m, "out_features", 0), getattr(m, "out_channels", 0))]
    pruner = tp.BasePruner(
        small,
        image,
        importance=tp.importance.RandomImportance(),
        pruning_ratio=cut,
        round_to=unit or None,
        ignored_layers=last[-1:],
    )
    pruner.step()
    return small


def masked(model: nn.Module, shape: tuple[int, ...], share: float) -> Variant:
    """A copy that keeps ``share`` of each layer's weights, drawn at random, beside zeros."""
    small = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    macs_of = {layer.name: layer.macs_original for layer in precrop.plan(model, 1.0, input_shape=shape).layers}
    params = sum(p.numel() for p in small.parameters())
    macs = 0.0
    for name, module in small.named_modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue
        weight = module.weight
        kept = torch.randperm(weight.numel(), generator=generator)[: round(share * weight.numel())]
        mask = torch.zeros(weight.numel())
        mask[kept] = 1
        with torch.no_grad():
            weight.mul_(mask.reshape(weight.shape))
        params -= weight.numel() - len(kept)
        macs += macs_of[name] * len(kept) / weight.numel()
    return Variant(MASK, "weights", share, "unstructured", params, round(macs), small)

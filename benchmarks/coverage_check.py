"""One network of the coverage table: build it, crop it at two budgets, check the crops, as one row.

A row says for each share in `SHARES` what the budget came to and whether the crop holds: the plan, the built network's
parameter count, its output shapes, a training step, the round trip of its state. A check that fails ends its share with
a message; nothing is raised.
"""

from __future__ import annotations

import resource
import tempfile
import time
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from coverage_networks import INPUT_SHAPES, Network, build, kind_of
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import precrop
from precrop.crop_plan import CropPlan
from precrop.cropping.forwards import forward_of
from precrop.errors import BudgetError

SHARES = (0.5, 0.25)
#: A pure CNN passes when at least this share of its parameters lies in layers that a free width touches.
GOAL = 0.95
OK = "ok"
MADE_FOR = "the network's output"  # the reason that every classifier has, and should

#: Sizes tried for the training step, smallest first; the network's own comes last.
SIZES = (64, 96, 128, 160, 192, 224, 256, 299)


@dataclass(frozen=True)
class Limits:
    """What is run with data, and what on the meta device: parameters, MACs of one image, and for files."""

    train_params: float = 150e6
    train_macs: float = 20e9
    file_params: float = 30e6
    kind: str = ""


class CheckFailed(Exception):
    """A crop that does not hold what it promises."""


def check(network: Network, limits: Limits) -> dict[str, Any] | None:
    """The row of one network; None when it is not of the kind asked for."""
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    row: dict[str, Any] = {"network": network.name, "file": network.file}
    try:
        empty = build(network, on_meta=True)
        row["kind"] = kind_of(empty, network.file)
        if limits.kind not in ("", row["kind"]):
            return None
        _check(network, limits, empty, row)
    except Exception as error:
        row["message"] = message(error)
    row["status"] = status(row)
    row["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return row


def _check(network: Network, limits: Limits, empty: nn.Module, row: dict[str, Any]) -> None:
    params = sum(p.numel() for p in empty.parameters())
    row["params"] = params
    model = build(network) if params <= limits.train_params else empty
    shape = INPUT_SHAPES.get(network.file)

    plans: dict[float, CropPlan] = {}
    seconds = []
    before = reset_peak()
    for share in SHARES:
        try:
            start = time.process_time()
            plans[share] = precrop.plan(model, params=share, input_shape=shape)
            seconds.append(time.process_time() - start)
        except BudgetError as error:
            row[f"crop_{share}"] = message(error)
    row["plan_mb"] = round((peak() - before) / 1024)
    row["plan_s"] = round(seconds[0], 3) if seconds else ""
    # A plan that keeps everything says what is fixed where no budget can be met.
    known = plans.get(SHARES[0]) or precrop.plan(model, params=1.0, input_shape=shape)
    row |= facts(known)

    cropper = Cropper(limits, model, empty, known)
    row["with_data"] = "yes" if cropper.with_data else "meta"
    for share, plan in plans.items():
        row[f"met_{share}"] = round(plan.params_ratio, 5)
        try:
            row[f"crop_{share}"] = cropper.check(plan, share)
        except Exception as error:
            row[f"crop_{share}"] = message(error)
    row["size"], row["round_trip"] = cropper.size or "", cropper.round_trip


def facts(plan: CropPlan) -> dict[str, Any]:
    """What the plan says of the network, whatever the budget."""
    reasons = {fixed.layer: fixed.reason for fixed in plan.fixed}
    weighed: Counter[str] = Counter()
    for layer in plan.layers:
        if not layer.croppable:
            weighed[reasons.get(layer.name, "unknown")] += layer.params_original
    pinned = Counter(reason for reason in reasons.values() if reason != MADE_FOR)
    shown = [f"{count / plan.original.params:.1%} {reason}" for reason, count in weighed.most_common(4)]
    shown += [f"{count}x {reason}" for reason, count in pinned.most_common(4) if reason not in weighed]
    return {
        "input": "x".join(map(str, plan.input_shape)),
        "macs": plan.original.macs,
        "layers": len(plan.layers),
        "free_widths": len(plan.widths),
        "pinned_layers": pinned.total(),
        "free_share": round(1 - plan.fixed_share, 5),
        "fixed_by": " | ".join(shown[:4]),
    }


class Cropper:
    """Builds the crops of one network and checks each, at the smallest input on which the original runs."""

    def __init__(self, limits: Limits, model: nn.Module, empty: nn.Module, known: CropPlan) -> None:
        self.limits = limits
        self.full, self.empty = model, empty
        self.shape = tuple(known.input_shape)
        self.with_data = not next(model.parameters()).is_meta
        self.size = 0
        self.round_trip = ""
        self.macs = known.original.macs
        native = self.shape[-1]
        sizes = [*(size for size in SIZES if size < native), native]
        self.shapes = [(*self.shape[:-2], size, size * self.shape[-2] // native) for size in sizes]
        self.runs: dict[tuple[int, ...], Any] = {}  # input shapes tried, the shapes of the original's outputs
        if self.with_data and not self._fitting():
            self.with_data = False
            self.runs.clear()

    @property
    def model(self) -> nn.Module:
        """The original, with data where that is not too much."""
        return self.full if self.with_data else self.empty

    def _fitting(self) -> list[tuple[int, ...]]:
        """The input shapes on which the original runs and a training step is not too much work: the first, at least."""
        if not self.with_data:
            return [shape for shape in self.shapes[-1:] if self._original(shape)]
        for i, shape in enumerate(self.shapes):
            work = self.macs * shape[-1] * shape[-2] / (self.shape[-1] * self.shape[-2])
            if work > self.limits.train_macs:
                break
            if self._original(shape):
                return self.shapes[i:]
        return []

    def _original(self, shape: tuple[int, ...]) -> Any:
        """The shapes of the original's outputs, or None where it does not run."""
        if shape not in self.runs:
            model = self.model
            mode = model.training
            images = torch.randn(2, *shape, device=None if self.with_data else "meta")
            self.runs[shape] = None
            with suppress(Exception), torch.no_grad():
                self.runs[shape] = shapes(forward_of(model.eval())(images))
            model.train(mode)
        return self.runs[shape]

    def check(self, plan: CropPlan, share: float) -> str:
        """``"ok"``, or `CheckFailed`, or whatever error the crop's own code raises."""
        used = plan.params_ratio / share
        if used > 1:
            raise CheckFailed(f"budget exceeded: {plan.params_ratio:.5f} of the parameters, asked {share}")
        if used < 0.99 and not plan.notes:
            raise CheckFailed(f"only {used:.2%} of the budget is used, and the plan has no note")
        if not self._fitting():
            raise CheckFailed("the original itself does not run on the meta device, and is too large to run with data")
        model = self.model
        small = precrop.apply(model, plan)
        counted = sum(p.numel() for p in small.parameters())
        if counted != plan.cropped.params:
            raise CheckFailed(f"the plan promises {plan.cropped.params} parameters, the crop has {counted}")
        if list(small.state_dict()) != list(model.state_dict()):
            raise CheckFailed("the crop's state dict has other names")
        self._round_trip(small, model, plan)
        if not self.with_data:
            shape = self.shapes[-1]
            with torch.no_grad():
                same(shapes(forward_of(small.eval())(torch.empty(2, *shape, device="meta"))), self._original(shape))
            self.size = shape[-1]
        else:
            self._train(small)
        return OK if used >= 0.99 else f"ok; {plan.notes[0]}"

    def _train(self, small: nn.Module) -> None:
        """One step at the smallest size that works; a size may be too small for training alone."""
        failure: Exception | None = None
        for shape in self._fitting():
            if (outputs := self._original(shape)) is None:
                continue
            images = torch.randn(2, *shape)
            try:
                with torch.no_grad():
                    same(shapes(forward_of(small.eval())(images)), outputs)
                step(small, run_in_training(small.train(), images))
            except CheckFailed:
                raise
            except Exception as error:
                failure = error
            else:
                self.size = shape[-1]
                return
        if failure:
            raise failure

    def _round_trip(self, small: nn.Module, model: nn.Module, plan: CropPlan) -> None:
        """Names, shapes and values of the state come back: through a file, or (large networks) a plan applied again."""
        wanted = small.state_dict()
        if self.with_data and plan.original.params <= self.limits.file_params:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "small.safetensors")
                precrop.save(small, path)
                # A video network, or one built with settings of its own, is passed.
                named = small.crop_plan.model is not None
                found = precrop.load(path, model=None if named else model).state_dict()
            self.round_trip = "file" if named else "file, original passed"
        else:
            found = precrop.apply(self.empty, CropPlan.from_json(plan.to_json())).state_dict()
            self.round_trip = "shapes"
        if {n: t.shape for n, t in wanted.items()} != {n: t.shape for n, t in found.items()}:
            raise CheckFailed("the state dict's names or shapes change in the round trip")
        if self.round_trip != "shapes" and not all(torch.equal(wanted[n], found[n]) for n in wanted):
            raise CheckFailed("the state dict's values change in the round trip")


def run_in_training(model: nn.Module, images: torch.Tensor) -> Any:
    """What the model computes in train mode; detectors want targets, and find losses."""
    transform = getattr(model, "transform", None)
    if type(transform).__name__ != "GeneralizedRCNNTransform":
        return forward_of(model)(images)
    side = images.shape[-1]
    if getattr(transform, "fixed_size", None) is None:
        transform.min_size, transform.max_size = (side,), side
    target = {
        "boxes": torch.tensor([[side * 0.1, side * 0.1, side * 0.9, side * 0.9]]),
        "labels": torch.tensor([1]),
        "masks": torch.ones(1, side, side, dtype=torch.uint8),
        "keypoints": torch.full((1, 17, 3), side / 2),
    }
    return model(list(images), [target] * len(images))


def step(model: nn.Module, outputs: Any) -> None:
    """A loss over all outputs, its gradients and one step of SGD; raises `CheckFailed` unless all are finite."""
    loss = sum(leaf.float().pow(2).mean() for leaf in tree_leaves(outputs) if is_float(leaf))
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients or not torch.isfinite(loss) or not all(bool(torch.isfinite(g).all()) for g in gradients):
        raise CheckFailed(f"a training step has loss {float(loss)} and {len(gradients)} gradients, not all finite")
    torch.optim.SGD(model.parameters(), 1e-3).step()


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def shapes(outputs: Any) -> Any:
    """The outputs with each tensor replaced by its shape."""
    return tree_map(lambda leaf: tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf, outputs)


def same(found: Any, expected: Any) -> None:
    if tree_leaves(found) != tree_leaves(expected):
        raise CheckFailed(f"output shapes {tree_leaves(found)[:8]}, the original's {tree_leaves(expected)[:8]}")


def status(row: dict[str, Any]) -> str:
    """``passed``, ``partly fixed`` (all crops that can be made hold, too little is free), or ``failed``."""
    crops = [str(row.get(f"crop_{share}", "")) for share in SHARES]
    if row.get("message") or not all(crop.startswith((OK, "BudgetError")) for crop in crops):
        return "failed"
    reached = all(crop.startswith(OK) for crop in crops)
    return "passed" if reached and row["free_share"] >= GOAL else "partly fixed"


def message(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:600]


def reset_peak() -> int:
    """Forget the peak of resident memory (Linux); returns the present size in KiB."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak("VmRSS")


def peak(field: str = "VmHWM") -> int:
    """Resident memory in KiB, at its highest since `reset_peak`."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0

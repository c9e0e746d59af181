"""Why a crop is slower than its multiply-adds promise: the layers that lose the time.

With d_l and c_l the times of layer l in the dense network and in the crop, and r_l the share of its multiply-adds that
it keeps, a layer *loses* c_l - r_l·d_l: what it takes beyond its share. A layer without multiply-adds is given the
network's share r. What the whole crop loses against r·d is the sum over the layers and a rest, Σ (r_l - r)·d_l: what
comes of keeping more of layers that were slow for their multiply-adds in the dense network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latency_variants import Variant
from torch import nn

from precrop.export.backends import LayerTime

TOP = 5


@dataclass(frozen=True)
class LayerLoss:
    """A layer, what a block does beside its layers, or all kernels of a kind that belong to none."""

    layer: str
    what: str
    widths: str
    dense_ms: float
    kept: float
    cropped_ms: float

    @property
    def lost_ms(self) -> float:
        return self.cropped_ms - self.kept * self.dense_ms


@dataclass(frozen=True)
class Profile:
    """One crop in one engine; ``lost_ms`` is against the dense network's time times the crop's share of its MACs."""

    network: str
    backend: str
    crop: str
    realised: float
    dense_ms: float
    cropped_ms: float
    lost_ms: float
    in_layers_ms: float
    layers: tuple[LayerLoss, ...]

    @property
    def rest_ms(self) -> float:
        return self.lost_ms - self.in_layers_ms


def profile(
    network: str,
    backend: str,
    realised: float,
    dense: Variant,
    crop: Variant,
    times: Mapping[str, Sequence[LayerTime]],
) -> Profile:
    """The layers of ``crop`` that lose most, from the kernels' times by the variants' labels."""
    assert dense.model is not None and crop.plan is not None
    before, after = by_layer(times[dense.label]), by_layer(times[crop.label])
    modules = dict(dense.model.named_modules())
    rows = {row.name: row for row in crop.plan.layers}
    losses = []
    for layer in dict.fromkeys((*before, *after)):
        row = rows.get(layer)
        counts = row is not None and row.macs_original > 0
        losses.append(
            LayerLoss(
                layer=layer,
                what=kind_of(modules.get(layer), after.get(layer) or before[layer]),
                widths=f"{row.in_original}→{row.out_original} to {row.in_kept}→{row.out_kept}" if row else "–",
                dense_ms=sum(before.get(layer, {}).values()),
                kept=row.macs_kept / row.macs_original if row is not None and counts else crop.plan.macs_ratio,
                cropped_ms=sum(after.get(layer, {}).values()),
            )
        )
    dense_ms, cropped_ms = (sum(sum(kinds.values()) for kinds in found.values()) for found in (before, after))
    return Profile(
        network=network,
        backend=backend,
        crop=crop.label,
        realised=realised,
        dense_ms=dense_ms,
        cropped_ms=cropped_ms,
        lost_ms=cropped_ms - crop.plan.macs_ratio * dense_ms,
        in_layers_ms=sum(loss.lost_ms for loss in losses),
        layers=tuple(sorted(losses, key=lambda loss: -loss.lost_ms)[:TOP]),
    )


def by_layer(kernels: Sequence[LayerTime]) -> dict[str, dict[str, float]]:
    """Milliseconds of each layer by the kind of kernel; kernels of no layer are put together by their kind."""
    found: dict[str, dict[str, float]] = {}
    for kernel in kernels:
        kind = kernel.kind.partition(" ")[0] or kernel.name
        kinds = found.setdefault(kernel.layer or f"({kind})", {})
        kinds[kind] = kinds.get(kind, 0.0) + kernel.ms
    return found


def kind_of(module: nn.Module | None, kinds: Mapping[str, float]) -> str:
    """``3x3 depthwise``, a leaf's class, or the kernels that a block has beside its layers, the slowest first."""
    if isinstance(module, nn.Conv2d):
        size = "x".join(map(str, module.kernel_size))
        if module.groups == 1:
            return size
        return f"{size} {'depthwise' if module.groups == module.in_channels else f'in {module.groups} groups'}"
    if module is not None and not any(True for _ in module.children()):
        return type(module).__name__
    return ", ".join(sorted(kinds, key=lambda kind: -kinds[kind]))

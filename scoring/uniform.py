"""Uniform: the same share of every layer. The control that every other spread is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from precrop.scoring.scorer import LayerSize


def layer_densities(layers: Sequence[LayerSize], density: float) -> list[float]:
    """The density asked, for each layer."""
    return [density] * len(layers)

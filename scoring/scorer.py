"""What a scorer is: a row of `SCORERS`, and the problem that it is handed.

There are two kinds. A scorer of *weights* returns scores, a dictionary of parameter name to a tensor shaped
like the weight, higher meaning keep; one threshold over all of them gives each layer's density. A scorer
of *layers* returns the densities straight from the layers' sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from precrop.errors import ScoreError

if TYPE_CHECKING:
    from precrop.scoring.data import Batches

#: Parameter name to scores, shaped like the weight. A weight that the forward does not reach is left out.
Scores = dict[str, torch.Tensor]
Loss = Callable[[Any, Any], torch.Tensor]
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class LayerSize:
    """A layer as its sizes: the weight's shape, and what the layer costs for one image."""

    name: str
    shape: tuple[int, ...]
    params: int
    macs: int


@dataclass
class Problem:
    """A network made ready to be scored, and what to score it with.

    ``model`` is a copy that the scorer may change as it likes; ``weights`` are its prunable weights by
    parameter name, in the network's order, and the only parameters that require gradients.
    ``report(done, rounds)`` is called after each round of an iterative scorer.
    """

    model: nn.Module
    weights: dict[str, nn.Parameter]
    input_shape: tuple[int, ...]
    density: float
    loss: Loss
    report: Report
    data: Batches | None = None
    batches: int = 1

    @property
    def device(self) -> torch.device:
        """Where inputs go: the device of the first parameter."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first weight's numbers."""
        return next(iter(self.weights.values())).dtype

    def next_batches(self) -> list[tuple[torch.Tensor, Any]]:
        """As many further batches as a round takes, on the model's device and of its type."""
        if self.data is None:
            raise ScoreError("this scorer needs data. Pass data=, a DataLoader of (images, labels).")
        return [self.data.next(self.device, self.dtype) for _ in range(self.batches)]


@dataclass(frozen=True)
class Scorer:
    """One row of `SCORERS`: a function of one of the two kinds, and how it wants the network.

    ``train`` is the mode of the copy (batch statistics, auxiliary heads), ``double`` asks for float64, and
    ``batches`` is how many batches a round takes where the caller does not say.
    """

    summary: str
    source: str
    weights: Callable[[Problem], Scores] | None = None
    layers: Callable[[Sequence[LayerSize], float], list[float]] | None = None
    needs_data: bool = False
    train: bool = True
    double: bool = False
    batches: int = 1

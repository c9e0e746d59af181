"""Run a scorer on a network: copy, prepare, score, threshold. The network itself is left as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from precrop.cropping.graph import WidthGraph
from precrop.errors import PrecropError, PrecropWarning, ScoreError
from precrop.plain import number
from precrop.scoring import SCORERS
from precrop.scoring.data import Batches
from precrop.scoring.densities import Densities
from precrop.scoring.gates import open_gates
from precrop.scoring.outputs import cross_entropy
from precrop.scoring.prepare import (
    isolated,
    prunable_weights,
    scored_layers,
    scoring_copy,
    settle_weights,
    tensor_of,
)
from precrop.scoring.scorer import LayerSize, Loss, Problem, Report, Scorer, Scores
from precrop.scoring.threshold import kept_counts


def scorer_named(name: Any) -> Scorer:
    """The row of `SCORERS`; raises `PrecropError` that lists the valid names and the near one."""
    if isinstance(name, str) and name in SCORERS:
        return SCORERS[name]
    near = get_close_matches(name, SCORERS, n=1) if isinstance(name, str) else []
    raise PrecropError(
        f"unknown scorer {name!r}.{f' Did you mean {near[0]!r}?' if near else ''} Expected one of "
        f"{', '.join(map(repr, SCORERS))}, or a mapping of layer name to kept share."
    )


def checked_density(density: Any) -> float:
    """A density in (0, 1]; raises `ScoreError`."""
    share = number(density)
    if share is None or not 0 < share <= 1:
        raise ScoreError(
            f"density is {density!r}; expected the share of the weights to keep, 0 < density <= 1 "
            "(for 10x compression pass 0.1)."
        )
    return share


def checked_data(name: str, data: Any, seed: int = 0) -> Batches | None:
    """The batches for a scorer: none where it takes none; raises `ScoreError` where it misses them.

    The first batch is read here, to see the shape of the images.
    """
    if not scorer_named(name).needs_data:
        return None
    if data is None:
        free = ", ".join(other for other, row in SCORERS.items() if not row.needs_data)
        raise ScoreError(
            f"scorer {name!r} needs data. Pass data=, a DataLoader of (images, labels). Without data, use {free}."
        )
    with isolated(seed, torch.device("cpu")):
        return Batches(data)


def run(
    model: nn.Module,
    graph: WidthGraph,
    name: str,
    density: float,
    *,
    data: Batches | None = None,
    loss: Loss | None = None,
    batches: int | None = None,
    seed: int = 0,
    keep_scores: bool = False,
    report: Report | None = None,
) -> Densities:
    """The densities that the scorer of this name gives the layers of ``graph``, the trace of ``model``.

    Raises `ScoreError`; warns of layers that the scorer would have emptied.
    """
    scorer, density = scorer_named(name), checked_density(density)
    layers = _sizes(model, graph)
    weights = {layer.name: layer.params for layer in layers}
    scores: Scores | None = None
    if scorer.layers is not None:
        shares = dict(zip(weights, scorer.layers(layers, density), strict=True))
    elif scorer.weights is not None:
        scores = _scores(model, graph, scorer, scorer.weights, name, density, data, loss, batches, seed, report)
        shares = _shares(graph, name, scores, density)
    else:
        raise ScoreError(f"scorer {name!r} scores nothing: its row of SCORERS has neither weights nor layers.")
    return Densities(shares, name, density, graph.input_shape, weights, scores if keep_scores else None)


def _sizes(model: nn.Module, graph: WidthGraph) -> list[LayerSize]:
    present = graph.values(graph.original).__getitem__
    return [
        LayerSize(
            layer.name,
            tuple(tensor_of(model, layer.weight).shape),
            layer.params.evaluate(present),
            layer.macs.evaluate(present),
        )
        for layer in scored_layers(graph)
    ]


def _scores(
    model: nn.Module,
    graph: WidthGraph,
    scorer: Scorer,
    function: Callable[[Problem], Scores],
    name: str,
    density: float,
    data: Batches | None,
    loss: Loss | None,
    batches: int | None,
    seed: int,
    report: Report | None,
) -> Scores:
    device = next(model.parameters()).device
    with isolated(seed, device):
        copied = scoring_copy(model, scorer.double)
        settle_weights(copied)
        weights, originals = prunable_weights(copied, scored_layers(graph))
        _check_weights(originals, weights)
        open_gates(copied, weights)
        copied.train(scorer.train)
        if data is not None:
            data.shape = graph.input_shape
        problem = Problem(
            copied,
            weights,
            graph.input_shape,
            density,
            _checked_loss(loss or cross_entropy, custom=loss is not None),
            report or (lambda done, rounds: None),
            data,
            batches or scorer.batches,
        )
        try:
            scores = function(problem)
        except PrecropError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            raise ScoreError(_failure(model, name, scorer, error)) from error
    scores = {originals[key]: part.detach() for key, part in scores.items()}
    _check(graph, name, scores)
    return scores


def _checked_loss(loss: Loss, custom: bool) -> Loss:
    if not custom:
        return loss

    def checked(outputs: Any, targets: Any) -> torch.Tensor:
        value = loss(outputs, targets)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(type(value))
            raise ScoreError(f"loss returned {got}; expected one number as a tensor, such as the mean over the batch.")
        return value.reshape(())

    return checked


def _failure(model: nn.Module, name: str, scorer: Scorer, error: Exception) -> str:
    text = str(error).partition("\n")[0]
    if "more than 1 value per channel" in text:
        return (
            f"scorer {name!r} runs the network in train mode, where batch norms need more than one image: {text}. Pass "
            "batches of at least two images, or a larger input."
        )
    what = "its data" if scorer.needs_data else "images of the network's input shape"
    return f"scorer {name!r} failed to run {type(model).__name__} on {what}: {text or type(error).__name__}."


def _check_weights(originals: Mapping[str, str], weights: Mapping[str, torch.Tensor]) -> None:
    broken = [originals[name] for name, weight in weights.items() if not bool(weight.isfinite().all())]
    if broken:
        raise ScoreError(
            f"{_listed(broken)} are not all finite, so they cannot be ranked. Initialize the network anew, or load "
            "another checkpoint."
        )


def _check(graph: WidthGraph, name: str, scores: Scores) -> None:
    layer_of = {layer.weight: layer.name for layer in graph.layers}
    broken = [layer_of[key] for key, part in scores.items() if not bool(torch.isfinite(part).all())]
    if broken:
        raise ScoreError(
            f"scorer {name!r} gave scores that are not finite for {_listed(broken)}. Expected finite weights, images "
            "and loss: check that the data is normalized and has no NaN."
        )
    if not any(bool(part.any()) for part in scores.values()):
        raise ScoreError(
            f"scorer {name!r} gave no weight a score other than zero, in {_listed(list(layer_of.values()))}. Expected "
            "an output that depends on the weights: check for weights of zero, dead activations or a constant loss."
        )


def _shares(graph: WidthGraph, name: str, scores: Mapping[str, torch.Tensor], density: float) -> dict[str, float]:
    """Kept share by layer: one threshold over all scores, no layer empty, unreached layers at ``density``."""
    total = sum(part.numel() for part in scores.values())
    counts = kept_counts(scores, min(total, max(1, round(density * total))))
    layer_of = {layer.weight: layer.name for layer in graph.layers}
    empty = [layer_of[key] for key, count in counts.items() if not count or not bool(scores[key].any())]
    if empty:
        warnings.warn(
            f"layer collapse: at density {density:g}, {name} keeps no weight of {_listed(empty)} for its score. They "
            "keep one at least; a larger density or another scorer spreads the weights more evenly.",
            PrecropWarning,
            stacklevel=4,
        )
    return {
        layer.name: max(1, counts[layer.weight]) / scores[layer.weight].numel() if layer.weight in counts else density
        for layer in scored_layers(graph)
    }


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

"""The functions that a user calls: crop in one line, or plan, look, then apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from precrop.crop_plan import Budget, CropPlan, ModelSpec, listed
from precrop.cropping.allocate import allocate
from precrop.cropping.graph import WidthGraph
from precrop.cropping.paths import PATHS
from precrop.cropping.shrink import shrink
from precrop.cropping.trace import trace
from precrop.cropping.verify import verify
from precrop.errors import PlanError, PrecropError, ScoreError, TraceError
from precrop.inputs import (
    checked_budget,
    checked_count,
    checked_flag,
    checked_function,
    checked_model,
    checked_names,
    checked_plan,
    checked_round_to,
    checked_scorer,
    checked_seed,
    checked_target,
    input_shapes,
)
from precrop.refusals import EXPORTED, exported
from precrop.scoring.densities import Densities
from precrop.scoring.run import checked_data, checked_density, run, scorer_named
from precrop.truth import is_of, record, untruths

Scorer = str | Mapping[str, float]


def precrop(
    model: nn.Module,
    ratio: float | None = None,
    *,
    params: float | None = None,
    macs: float | None = None,
    scorer: Scorer = "synexp",
    data: Any = None,
    round_to: int | None = None,
    target: str | None = None,
    ignore: Iterable[str] = (),
    input_shape: Sequence[int] | None = None,
    widen: bool = False,
) -> nn.Module:
    """Crop a convolutional network to a budget before it is trained.

    Returns a new model of the same class, dense, with fresh weights and ``.crop_plan``; the model
    passed in is not touched. Output shapes stay.

    >>> small = precrop(torchvision.models.resnet18(), 0.5)      # half the parameters and half the MACs
    >>> small = precrop(model, params=0.5, macs=0.4, round_to=8, ignore=["conv1"])
    >>> small = precrop(model, 0.25, scorer="snip", data=loader)

    Args:
        model: any CNN, on any device.
        ratio: share kept of parameters and MACs alike, in (0, 1].
        params: share of the parameters kept; instead of ``ratio``, alone or with ``macs``.
        macs: share of the multiply-adds kept.
        scorer: what spreads the budget over the layers: ``"synexp"`` (the PreCrop paper, arXiv
            2203.02549), ``"uniform"`` (one width multiplier everywhere), the name of another scorer
            of `SCORERS` such as ``"snip"`` or ``"synflow"``, or a mapping of layer name to the share of its
            weights kept (layers not named stay whole), such as the `Densities` that `score` returns. A
            scorer's name means ``scorer=score(model, name, density, data=data)`` with the budget's
            share as the density, the smaller of the two where both are capped.
        data: batches of (images, labels) for a scorer that needs them; not used by one that needs none.
        round_to: widths become multiples of this; by default of 16 in a network with a layer of 128 channels or
            more, and of 1 to 8, growing with the width, in a narrower one.
        target: the engine that the crop is made for, a name of `TARGETS` such as ``"onnxruntime"``: its unit of
            widths, whatever the network's, and with ``"synexp"`` most of the multiply-adds' price put on what
            the engine's time is spent on (`precrop.cropping.paths.synexp_path`). The caps stay what they are.
        ignore: layers whose output width stays; a module name or a pattern means all layers in it.
        input_shape: one image's (C, H, W); by default that of the data or the densities, else found from the model.
        widen: let layers grow beyond their own width at the same budget (PreConfig).

    Raises:
        BudgetError: a malformed budget, or one that cannot be reached.
        TraceError: the forward fails on the input shape, or branches on data.
        ScoreError: a scorer that misses its data, or cannot score with it.
        PrecropError: anything else that is wrong with the input; the base class of all.
    """
    graph, plan_ = _plan(model, ratio, params, macs, scorer, data, round_to, target, ignore, input_shape, widen)
    return _build(model, graph, plan_)


def plan(
    model: nn.Module,
    ratio: float | None = None,
    *,
    params: float | None = None,
    macs: float | None = None,
    scorer: Scorer = "synexp",
    data: Any = None,
    round_to: int | None = None,
    target: str | None = None,
    ignore: Iterable[str] = (),
    input_shape: Sequence[int] | None = None,
    widen: bool = False,
) -> CropPlan:
    """The `CropPlan` that `precrop` would apply, without building the network; same arguments and errors."""
    return _plan(model, ratio, params, macs, scorer, data, round_to, target, ignore, input_shape, widen)[1]


def score(
    model: nn.Module,
    scorer: str,
    density: float,
    *,
    data: Any = None,
    input_shape: Sequence[int] | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    batches: int | None = None,
    seed: int = 0,
    keep_scores: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Densities:
    """The share of each layer's weights that a scorer keeps: a mapping in the network's order, printed as a table.

    Weights are those of convolutions and linear layers, not biases or norms, and one threshold over all of them
    decides. A copy of the model is scored: the model, its gradients and modes and the random states stay as
    they were. A layer that the scorer would empty is named in a `PrecropWarning` and keeps its best weight. A
    layer that the scorer's forward does not reach (a branch without gradients, an auxiliary head in eval mode)
    gets the density itself.

    >>> precrop.score(model, "synflow", 0.1)
    >>> precrop.score(model, "snip", 0.1, data=loader, keep_scores=True).scores["conv1.weight"]

    Args:
        model: any CNN, on any device; inputs go to the device of its first parameter.
        scorer: a name of `precrop.scoring.SCORERS`.
        density: the share of all weights to keep, in (0, 1].
        data: a DataLoader or another iterable of (images, labels), for a scorer that needs it.
        input_shape: one image's (C, H, W); by default that of the data, else found from the model.
        loss: a function of (outputs, labels) that gives one number; by default cross entropy, summed over the
            outputs that are class scores.
        batches: how many batches each round takes (1; their gradients are summed).
        seed: of all that is drawn: dropout, shuffling, random weights.
        keep_scores: keep the raw scores as ``.scores``, parameter name to tensor, higher means keep.
        progress: called with (rounds done, rounds in all) after each round of an iterative scorer.

    Raises:
        ScoreError: no data or data that does not fit, a density outside (0, 1], scores that are not finite.
        TraceError: the forward fails on the input shape, or branches on data.
        PrecropError: an unknown scorer, or anything else that is wrong with the input.
    """
    model = checked_model(model)
    scorer_named(scorer)
    density = checked_density(density)
    batches, seed = checked_count("batches", batches), checked_seed(seed)
    checked_function("loss", loss, "(outputs, labels) that gives one number")
    checked_function("progress", progress, "(rounds done, rounds in all)")
    keep_scores = checked_flag("keep_scores", keep_scores)
    stream = checked_data(scorer, data, seed)
    shape = input_shape if input_shape is not None or stream is None else stream.image_shape()
    try:
        graph = _trace(model, shape, ())
    except TraceError as error:
        if stream is None or input_shape is not None:
            raise
        raise ScoreError(f"the network does not run on the data's images, of shape {shape}: {error}") from error
    return run(
        model,
        graph,
        scorer,
        density,
        data=stream,
        loss=loss,
        batches=batches,
        seed=seed,
        keep_scores=keep_scores,
        report=progress,
    )


def apply(model: nn.Module, plan: CropPlan) -> nn.Module:
    """Crop ``model`` as ``plan`` says: the network that `precrop` returned, with fresh weights.

    ``model`` is the original that the plan was made for, or one built alike; a crop of a crop is applied to the
    crop or to the first original. What the plan says of the network is checked against it: widths, totals, the
    budget and every layer's row. Raises `PlanError` for a plan made for another network, and for one that is not
    true of this one, with what is not.
    """
    model, plan = checked_model(model), checked_plan(plan)
    plan.check()
    graph = _retraced(model, plan)
    if plan.parent is not None and not is_of(plan, graph):
        model = apply(model, plan.parent)
        graph = _retraced(model, plan)
    if faults := untruths(plan, graph):
        what = f"the plan is not true of this {type(model).__name__}"
        if (here := graph.size(graph.original).params) != plan.original.params:
            what = (
                f"the plan was made for {plan.model.name if plan.model else 'a network'} of {plan.original.params:,} "
                f"parameters, and this {type(model).__name__} has {here:,}"
            )
        raise PlanError(
            f"{what}: {listed(faults)}. Expected a plan as precrop.plan made it, and the original, uncropped network "
            "that it was made for."
        )
    return _build(model, graph, plan)


def _retraced(model: nn.Module, plan: CropPlan) -> WidthGraph:
    try:
        return trace(model, plan.input_shape, plan.ignore)
    except PrecropError as error:
        raise PlanError(
            f"the plan's input_shape {plan.input_shape} and ignore {list(plan.ignore)} do not fit this "
            f"{type(model).__name__}: {error}"
        ) from error


def inspect(model: nn.Module, input_shape: Sequence[int] | None = None, ignore: Iterable[str] = ()) -> WidthGraph:
    """Every width of a network: free, tied with which layers, or fixed by which source line.

    Print the result for a table. Raises `TraceError`, `PrecropError`.
    """
    return _trace(checked_model(model), input_shape, checked_names(ignore))


def scored_density(budget: Budget) -> float:
    """The density that a network is scored at for a budget: the smaller of the shares that are capped."""
    return min(share for share in (budget.params, budget.macs) if share is not None)


def _trace(model: nn.Module, input_shape: Sequence[int] | None, ignore: tuple[str, ...]) -> WidthGraph:
    """Trace at the shape given, else at the first that the model runs on."""
    first, *others = input_shapes(model, input_shape)
    try:
        return trace(model, first, ignore)
    except TraceError as error:
        for shape in others:
            with suppress(TraceError):
                return trace(model, shape, ignore)
        if exported(model):
            raise TraceError(f"{error} It is in an exported graph: {EXPORTED}.") from error
        raise


def _plan(
    model: nn.Module,
    ratio: float | None,
    params: float | None,
    macs: float | None,
    scorer: Scorer,
    data: Any,
    round_to: int | None,
    target: str | None,
    ignore: Iterable[str],
    input_shape: Sequence[int] | None,
    widen: bool,
) -> tuple[WidthGraph, CropPlan]:
    model = checked_model(model)
    budget = checked_budget(ratio, params, macs)
    unit = checked_round_to(round_to)
    checked_target(target)
    names = checked_names(ignore)
    widen = checked_flag("widen", widen)
    scorer = checked_scorer(scorer)
    if input_shape is not None:
        (input_shape,) = input_shapes(model, input_shape)  # read once: it may be a generator
    if isinstance(scorer, str) and scorer not in PATHS:
        scorer = score(model, scorer, scored_density(budget), data=data, input_shape=input_shape)
    if input_shape is None and isinstance(scorer, Densities):
        input_shape = scorer.input_shape
    graph = _trace(model, input_shape, names)
    widths, notes = allocate(graph, budget, scorer, unit, widen, target)
    notes = (*notes, *graph.notes)
    return graph, _record(model, graph, widths, budget, scorer, unit, target, names, widen, notes)


def _record(
    model: nn.Module,
    graph: WidthGraph,
    widths: dict[str, int],
    budget: Budget,
    scorer: Scorer,
    round_to: int | None,
    target: str | None,
    ignore: tuple[str, ...],
    widen: bool,
    notes: tuple[str, ...],
) -> CropPlan:
    spec: ModelSpec | None = getattr(model, "model_spec", None)
    return CropPlan(
        model=spec,
        input_shape=graph.input_shape,
        scorer=_name(scorer),
        round_to=round_to,
        target=target,
        widen=widen,
        ignore=ignore,
        budget=budget,
        notes=notes,
        parent=getattr(model, "crop_plan", None),
        **record(graph, widths),
    )


def _name(scorer: Scorer) -> str:
    if isinstance(scorer, Densities):
        return scorer.scorer
    return scorer if isinstance(scorer, str) else "densities"


def _build(model: nn.Module, graph: WidthGraph, plan: CropPlan) -> nn.Module:
    notes: list[str] = []
    small = shrink(model, graph, {name: width.kept for name, width in plan.widths.items()}, notes)
    verify(small, graph)
    if notes:
        plan = plan.model_copy(update={"notes": tuple(dict.fromkeys((*plan.notes, *notes)))})
    small.crop_plan = plan  # type: ignore[assignment]
    return small

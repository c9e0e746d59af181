"""Choose the widths of a crop: a path, a budget, and the point where they meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import numpy as np

from precrop.crop_plan import Budget
from precrop.cropping.graph import Array, WidthGraph
from precrop.cropping.ladders import alignment, ladder
from precrop.cropping.paths import PATHS, Request, WidthPath, density_path, log_densities_of
from precrop.cropping.rounding import WITHIN, first_fit
from precrop.cropping.targets import TARGETS
from precrop.errors import BudgetError, PrecropError
from precrop.scoring.run import scorer_named

# How far `widen` may go beyond a layer's own width.
_WIDEST = 8


def allocate(
    graph: WidthGraph,
    budget: Budget,
    scorer: str | Mapping[str, float] = "synexp",
    round_to: int | None = None,
    widen: bool = False,
    target: str | None = None,
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Widths (channels by width name) that meet ``budget`` from below, and notes for the user.

    ``scorer`` is a name of `PATHS`, or a mapping of layer name to density in (0, 1]; ``target`` a name of `TARGETS`.
    Raises `BudgetError` when even the smallest network exceeds a cap, `PrecropError` for a
    network without a free width and for a scorer or layer that does not exist.
    """
    if not graph.widths:
        if graph.layers and all(cap is None or cap >= 1 for cap in (budget.params, budget.macs)):
            return graph.original, ()  # nothing to crop, and nothing that must be
        raise PrecropError(_nothing_to_crop(graph))
    aim = None if target is None else TARGETS[target]
    unit = alignment(graph.widths, None if aim is None else aim.unit)
    ladders = [ladder(w, w.size * (_WIDEST if widen else 1), round_to, unit) for w in graph.widths]
    path = _path(Request(graph, budget, ladders, widen, aim), scorer)
    caps = {"params": budget.params, "macs": budget.macs}
    if not widen and all(cap is None or cap >= 1 for cap in caps.values()):
        return graph.original, ()
    used = _share_used(graph, caps)
    lowest = [int(steps.rungs[0]) for steps in ladders]
    if used(np.array(lowest, float)) > 1:
        raise BudgetError(_out_of_reach(graph, dict(zip(graph.original, lowest, strict=True)), caps, round_to))
    fit = first_fit(graph.widths, path, used, ladders, refine=round_to is None)
    notes: list[str] = []
    if fit.used < WITHIN:
        what = f"round_to={round_to}" if round_to else "the widths' units"
        notes.append(f"the tighter cap is used to {fit.used:.1%}: no further step of {what} fits")
    return dict(zip(graph.original, map(int, fit.widths), strict=True)), tuple(notes)


def _path(request: Request, scorer: str | Mapping[str, float]) -> WidthPath:
    if isinstance(scorer, str):
        if scorer not in PATHS:
            scorer_named(scorer)
            raise PrecropError(
                f"scorer {scorer!r} is measured on the network, and its sizes alone were given. Pass the densities "
                "that precrop.score returns."
            )
        return PATHS[scorer](request)
    names = [layer.name for layer in request.graph.layers]
    for name, density in scorer.items():
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise PrecropError(
                f"densities name no layer of this network: {name!r}."
                f"{f' Did you mean {near[0]!r}?' if near else ''} `precrop inspect` lists all."
            )
        if not (isinstance(density, (int, float)) and density > 0 and (request.widen or density <= 1)):
            raise PrecropError(
                f"the density of {name} is {density!r}; expected the kept share of its weights, 0 < density <= 1."
            )
    return density_path(request, log_densities_of(request.graph, scorer))


def _share_used(graph: WidthGraph, caps: Mapping[str, float | None]) -> Callable[[Array], Array]:
    """The share of the tighter cap that widths (..., G) use."""
    now = graph.size(graph.original)
    costs = [
        (graph.compiled(getattr(graph, kind)), cap * getattr(now, kind))
        for kind, cap in caps.items()
        if cap is not None
    ]

    def used(widths: Array) -> Array:
        return np.asarray(np.max([cost(widths) / most for cost, most in costs], axis=0))

    return used


def _nothing_to_crop(graph: WidthGraph) -> str:
    reasons = "; ".join(f"{f.layer}: fixed at {f.size} by {f.reason}" for f in graph.fixed[:5])
    return (
        "this network has no layer that can be cropped. Expected at least one convolution or linear layer whose width "
        f"is not fixed. {reasons or 'It has no convolution or linear layer.'}"
    )


def _out_of_reach(
    graph: WidthGraph, lowest: dict[str, int], caps: Mapping[str, float | None], round_to: int | None
) -> str:
    now, least = graph.size(graph.original), graph.size(lowest)
    lines = []
    for kind, cap in caps.items():
        reach = getattr(least, kind) / getattr(now, kind)
        if cap is not None and reach > cap:
            lines.append(f"{kind} {cap:g} was asked, and the smallest reachable is {reach:.4g}")
    values = graph.values(lowest).__getitem__
    heavy = sorted(graph.layers, key=lambda layer: -layer.params.evaluate(values))[:3]
    fixed = {f.layer: f.reason for f in graph.fixed}
    parts = [
        f"{layer.name} keeps {layer.params.evaluate(values):,} parameters"
        + (f" (fixed by {fixed[layer.name]})" if layer.name in fixed else "")
        for layer in heavy
    ]
    unit = f", or a smaller round_to than {round_to}" if round_to and round_to > 1 else ""
    return f"{'; '.join(lines)}. What is left: {', '.join(parts)}. Ask for a larger share{unit}."

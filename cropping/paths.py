r"""From layerwise densities to a path of widths, from the smallest network to the whole one.

A layer of density :math:`p = r_\text{in} r_\text{out}` says nothing of how to share p between its two
ends, and a width is touched by many layers. So every width takes half of the log density of
each layer that it is an end of (the whole of it where the other end is fixed, or where the layer is
depthwise), averaged over its layers:

.. math:: \log r_g = \operatorname{mean}_{l \ni g} \tfrac{1}{d_l} \log p_l, \qquad
   d_l = \text{the number of free ends of layer } l.

Instead of solving for one budget, a scorer gives a *path*: widths that grow together from
one unit to their full size. The budget then picks the point on the path. A path does not depend on the
budget asked, so a larger budget lies further along it; `precrop.cropping.rounding` keeps that order in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precrop.crop_plan import Budget
from precrop.cropping.graph import WidthGraph
from precrop.cropping.ladders import Ladder
from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import as_polynomial
from precrop.cropping.targets import Target
from precrop.scoring import synexp

Array = NDArray[np.float64]

_POINTS = 120
_SLOPES = np.linspace(-1, 1, 11)
_TILTS = np.array([0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.9, 1.0])


@dataclass(frozen=True)
class Request:
    """What a path is made for: the network, the caps, the sizes that its widths may take, whether they may grow.

    ``target`` is the engine that says what a multiply-add's price stands for (None: for itself).
    """

    graph: WidthGraph
    budget: Budget
    ladders: Sequence[Ladder]
    widen: bool = False
    target: Target | None = None


@dataclass(frozen=True)
class WidthPath:
    """Widths along a path: ``log_ratio`` is (K, G), each column nondecreasing.

    ``log_ratio[k, g]`` is the log of width g's kept ratio at point k.
    """

    log_ratio: Array

    def reached_at(self, width: int, log_ratios: Array) -> Array:
        """The points (fractional, in [-1, K]) at which a width reaches given ratios; K where it never does."""
        column = self.log_ratio[:, width]
        above = np.searchsorted(column, log_ratios)
        k = np.clip(above, 1, len(column) - 1)
        rise = column[k] - column[k - 1]
        between = k - 1 + (log_ratios - column[k - 1]) / np.where(rise > 0, rise, 1)
        return np.where(above == 0, -1.0, np.where(above == len(column), float(len(column)), between))


def shares_of_ends(graph: WidthGraph) -> Array:
    """The matrix (G, L) that takes log densities of layers to log ratios of widths."""
    index = {w.variable: g for g, w in enumerate(graph.widths)}
    shares = np.zeros((len(graph.widths), len(graph.layers)))
    for column, layer in enumerate(graph.layers):
        touched = as_polynomial(layer.outgoing).variables() | as_polynomial(layer.incoming).variables()
        for v in touched:
            shares[index[v], column] = 1 / max(1, _degree(layer.params))
    return np.asarray(shares / np.maximum(1, np.count_nonzero(shares, axis=1))[:, None])


def _degree(params: Polynomial) -> int:
    return max(map(len, params.terms), default=0)


def uniform_path(request: Request) -> WidthPath:
    """One width multiplier everywhere: the control that every other result is compared with."""
    widths = request.graph.widths
    ratios = np.linspace(-np.log(max(w.size for w in widths)) - 1, 0, _POINTS)
    return WidthPath(np.repeat(ratios[:, None], len(widths), axis=1))


def density_path(request: Request, log_p: Array) -> WidthPath:
    r"""The path of given layerwise densities: their widths times one scale.

    One scale uses up one cap. With both parameters and multiply-adds capped the densities are tilted as well, by
    each layer's part of the multiply-adds over its part of the parameters,

    .. math:: p_l \propto p_l \left(\frac{f_l / \sum f}{a_l / \sum a}\right)^{-t}, \qquad -1 \le t \le 1,

    with the t at which both caps are used up.
    """
    graph, budget = request.graph, request.budget
    shares = shares_of_ends(graph)
    if budget.params is None or budget.macs is None:
        return _scaled(graph, shares @ log_p, request.widen)
    params, macs, _ = _costs(graph)
    with np.errstate(divide="ignore"):
        lean = np.log(macs / macs.sum()) - np.log(params / params.sum())
    lean[~np.isfinite(lean)] = 0.0
    return _balanced(
        request,
        budget.params,
        budget.macs,
        [_scaled(graph, shares @ (log_p - t * lean), request.widen) for t in _SLOPES],
    )


def _scaled(graph: WidthGraph, ratios: Array, widen: bool) -> WidthPath:
    lowest = -np.log(max(w.size for w in graph.widths)) - 1 - ratios.max()
    scale = np.linspace(lowest, -ratios.min() if not widen else -ratios.mean() + 3, _POINTS)
    path = ratios[None, :] + scale[:, None]
    return WidthPath(path if widen else np.minimum(path, 0.0))


def synexp_path(request: Request) -> WidthPath:
    r"""SynExp's widths at every water level.

    With both parameters and multiply-adds capped, the price is tilted between them at each
    level so that both caps are used up together, where the network allows it.

    For a target the price of a multiply-add is in part that of what is moved for it: a layer's :math:`f_l` says less
    of its time than the elements that it writes, :math:`o_l`, and the weights that it reads, :math:`a_l`:

    .. math:: f_l' = (1 - \kappa - \mu) \frac{f_l}{\sum f} + \kappa \frac{o_l}{\sum o} + \mu \frac{a_l}{\sum a},

    with the target's ``elements`` :math:`\kappa` and ``weights`` :math:`\mu`. The caps stay what they are; the crop of
    the same multiply-adds is narrower where images are large and at a wide end.
    """
    graph, budget, target = request.graph, request.budget, request.target
    params, macs, elements = _costs(graph)
    time = macs / macs.sum()
    if target is not None:
        moved = target.elements * elements / elements.sum() + target.weights * params / params.sum()
        time = (1 - target.elements - target.weights) * time + moved
    shares = shares_of_ends(graph)

    def tilted(tilt: float) -> WidthPath:
        return _one_tilt(params, time, shares, graph, tilt, request.widen)

    if budget.macs is None or budget.params is None:
        return tilted(0.0 if budget.macs is None else 1.0)
    return _balanced(request, budget.params, budget.macs, [tilted(tilt) for tilt in _TILTS])


def _costs(graph: WidthGraph) -> tuple[Array, Array, Array]:
    """Each layer's present parameters, multiply-adds and output elements, (L,) each."""
    now = graph.values(graph.original).__getitem__
    costs = [[cost.evaluate(now) for cost in (layer.params, layer.macs, layer.activations)] for layer in graph.layers]
    params, macs, elements = np.array(costs, float).T
    return params, macs, elements


def _one_tilt(params: Array, macs: Array, shares: Array, graph: WidthGraph, tilt: float, widen: bool) -> WidthPath:
    price = (1 - tilt) * params / params.sum() + tilt * macs / macs.sum()
    price = price[price > 0]
    # From where no layer is cut to where the cheapest layer's widths are below one channel.
    start = -np.log(price.max()) - (6 if widen else 0)
    stop = -np.log(price.min()) + 2 * np.log(max(w.size for w in graph.widths)) + 2
    level = np.exp(np.linspace(stop, start, _POINTS))
    return WidthPath(synexp.log_densities(params, macs, level, tilt, widen) @ shares.T)


def _balanced(request: Request, cap_params: float, cap_macs: float, paths: list[WidthPath]) -> WidthPath:
    """Join paths of different tilts into the one on which both caps fill up together, in whole channels."""
    graph = request.graph
    sizes = np.array([w.size for w in graph.widths], float)
    ratios = np.stack([path.log_ratio for path in paths])  # (T, K, G)
    real = sizes * np.exp(ratios)
    widths = np.stack([steps.rounded(real[..., g]) for g, steps in enumerate(request.ladders)], axis=-1)
    top = max(cap_params, cap_macs)
    now = graph.size(graph.original)
    fill_params = graph.compiled(graph.params)(widths) / now.params / (cap_params / top)
    fill_macs = graph.compiled(graph.macs)(widths) / now.macs / (cap_macs / top)
    fill = np.log(np.maximum(fill_params, fill_macs))  # (T, K), increasing in K
    lean = np.log(fill_macs / fill_params)  # > 0: multiply-adds are the tighter cap
    points = np.linspace(fill[:, 0].max(), max(0.0, fill[:, -1].min()), _POINTS)
    rows = np.arange(ratios.shape[1])
    at = np.stack([np.interp(points, fill[t], rows) for t in range(len(paths))])  # (T, P)
    leans = np.stack([np.interp(at[t], rows, lean[t]) for t in range(len(paths))])
    # Raising the tilt cuts multiply-adds harder, so the lean falls with it: find where it changes sign.
    settled = leans <= 0
    t = np.where(settled.any(axis=0), settled.argmax(axis=0), len(paths) - 1)
    u = np.maximum(t - 1, 0)
    p = np.arange(len(points))
    over, under = leans[u, p], leans[t, p]
    share = np.where((over > 0) & (under <= 0), over / np.where(over > under, over - under, 1), 1.0)[:, None]
    mixed = (1 - share) * _rows(ratios, u, at[u, p]) + share * _rows(ratios, t, at[t, p])
    return WidthPath(np.maximum.accumulate(mixed, axis=0))


def _rows(ratios: Array, path: NDArray[np.intp], at: Array) -> Array:
    """Rows ``at`` (fractional) of the paths numbered ``path``: (P, G)."""
    k = np.minimum(at.astype(int), ratios.shape[1] - 2)
    below, above = ratios[path, k], ratios[path, k + 1]
    return np.asarray(below + (at - k)[:, None] * (above - below))


PATHS: dict[str, Callable[[Request], WidthPath]] = {
    "synexp": synexp_path,
    "uniform": uniform_path,
}


def log_densities_of(graph: WidthGraph, densities: Mapping[str, float]) -> Array:
    """The densities of a mapping in the order of the graph's layers; a layer not named stays whole."""
    return np.log([densities.get(layer.name, 1.0) for layer in graph.layers])

"""A run as pictures: accuracy against size, and the training curves."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import mean
from typing import TYPE_CHECKING, Any

from precrop.tables import count_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from precrop.recipes.results import RunResult, VariantResult

# Told apart by people who do not see all colours, too (P. Tol's bright scheme, and three more).
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#e08214", "#7b5aa6", "#8c564b")
MARKERS = "osD^vP*X"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "precrop",
}


def color_of(result: RunResult, name: str) -> str:
    """A variant's colour, the same in every picture."""
    return COLORS[[variant.name for variant in result.variants].index(name) % len(COLORS)]


def accuracy_plot(result: RunResult) -> Figure:
    """Accuracy against parameters and against MACs: a point for each variant, bars of one standard deviation."""
    with _style() as subplots:
        figure, (left, right) = subplots(1, 2, figsize=(8.4, 3.4), sharey=True, layout="constrained")
        for axes, key, title in ((left, "params", "parameters"), (right, "macs", "MACs for one image")):
            _points(axes, result, key)
            axes.set_xlabel(title)
        left.set_ylabel("accuracy, %")
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    return figure


def _points(axes: Axes, result: RunResult, key: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for index, variant in enumerate(result.variants):
        color = color_of(result, variant.name)
        for training in variant.trainings[: len(variant.trainings) > 1 and None]:
            axes.plot(getattr(training, key), 100 * training.accuracy, ".", color=color, alpha=0.35, markersize=4)
        axes.errorbar(
            getattr(variant, key),
            100 * variant.accuracy,
            yerr=None if variant.accuracy_std is None else 100 * variant.accuracy_std,
            fmt=MARKERS[index % len(MARKERS)],
            color=color,
            capsize=3,
            markersize=6,
            label=variant.name,
        )
    sizes = [getattr(variant, key) for variant in result.variants]
    if max(sizes) > 3 * min(sizes):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(min(sizes) / 1.4, max(sizes) * 1.4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))


def curves_plot(result: RunResult) -> Figure:
    """Held-out accuracy and training loss by epoch: the mean over the seeds, and the range that they span."""
    with _style() as subplots:
        figure, (left, right) = subplots(1, 2, figsize=(8.4, 3.1), layout="constrained")
        _curves(left, result, lambda row: 100 * row["accuracy"])
        _curves(right, result, lambda row: row["train_loss"])
        left.set(xlabel="epoch", ylabel="accuracy, %")
        right.set(xlabel="epoch", ylabel="training loss", yscale="log")
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    return figure


def _curves(axes: Axes, result: RunResult, value: Callable[[dict[str, float]], float]) -> None:
    from matplotlib.ticker import MaxNLocator

    for variant in result.variants:
        epochs, low, middle, high = _over_seeds(variant, value)
        color = color_of(result, variant.name)
        marker = "o" if len(epochs) == 1 else None
        axes.plot(epochs, middle, color=color, linewidth=1.6, marker=marker, label=variant.name)
        if len(variant.trainings) > 1:
            axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _over_seeds(
    variant: VariantResult, value: Callable[[dict[str, float]], float]
) -> tuple[list[float], list[float], list[float], list[float]]:
    by_epoch = list(zip(*(training.history for training in variant.trainings), strict=True))
    values = [[value(row) for row in rows] for rows in by_epoch]
    epochs = [rows[0]["epoch"] for rows in by_epoch]
    return epochs, [min(v) for v in values], [mean(v) for v in values], [max(v) for v in values]


def svg_text(figure: Figure) -> str:
    """A figure as an ``<svg>`` element to be put in a page: no declaration, no address of anything."""
    text = io.StringIO()
    _save(figure, text, "svg")
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    start, end = svg.find("<metadata>"), svg.find("</metadata>")
    if start >= 0:
        svg = svg[:start] + svg[end + len("</metadata>") :]
    # Within a page the browser knows the names; in a file of its own they would be needed.
    for name in (' xmlns="http://www.w3.org/2000/svg"', ' xmlns:xlink="http://www.w3.org/1999/xlink"'):
        svg = svg.replace(name, "")
    return svg.replace("xlink:href", "href")


def saved(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a file, ``svg`` or ``png``."""
    content = io.BytesIO()
    _save(figure, content, kind)
    return content.getvalue()


def _save(figure: Figure, target: Any, kind: str) -> None:
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure.savefig(target, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)


@contextmanager
def _style() -> Iterator[Callable[..., tuple[Figure, Sequence[Axes]]]]:
    """Figures in this module's style, without a screen and without pyplot's global state."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    def subplots(*grid: int, **kwargs: Any) -> tuple[Figure, Sequence[Axes]]:
        shared = {key: kwargs.pop(key) for key in ("sharey",) if key in kwargs}
        figure = Figure(**kwargs)
        return figure, figure.subplots(*grid, **shared)

    with rc_context(STYLE):
        yield subplots

"""Charts of densities, with matplotlib (``pip install "precrop[plot]"``)."""

from __future__ import annotations

from pathlib import Path

from precrop.errors import PrecropError
from precrop.export.extras import require
from precrop.scoring.densities import Densities

# Bars that can still be told apart, and names that can still be read.
_MOST_NAMES = 60
_INCHES_PER_LAYER = 0.19


def plot_densities(densities: Densities, path: str | Path, title: str = "") -> None:
    """Draw the kept share of each layer as bars, on a logarithmic axis, and write it as PNG or SVG by the file's name.

    Raises `MissingExtraError` without matplotlib, `PrecropError` for a file that cannot be written.
    """
    require("plot", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    names, shares = list(densities), list(densities.values())
    figure = Figure(figsize=(min(24.0, max(6.0, 1.6 + _INCHES_PER_LAYER * len(names))), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.bar(range(len(names)), shares, width=0.8, color="#3b6ea5")
    axes.axhline(densities.density, color="#c4572f", linewidth=1, label=f"whole network: {densities.density:g}")
    axes.set_yscale("log")
    axes.set_ylim(10 ** min(-2.0, _floor(min(shares))), 1.3)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
    axes.set_ylabel("share of weights kept")
    axes.margins(x=0.01)
    every = -(-len(names) // _MOST_NAMES)
    axes.set_xticks(range(0, len(names), every), names[::every], rotation=90, fontsize=7)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper right", frameon=False, fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    try:
        figure.savefig(path, dpi=150, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
    except OSError as error:
        raise PrecropError(f"cannot write {path}: {error.strerror}. Choose another place.") from error


def _floor(share: float) -> float:
    from math import floor, log10

    return float(floor(log10(share)))

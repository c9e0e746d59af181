"""Measurements as tables and a chart for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precrop.errors import PrecropError
from precrop.export.backends.base import LayerTime
from precrop.export.extras import require
from precrop.tables import count_text

if TYPE_CHECKING:
    from rich.table import Table

    from precrop.export.bench import BenchResult


def bench_table(result: BenchResult) -> Table:
    """One row for each network and batch size."""
    table = _table(
        "network", "batch", "MACs", "ratio", "median ms", "p99 ms", "images/s", "speed-up", "5-95 %", "realised"
    )
    for row in result.rows:
        table.add_row(
            row.name,
            str(row.batch),
            count_text(row.macs),
            f"{row.macs_ratio:.3f}",
            f"{row.median_ms:.3f}",
            f"{row.p99_ms:.3f}",
            f"{row.images_per_s:,.1f}",
            f"{row.speedup:.2f}×",
            f"{row.speedup_low:.2f}-{row.speedup_high:.2f}",
            f"{row.realised_share:.2f}",
        )
    return table


def machine_line(result: BenchResult) -> str:
    """What the figures depend on, in one line."""
    machine = result.machine
    if machine["gpu"] is not None:
        found = machine["gpu"]
        where = f"{found['name']}, driver {found['driver']}, SM clock {found['clocks.sm']} of {found['clocks.max.sm']}"
    else:
        where = f"{machine['processor']}, {result.threads} thread{'s' if result.threads > 1 else ''}"
    kept = [name for name in machine["versions"] if name == "torch" or name.startswith(result.backend)]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in kept)
    return f"{result.backend}, {result.precision}, {result.rounds} rounds; {where}; {versions}"


def layers_table(layers: Sequence[LayerTime], most: int | None = None) -> Table:
    """One row for each layer, the slowest first, with its share of all."""
    total = sum(layer.ms for layer in layers) or 1.0
    table = _table("kernel", "of layer", "kind", "ms", "share")
    for layer in sorted(layers, key=lambda layer: -layer.ms)[:most]:
        table.add_row(layer.name, layer.layer, layer.kind, f"{layer.ms:.4f}", f"{layer.ms / total:.1%}")
    return table


def compared_table(layers: Mapping[str, Sequence[LayerTime]]) -> Table:
    """One row for each module of the first network: its time there and in the others.

    Kernels that belong to no module, or to one that the first has not, are a row ``other``.
    """
    names = list(layers)
    sums: dict[str, dict[str, float]] = {}
    for name, found in layers.items():
        for layer in found:
            sums.setdefault(layer.layer or "other", {}).setdefault(name, 0.0)
            sums[layer.layer or "other"][name] += layer.ms
    short = [Path(name).name for name in names]
    table = _table("layer", *(f"{name} ms" for name in (short if len(set(short)) == len(short) else names)))
    for module, taken in sums.items():
        table.add_row(module, *(f"{taken[name]:.4f}" if name in taken else "-" for name in names))
    return table


def plot_bench(result: BenchResult, path: str | Path) -> None:
    """Bars of the speed-up with its spread, and beside each the mark of what its multiply-adds promise: .png or .svg.

    Raises `MissingExtraError` without matplotlib, `PrecropError` for a file that cannot be written.
    """
    require("plot", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = result.rows
    figure = Figure(figsize=(max(5.0, 1.8 + 0.9 * len(rows)), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = range(len(rows))
    median = [row.speedup for row in rows]
    spread = [[max(0.0, r.speedup - r.speedup_low) for r in rows], [max(0.0, r.speedup_high - r.speedup) for r in rows]]
    axes.bar(places, median, yerr=spread, width=0.7, color="#3b6ea5", ecolor="#444444", capsize=3, label="measured")
    promised = [1 / row.macs_ratio for row in rows]
    axes.scatter(places, promised, marker="_", s=900, color="#c4572f", zorder=3, label="what the MACs promise")
    axes.set_xticks(places, [f"{Path(row.name).name}\nbatch {row.batch}" for row in rows], rotation=30, fontsize=7)
    axes.set_ylabel(f"speed-up over {Path(rows[0].name).name}")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper right", frameon=False, fontsize=8, markerscale=0.6)
    axes.set_title(f"{result.backend}, {result.precision}", fontsize=10, loc="left")
    try:
        figure.savefig(path, dpi=150, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
    except OSError as error:
        raise PrecropError(f"cannot write {path}: {error.strerror}. Choose another place.") from error


def _table(first: str, *others: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold", min_width=14)
    words = ("of layer", "kind")
    for other in others:
        table.add_column(
            other, justify="left" if other in words else "right", no_wrap=other not in words, overflow="fold"
        )
    return table

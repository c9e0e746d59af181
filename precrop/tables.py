"""Plans and traces as tables for a person, on a terminal or in a string."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from precrop.crop_plan import Budget, CropPlan, Size
    from precrop.cropping.graph import WidthGraph
    from precrop.scoring.densities import Densities

_PLAIN_WIDTH = 120


def as_text(*parts: RenderableType) -> str:
    """Rich renderables as plain text."""
    from rich.console import Console

    # Names and notes may come from a file and hold brackets: they are printed as they are.
    console = Console(
        file=io.StringIO(), width=_PLAIN_WIDTH, color_system=None, highlight=False, markup=False, emoji=False
    )
    for part in parts:
        console.print(part)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def count_text(count: float) -> str:
    """A count with three digits and a suffix: 11.7M."""
    for suffix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.0f}"


def budget_text(budget: Budget) -> str:
    """The caps asked for."""
    caps = [f"{name} {cap:g}" for name, cap in budget if cap is not None]
    return ", ".join(caps)


def plan_lines(plan: CropPlan) -> list[str]:
    """The plan in a few lines: what was asked, what was met, what could not vary."""
    made = f"crop of {plan.model.name}" if plan.model else "crop"
    size = "x".join(map(str, plan.input_shape))
    unit = f", widths in multiples of {plan.round_to}" if plan.round_to else ""
    unit += f", for {plan.target}" if plan.target else ""
    lines = [
        f"{made}, input {size}, scorer {plan.scorer}{unit}{', widened' if plan.widen else ''}",
        f"asked at most: {budget_text(plan.budget)}",
        f"met: params {plan.params_ratio:.4f} ({_change(plan, 'params')}), "
        f"MACs {plan.macs_ratio:.4f} ({_change(plan, 'macs')})",
        fixed_line(plan),
    ]
    return [*lines, *(f"note: {note}" for note in plan.notes)]


def fixed_line(plan: CropPlan) -> str:
    """What share of the parameters no free width touches."""
    return f"fixed: {plan.fixed_share:.1%} of the parameters lie in layers that no free width touches"


def _change(plan: CropPlan, kind: str) -> str:
    return f"{count_text(getattr(plan.original, kind))} -> {count_text(getattr(plan.cropped, kind))}"


def layer_table(plan: CropPlan) -> Table:
    """One row per layer: its ends, parameters and MACs before and after, and the density kept."""
    table = _table("layer", "in", "out", "params", "MACs", "density")
    for row in plan.layers:
        table.add_row(
            row.name,
            _arrow(row.in_original, row.in_kept),
            _arrow(row.out_original, row.out_kept),
            _arrow(count_text(row.params_original), count_text(row.params_kept)),
            _arrow(count_text(row.macs_original), count_text(row.macs_kept)),
            f"{row.density:.3f}",
        )
    return table


def _arrow(before: object, after: object) -> str:
    return f"{before}→{after}" if before != after else str(before)


def width_table(graph: WidthGraph) -> Table:
    """One row per free width: its size, unit and the layers tied to it."""
    table = _table("free width", "size", "multiple of", "layers with this width")
    for width in graph.widths:
        others = [name for name in width.layers if name != width.name]
        shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
        table.add_row(width.name, str(width.size), str(width.multiple), shown or "this one only")
    return table


def fixed_table(graph: WidthGraph) -> Table:
    """One row per fixed width, with the reason."""
    table = _table("fixed width", "size", "fixed by")
    for width in graph.fixed:
        table.add_row(width.layer, str(width.size), width.reason)
    return table


def size_line(size: Size) -> str:
    """Parameters, MACs and activations."""
    return (
        f"{size.params:,} parameters, {count_text(size.macs)} MACs and {count_text(size.activations)} "
        "activation elements per image"
    )


def densities_line(densities: Densities) -> str:
    """What was asked, and of how many weights."""
    weights = sum(densities.weights.values())
    size = "x".join(map(str, densities.input_shape))
    return (
        f"scorer {densities.scorer}, input {size}: density {densities.density:g} of {count_text(weights)} weights, "
        f"kept {densities.mean:.4g}"
    )


def densities_table(densities: Densities) -> Table:
    """One row per layer: its weights, those kept, and their share."""
    table = _table("layer", "weights", "kept", "density")
    for layer, share in densities.items():
        count = densities.weights[layer]
        table.add_row(layer, f"{count:,}", f"{share * count:,.0f}", f"{share:.4f}")
    return table


def plan_text(plan: CropPlan) -> str:
    """The whole plan as text."""
    return as_text(*plan_lines(plan), layer_table(plan))


def graph_text(graph: WidthGraph) -> str:
    """The whole trace as text."""
    head = f"input {'x'.join(map(str, graph.input_shape))}: {size_line(graph.size(graph.original))}"
    fixed = [fixed_table(graph)] if graph.fixed else []
    return as_text(head, width_table(graph), *fixed)


def _table(first: str, *others: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    # On a narrow terminal names and reasons fold; nothing is cut off, and no number is broken.
    table.add_column(first, overflow="fold", min_width=18)
    for other in others:
        numeric = other in ("size", "multiple of", "density", "weights", "kept")
        words = other in ("fixed by", "layers with this width")
        table.add_column(other, justify="right" if numeric else "left", no_wrap=not words, overflow="fold")
    return table

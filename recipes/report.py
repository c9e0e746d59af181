"""``report.html``: a run on one page that needs nothing beside it, neither files nor a network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from precrop.files import write_atomically
from precrop.recipes.loading import dump_recipe
from precrop.recipes.plots import accuracy_plot, color_of, curves_plot, saved, svg_text
from precrop.recipes.results import COLUMNS, environment
from precrop.tables import budget_text, count_text

if TYPE_CHECKING:
    from precrop.crop_plan import CropPlan
    from precrop.recipes.results import RunResult

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #f5f5f3; margin: 0; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 0 0 .6rem; }
p { margin: .2rem 0; } .dim { color: #666; font-size: .87rem; }
section { background: #fff; border: 1px solid #e2e2de; border-radius: 8px; padding: 1rem 1.2rem; margin-top: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
th { font-weight: 600; border-bottom: 1px solid #bbb; } th:first-child, td:first-child { text-align: left; }
tr.ratio td { color: #777; font-size: .87rem; padding-top: 0; } tr.ratio td:first-child { padding-left: 1.6rem; }
tr.over td { border-bottom: 0; padding-bottom: 0; }
.dot { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .4rem; }
.layers { font-size: .82rem; } .layers td, .layers th { padding: .12rem .5rem; }
.layers thead th { position: sticky; top: 0; background: #fff; }
.layers td.bar { min-width: 8rem; text-align: left; }
.track { display: inline-block; vertical-align: middle; width: 5.5rem; height: .62rem; background: #ececea;
  border-radius: 2px; margin-right: .4rem; overflow: hidden; }
.narrow td.bar { min-width: 5rem; } .narrow .track { width: 2.2rem; }
.fill { display: block; height: 100%; } .scroll { max-height: 34rem; overflow: auto; }
svg { width: 100%; height: auto; } pre { font-size: .8rem; overflow-x: auto; margin: .5rem 0 0; }
summary { cursor: pointer; font-weight: 600; }
"""


def write_report(
    result: RunResult, plans: Mapping[str, CropPlan], shares: Mapping[str, Mapping[str, float]], folder: Path
) -> None:
    """Write ``report.html``, and ``accuracy.svg`` and ``.png``, to ``folder``.

    ``plans`` has each variant's plan, ``shares`` the kept share of each layer's weights for those that are masked.
    """
    accuracy = accuracy_plot(result)
    for kind in ("svg", "png"):
        write_atomically(folder / f"accuracy.{kind}", saved(accuracy, kind))
    page = "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(result.recipe.name)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE}</style></head><body><main>",
            _head(result, plans),
            _section(
                "Results", f'<div class="wide">{_table(result)}</div><p class="dim">{escape(result.caption())}</p>'
            ),
            _section("Accuracy against size", svg_text(accuracy)),
            _section("Training", svg_text(curves_plot(result))),
            _section("Layer by layer", _layers(result, plans, shares)),
            _recipe(result),
            "</main></body></html>",
        ]
    )
    write_atomically(folder / "report.html", page.encode())


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _head(result: RunResult, plans: Mapping[str, CropPlan]) -> str:
    recipe = result.recipe
    shape = "×".join(map(str, next(iter(plans.values())).input_shape))
    budgets = dict.fromkeys(budget_text(plan.budget) for plan in plans.values() if plan.params_ratio < 1)
    asked = f" Kept at most: {'; '.join(budgets)}." if budgets else ""
    seeds = f"{recipe.seeds} seeds from {recipe.seed}" if recipe.seeds > 1 else f"seed {recipe.seed}"
    machine = escape(", ".join(" ".join(part) for part in environment().items()))
    return (
        f"<h1>{escape(recipe.name)}</h1><p>{escape(recipe.model.name)} on {escape(recipe.data.name)} ({shape}), "
        f"{recipe.train.epochs} epochs, {seeds}.{asked}</p>"
        f'<p class="dim">run {recipe.digest()} · {machine}</p>'
    )


def _table(result: RunResult) -> str:
    head = "".join(f"<th>{column.title}</th>" for column in COLUMNS)
    lines, rows = result.lines(), []
    for index, (name, cells, ratio) in enumerate(lines):
        over = index + 1 < len(lines) and lines[index + 1][2]
        dot = "" if ratio else f'<span class="dot" style="background:{color_of(result, name)}"></span>'
        kind = "ratio" if ratio else "over" if over else ""
        rows.append(
            f'<tr class="{kind}"><td>{dot}{escape(name)}</td>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )
    return f"<table><thead><tr><th>variant</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _layers(result: RunResult, plans: Mapping[str, CropPlan], shares: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each layer: its width and parameters, and a bar for each variant that is not the original."""
    shown = [name for name, plan in plans.items() if name in shares or plan.cropped != plan.original]
    if not shown:
        return "<p>Nothing was cropped.</p>"
    rows = []
    layers = {name: {row.name: row for row in plan.layers} for name, plan in plans.items()}
    for layer in next(iter(plans.values())).layers:
        cells = []
        for name in shown:
            row, color = layers[name][layer.name], color_of(result, name)
            if name in shares:
                share = shares[name].get(layer.name, 1.0)
                text = f"{share:.1%}"
            else:
                share = row.out_kept / row.out_original
                text = f"{row.out_kept} <span class=dim>({row.density:.0%})</span>"
            fill = f'<span class="fill" style="width:{min(share, 1):.1%};background:{color}"></span>'
            cells.append(f'<td class="bar"><span class="track">{fill}</span>{text}</td>')
        size = f"<td>{layer.out_original}</td><td>{count_text(layer.params_original)}</td>"
        rows.append(f"<tr><td>{escape(layer.name)}</td>{size}{''.join(cells)}</tr>")
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in shown)
    narrow = "narrow" if len(shown) > 4 else ""
    masked = " A masked variant's bar is the share of the layer's weights that it trains." if shares else ""
    return (
        '<p class="dim">Bar and number: output channels kept; in brackets the share of the layer\'s parameters.'
        f'{masked} First seed.</p><div class="wide scroll"><table class="layers {narrow}"><thead><tr><th>layer</th>'
        f"<th>width</th><th>params</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _recipe(result: RunResult) -> str:
    text = escape(dump_recipe(result.recipe))
    title = "The recipe, every setting spelled out"
    return f"<section><details><summary>{title}</summary><pre>{text}</pre></details></section>"

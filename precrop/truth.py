"""Whether a plan is true of a network: the record made again at the plan's widths, and compared field by field.

A plan is a file, and files are edited. Nothing in one is believed that the network itself can say: which widths there
are and what ties them, what the network and each of its layers cost before and after, what cannot vary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from precrop.crop_plan import Budget, CropPlan, FixedWidth, LayerRow, Size, Width
from precrop.cropping.graph import FreeWidth, WidthGraph
from precrop.cropping.layers import settled
from precrop.cropping.targets import TARGETS
from precrop.words import some_of

# A share met exactly may come out above its cap by the rounding of one product.
_ROUNDING = 1e-9


def rows_of(graph: WidthGraph, widths: dict[str, int]) -> tuple[LayerRow, ...]:
    """A row per layer: its ends and costs in the original and at ``widths``."""
    before, after = graph.values(graph.original).__getitem__, graph.values(widths).__getitem__
    return tuple(
        LayerRow(
            name=layer.name,
            in_original=settled(layer.incoming, before),
            in_kept=settled(layer.incoming, after),
            out_original=settled(layer.outgoing, before),
            out_kept=settled(layer.outgoing, after),
            params_original=layer.params.evaluate(before),
            params_kept=layer.params.evaluate(after),
            macs_original=layer.macs.evaluate(before),
            macs_kept=layer.macs.evaluate(after),
            croppable=not layer.params.is_constant,
        )
        for layer in graph.layers
    )


def record(graph: WidthGraph, widths: dict[str, int]) -> dict[str, Any]:
    """The fields of a `CropPlan` that follow from the network and the widths kept (channels by width name)."""
    return {
        "original": graph.size(graph.original),
        "cropped": graph.size(widths),
        "widths": {w.name: Width(original=w.size, kept=widths[w.name], layers=w.layers) for w in graph.widths},
        "fixed": graph.fixed,
        "layers": rows_of(graph, widths),
    }


def is_of(plan: CropPlan, graph: WidthGraph) -> bool:
    """Whether a plan was made for a network of these widths and this size, whatever else it says."""
    planned = {name: width.original for name, width in plan.widths.items()}
    return planned == graph.original and plan.original == graph.size(graph.original)


def untruths(plan: CropPlan, graph: WidthGraph) -> list[str]:
    """What a plan says that is not so of the network: the field, what it says, and what is so.

    The plan's fields are each within their bounds (`CropPlan.check`). Reasons and notes are words and are not
    compared: a reason names a line of a library, which moves with its version.
    """
    free = {width.name: width for width in graph.widths}
    faults = [f"widths.{name} is no free width of the network" for name in plan.widths if name not in free]
    for name, width in free.items():
        faults += _of_a_width(plan, width) if name in plan.widths else [f"widths.{name} is missing"]
    if plan.target is not None and plan.target not in TARGETS:
        faults.append(f"target is {plan.target!r}, expected one of {', '.join(TARGETS)}")
    if faults:
        # What the network costs at widths that it cannot have has no answer; the rest is checked all the same.
        return faults + _at(plan, graph, graph.original, kept=False)
    return _at(plan, graph, {name: width.kept for name, width in plan.widths.items()}, kept=True)


def _of_a_width(plan: CropPlan, width: FreeWidth) -> Iterator[str]:
    said = plan.widths[width.name]
    where = f"widths.{width.name}"
    if said.original != width.size:
        yield f"{where}.original is {said.original}, expected {width.size}"
    if said.kept % width.multiple:
        yield f"{where}.kept is {said.kept}, expected a multiple of {width.multiple}"
    if said.kept < width.minimum:
        yield f"{where}.kept is {said.kept}, expected at least {width.minimum}"
    if said.kept > width.size and not plan.widen:
        yield f"{where}.kept is {said.kept}, expected at most the original's {width.size} in a plan that does not widen"
    if said.layers != width.layers:
        yield f"{where}.layers is {_names(said.layers)}, expected {_names(width.layers)}"


def _at(plan: CropPlan, graph: WidthGraph, widths: dict[str, int], kept: bool) -> list[str]:
    """What differs from the record at these widths, of the original alone or also of what is kept."""
    found = record(graph, widths)
    faults = list(_differing("original", plan.original, found["original"]))
    if kept:
        faults += _differing("cropped", plan.cropped, found["cropped"])
        faults += _over(plan.budget, plan.original, plan.cropped)
    faults += _of_fixed(plan.fixed, found["fixed"])
    names = [row.name for row in found["layers"]]
    if [row.name for row in plan.layers] != names:
        faults.append(f"layers are {_names([row.name for row in plan.layers])}, expected {_names(names)}")
        return faults
    for said, so in zip(plan.layers, found["layers"], strict=True):
        faults += [
            fault
            for fault in _differing(f"layers.{so.name}", said, so)
            if kept or not fault.partition(" ")[0].endswith("_kept")
        ]
    return faults


def _differing(where: str, said: Size | LayerRow, so: Size | LayerRow) -> Iterator[str]:
    for key in type(so).model_fields:
        one, other = getattr(said, key), getattr(so, key)
        if one != other:
            yield f"{where}.{key} is {one}, expected {other}"


def _over(budget: Budget, original: Size, cropped: Size) -> Iterator[str]:
    for kind, cap in budget:
        before, after = getattr(original, kind), getattr(cropped, kind)
        if cap is not None and after > cap * before * (1 + _ROUNDING):
            yield f"cropped.{kind} is {after}, expected at most the budget's {cap:g} of {before}"


def _of_fixed(said: Sequence[FixedWidth], so: Sequence[FixedWidth]) -> Iterator[str]:
    told, found = (sorted((width.layer, width.size) for width in widths) for widths in (said, so))
    if told != found:
        odd = [f"{layer} ({size})" for layer, size in sorted(set(told) ^ set(found))] or ["an entry given twice"]
        yield f"fixed does not have what the network has: {_names(odd)}"


def _names(names: Sequence[str]) -> str:
    return f"[{some_of(names, 4) or 'none'}]"

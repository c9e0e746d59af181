"""The measurements of `latency.py` as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from latency_profile import Profile
from latency_variants import DENSE, MASK

from precrop.export.backends import BACKENDS
from precrop.tables import count_text

LOW = 0.95  # a realised share below this is explained


@dataclass(frozen=True)
class Row:
    """One variant of one network in one engine; ratios are of the dense network's.

    ``failure`` says why nothing was measured. ``macs`` are those of the kept weights.
    """

    network: str
    backend: str
    method: str
    kind: str
    share: float
    widths: str
    label: str
    params: int = 0
    params_ratio: float = 0.0
    macs: int = 0
    macs_ratio: float = 0.0
    median_ms: float = 0.0
    p99_ms: float = 0.0
    speedup: float = 0.0
    speedup_low: float = 0.0
    speedup_high: float = 0.0
    realised_share: float = 0.0
    failure: str = ""


def to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def to_json(machine: str, rows: Sequence[Row], profiles: Sequence[Profile]) -> str:
    everything = {
        "machine": machine,
        "rows": [asdict(row) for row in rows],
        "profiles": [asdict(found) for found in profiles],
    }
    return json.dumps(everything, indent=2) + "\n"


def table(head: Sequence[str], lines: Iterable[Sequence[str]], words: int = 1) -> str:
    """Markdown; the first columns hold words, the others numbers."""
    marks = [*("---" for _ in head[:words]), *("---:" for _ in head[words:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, marks, *lines))


def full_table(rows: Sequence[Row]) -> str:
    """A row for every variant of every network in one engine."""
    head = ("network and crop", "params", "MACs", "ms", "speed-up (5–95 %)", "realised")
    lines = []
    for row in rows:
        if row.method == DENSE:
            sizes = (count_text(row.params), count_text(row.macs))
            lines.append((f"**{row.network}**", *sizes, f"{row.median_ms:.2f}", "1", "1"))
        elif row.failure:
            lines.append((row.label, "–", "–", "–", short(row.failure), "–"))
        else:
            spread = f"{row.speedup:.2f}× ({row.speedup_low:.2f}–{row.speedup_high:.2f})"
            shares = (f"{row.params_ratio:.3f}×", f"{row.macs_ratio:.3f}×")
            lines.append((row.label, *shares, f"{row.median_ms:.2f}", spread, f"{row.realised_share:.2f}"))
    return table(head, lines)


def short(failure: str) -> str:
    return failure.partition(":")[0] if failure.startswith("raises") else "cannot be made"


def summary_table(rows: Sequence[Row]) -> str:
    """Every budget of every network in one engine a row, every method a column: realised share and speed-up."""
    columns = list(dict.fromkeys((r.method, r.widths) for r in rows if r.method != DENSE))
    budgets = dict.fromkeys((r.network, r.kind, r.share) for r in rows if r.method not in (DENSE, MASK))
    cells = {(r.network, r.kind, r.share, r.method, r.widths): cell(r) for r in rows}
    lines = []
    for network, kind, share in budgets:
        line = [f"{network}, {kind} {share:g}"]
        for method, widths in columns:
            line.append(cells.get((network, "weights" if method == MASK else kind, share, method, widths), "–"))
        lines.append(line)
    return table(["network, share kept", *(", ".join(filter(None, column)) for column in columns)], lines)


def cell(row: Row) -> str:
    return short(row.failure) if row.failure else f"{row.realised_share:.2f} ({row.speedup:.2f}×)"


def profile_text(found: Profile) -> str:
    """Why one crop is slow, in a sentence and a table."""
    lines = [
        (
            loss.layer,
            loss.what,
            loss.widths,
            f"{loss.dense_ms:.3f}",
            f"{loss.kept:.2f}",
            f"{loss.cropped_ms:.3f}",
            f"{loss.lost_ms:+.3f}",
        )
        for loss in found.layers
    ]
    return (
        f"**{found.network}, {found.crop}** realises {found.realised:.2f}. By layer {found.dense_ms:.2f} ms became "
        f"{found.cropped_ms:.2f} ms, {found.lost_ms:+.2f} ms against its MACs: {found.in_layers_ms:+.2f} ms in layers "
        f"that take more than their share, {found.rest_ms:+.2f} ms by keeping more of layers that were slow for their "
        f"MACs.\n\n{table(('layer', 'kernel', 'widths', 'dense ms', 'MACs kept', 'ms', 'lost ms'), lines, 3)}"
    )


def sections(rows: Sequence[Row], profiles: Sequence[Profile]) -> str:
    """For each engine the summary, all rows, and the reasons."""
    parts = []
    for backend in dict.fromkeys(row.backend for row in rows):
        own = [row for row in rows if row.backend == backend]
        title = BACKENDS[backend].title
        parts += [f"## {title}", "Realised share (and speed-up):", summary_table(own), "All rows:", full_table(own)]
        slow = [profile_text(found) for found in profiles if found.backend == backend]
        if slow:
            parts += [f"### Where {title} is slower than the MACs say", *slow]
    return "\n\n".join(parts)


PAGE = """# Latency: what a crop saves in an engine

```
{command}
```

One image at a time, float32 (OpenVINO's own default of bfloat16 is overridden), each network's variants in turns in one
process, {rounds} rounds after {warmup} that do not count.

{machine}.

*Speed-up* is the median over the rounds of the dense network's time over the variant's in the same round, with the 5 %
and 95 % quantiles. *Realised* is the speed-up times the share of the multiply-adds kept: 1 when half of them take half
the time. Below the dense network, parameters and MACs are shares of its own.

The rows: **precrop** crops to a share of the parameters or the MACs. **Torch-Pruning** removes channels at random, the
classifier kept, by the pruning ratio whose MACs are nearest to those of precrop's crop (widths in multiples: as near
as they allow). **mask** sets weights to zero at random, the same share in every layer, so it keeps that share of
parameters and MACs alike; the kernels stay dense.

{sections}
{notes}"""

NOTES = """
A layer *loses* what it takes beyond its dense time times the share of its MACs that it keeps (layers without MACs: the
network's share). Shown are the {top} that lose most: layers, what a block does beside its layers, and kernels of none
such as reorders of the input, of the crop of each network that realises least, if that is less than {low}. Times by
layer come from the engine's own profiler, in runs of their own. Widths are in→out, dense to cropped.
"""


def page(
    command: str, machine: str, rounds: int, warmup: int, rows: Sequence[Row], profiles: Sequence[Profile], top: int
) -> str:
    """docs/LATENCY.md."""
    notes = NOTES.format(top=top, low=LOW) if profiles else ""
    return PAGE.format(
        command=command,
        machine=textwrap.fill(machine, 119),
        rounds=rounds,
        warmup=warmup,
        sections=sections(rows, profiles),
        notes=notes,
    )

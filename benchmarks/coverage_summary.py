"""docs/COVERAGE.md from the rows of benchmarks/coverage.py: what passed, what is partly fixed by what, what failed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version

from coverage_check import GOAL, SHARES
from coverage_networks import Network, library_of

Row = dict[str, str]

HEAD = f"""# Coverage

Every network of torchvision {{torchvision}} and timm {{timm}}, cropped to {" and to ".join(map(str, SHARES))} of its
parameters. Written by `make coverage` (torch {{torch}}, precrop's sources {{code}}): do not edit.

A network **passed** when at both shares

- the budget is met within 1 % from below, or the plan's note says why it is not;
- the crop has the parameters that the plan promises, the original's names in its state dict, and its output shapes;
- one training step at batch 2 has finite gradients, on the smallest input that the network runs on (networks above
  150 M parameters or 20 GMACs an image: only a forward on the meta device, without data; counted under *meta only*);
- its state comes back: saved to a file and loaded (up to 30 M parameters), else the plan is applied again and the names
  and shapes are compared;

and at least {GOAL:.0%} of its parameters lie in layers that a free width touches on one side or the other (*free*). It
is **partly fixed** when all of this holds but less is free, or a budget is out of reach and the error says so.
Otherwise it **failed**. A network is a *hybrid* when positions attend to or are mixed with one another (attention,
token MLPs, state spaces; the rule is in `benchmarks/coverage_networks.py`), else a CNN. *Seconds* are the processor
time of `precrop.plan`, on one thread; *MB* is the peak resident memory that it adds.
"""


def summary(rows: Sequence[Row], networks: Iterable[Network], code: str) -> str:
    """The whole page."""
    registered = {network.name: network for network in networks}
    rows = sorted((row for row in rows if row["network"] in registered), key=lambda row: (row["file"], row["network"]))
    cnns = [row for row in rows if row["kind"] == "cnn"]
    hybrids = [row for row in rows if row["kind"] == "hybrid"]
    unknown = [row for row in rows if row["kind"] not in ("cnn", "hybrid")]
    versions = {name: version(name) for name in ("torch", "torchvision", "timm")}
    parts = [HEAD.format(code=_codes(rows, code), **versions)]
    missing = len(registered) - len(rows)
    if missing:
        parts.append(f"**{missing} of {len(registered)} networks have not been run** and are in no table.\n")
    parts.append(_totals({"CNNs": cnns, "hybrids and transformers": hybrids}))
    parts.append(_slowest(rows))
    parts.append("## CNNs\n\n" + _by_file(cnns))
    parts.append("### Partly fixed\n\n" + _partly(cnns))
    parts.append("### Failed\n\n" + _failed([*cnns, *unknown]))
    parts.append("## Hybrids and transformers\n\n" + _by_file(hybrids))
    parts.append("### Partly fixed, by file and reason\n\n" + _partly_by_reason(hybrids))
    parts.append("### Failed\n\n" + _failed(hybrids))
    return "\n".join(parts)


def _codes(rows: Sequence[Row], now: str) -> str:
    codes = Counter(row["code"] for row in rows)
    if set(codes) <= {now}:
        return f"`{now}`"
    return ", ".join(f"`{code}` ({count} rows)" for code, count in codes.most_common()) + f"; at writing `{now}`"


def _totals(groups: dict[str, list[Row]]) -> str:
    head = ("", "networks", "passed", "partly fixed", "failed", "meta only", "least free", "median free")
    table = []
    for name, group in groups.items():
        for library in ("torchvision", "timm"):
            part = [row for row in group if library_of(row["network"]) == library]
            meta = sum(row["with_data"] == "meta" for row in part)
            free = sorted(_number(row, "free_share") for row in part if row["free_share"])
            spread = (_share(free[0]), _share(free[len(free) // 2])) if free else ("", "")
            table.append((f"{name} of {library}", len(part), *_counts(part), meta, *spread))
    return _table(head, table)


def _slowest(rows: Sequence[Row]) -> str:
    timed = sorted((row for row in rows if row["plan_s"]), key=lambda row: -_number(row, "plan_s"))
    table = [
        (row["network"], row["layers"], f"{_number(row, 'plan_s'):.2f}", row["plan_mb"], row["peak_mb"])
        for row in timed[:8]
    ]
    return "The slowest to plan:\n\n" + _table(("network", "layers", "seconds", "MB", "MB of the process"), table)


def _by_file(rows: Sequence[Row]) -> str:
    head = ("file", "networks", "passed", "partly fixed", "failed", "meta only", "least free", "seconds, at most")
    table = []
    for (library, file), group in _grouped(rows).items():
        free = [_number(row, "free_share") for row in group if row["free_share"]]
        seconds = [_number(row, "plan_s") for row in group if row["plan_s"]]
        meta = sum(row["with_data"] == "meta" for row in group)
        least, most = _share(min(free, default=None)), f"{max(seconds):.2f}" if seconds else ""
        table.append((f"{library} `{file}`", len(group), *_counts(group), meta, least, most))
    return _table(head, table)


def _partly(rows: Sequence[Row]) -> str:
    """One row per network, with its reasons."""
    table = []
    for row in rows:
        if row["status"] == "partly fixed":
            errors = [row[f"crop_{share}"] for share in SHARES if row[f"crop_{share}"].startswith("BudgetError")]
            why = row["fixed_by"] or "–"
            table.append((row["network"], _share(_number(row, "free_share")), _cell(why), _cell("; ".join(errors))))
    return _table(("network", "free", "share of the parameters, and the line that fixes them", "out of reach"), table)


def _partly_by_reason(rows: Sequence[Row]) -> str:
    """One row per file and first reason: the networks that share it."""
    alike: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["status"] == "partly fixed":
            first = re.sub(r"^[\d.]+%? ?x? ", "", row["fixed_by"].split(" | ")[0])
            alike[row["file"], first].append(row)
    table = []
    for (file, reason), group in sorted(alike.items()):
        free = [_number(row, "free_share") for row in group]
        unreached = sum(any(row[f"crop_{share}"].startswith("BudgetError") for share in SHARES) for row in group)
        table.append((f"`{file}`", len(group), f"{_share(min(free))} – {_share(max(free))}", _cell(reason), unreached))
    return _table(("file", "networks", "free", "the line that fixes most", "a budget out of reach"), table)


def _failed(rows: Sequence[Row]) -> str:
    return _table(("network", "what happened"), [(row["network"], _what(row)) for row in rows if _bad(row)])


def _what(row: Row) -> str:
    said = [row["message"]] if row["message"] else []
    said += [f"{share}: {crop}" for share in SHARES if not (crop := row[f"crop_{share}"]).startswith("ok") and crop]
    return _cell("; ".join(said) or "–")


def _bad(row: Row) -> bool:
    return row["status"] == "failed"


def _grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[library_of(row["network"]), row["file"]].append(row)
    return dict(sorted(groups.items(), key=lambda item: (item[0][0] != "torchvision", item[0][1])))


def _counts(rows: Sequence[Row]) -> tuple[int, int, int]:
    counts = Counter(row["status"] for row in rows)
    return counts["passed"], counts["partly fixed"], counts["failed"]


def _number(row: Row, column: str) -> float:
    return float(row[column] or "nan")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _cell(text: str) -> str:
    """Text that stays in its cell; source lines are cut where they get long."""
    return text.replace("|", "\\|")[:400]


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "None.\n"
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"

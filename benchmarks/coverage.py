"""Crop every network of torchvision and timm, check each crop, and write the table in docs/COVERAGE.md.

    python benchmarks/coverage.py [--jobs 2] [--csv FILE] [PATTERN ...]    # run: one row per network
    python benchmarks/coverage.py --summary                                # docs/COVERAGE.md from the rows

A PATTERN selects by network (``timm/resnet*``), by file (``byobnet``) or by short name (``resnet18``). Each network
runs in a process of its own, forked from one that has imported everything, on one thread, under a limit of memory and
of time. Rows go to the CSV as they come; networks that have a row are skipped, so that an interrupted run is continued
by the same command. ``--stale`` runs those again whose row was made by other sources of precrop, ``--failed`` those
that did not pass; the last row of a network counts. `coverage_check` says what is checked,
`coverage_networks` what there is.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import hashlib
import json
import signal
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from coverage_check import SHARES, Limits, check
from coverage_networks import Network, all_networks

ROOT = Path(__file__).parents[1]
COLUMNS = (
    *("network", "file", "kind", "status", "params", "macs", "input", "layers", "free_widths", "pinned_layers"),
    *("free_share", "fixed_by", "plan_s", "plan_mb", "peak_mb", "with_data", "size", "round_trip"),
    *(f"{field}_{share}" for share in SHARES for field in ("met", "crop")),
    *("message", "seconds", "code"),
)
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Running:
    """A forked check: its process, the pipe that its row comes through, when it began."""

    network: Network
    pid: int
    pipe: int
    start: float


def sources() -> str:
    """A short name for the state of the sources that a row was made by: tracing, allocating, shrinking, saving."""
    digest = hashlib.sha1()
    for pattern in ("cropping/**/*.py", "scoring/synexp.py", "precrop/checkpoint.py"):
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def selected(patterns: list[str]) -> list[Network]:
    """The networks that any pattern names, in the order of the patterns."""
    networks = all_networks()
    if not patterns:
        return networks
    found: dict[str, Network] = {}
    for pattern in patterns:
        for network in networks:
            keys = (network.name, network.file, network.name.rpartition("/")[2])
            if any(fnmatchcase(key, pattern) for key in keys):
                found.setdefault(network.name, network)
    return list(found.values())


def read_rows(path: Path) -> dict[str, dict[str, str]]:
    """The last row of each network."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["network"]: row for row in csv.DictReader(file)}


def start(network: Network, limits: Limits) -> Running:
    """Fork a process that checks one network and writes its row, as JSON, into a pipe."""
    reader, writer = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Running(network, pid, reader, began)
    code = 1
    try:
        os.close(reader)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        row = check(network, limits)
        os.write(writer, json.dumps(row).encode())
        code = 0
    except BaseException:
        os.write(writer, json.dumps({"message": traceback.format_exc()[-600:]}).encode())
    finally:
        os._exit(code)


def resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20
    except (OSError, IndexError):
        return 0.0


def finish(running: Running, memory_mb: float, time_s: float) -> dict[str, Any] | None:
    """The row of a check that has ended, or is ended here for a limit; None while it runs."""
    stopped = ""
    if resident_mb(running.pid) > memory_mb:
        stopped = f"stopped: over {memory_mb:.0f} MB of memory"
    elif time.monotonic() - running.start > time_s:
        stopped = f"stopped: over {time_s:.0f} s"
    if stopped:
        os.kill(running.pid, signal.SIGKILL)
    pid, code = os.waitpid(running.pid, 0 if stopped else os.WNOHANG)
    if not pid:
        return None
    with os.fdopen(running.pipe, "rb") as pipe:
        text = pipe.read()
    base = {"network": running.network.name, "file": running.network.file, "status": "failed"}
    base["seconds"] = round(time.monotonic() - running.start, 1)
    if stopped or not text:
        return base | {"message": stopped or f"the process ended with status {os.waitstatus_to_exitcode(code)}"}
    row = json.loads(text)
    return {} if row is None else base | row


def run(args: argparse.Namespace) -> None:
    """Check what is selected and has no row yet, ``jobs`` at a time."""
    torch.set_num_threads(1)
    code = sources()
    known = read_rows(args.csv)
    limits = Limits(args.train_params * 1e6, args.train_gmacs * 1e9, args.file_params * 1e6, args.kind)
    waiting = []
    for network in selected(args.patterns):
        row = known.get(network.name)
        again = row and ((args.stale and row["code"] != code) or (args.failed and row["status"] != "passed"))
        if row is None or again:
            waiting.append(network)
    warm_up()
    print(f"{len(waiting)} networks to run, {len(known)} have a row in {args.csv}", flush=True)
    args.csv.parent.mkdir(parents=True, exist_ok=True)
    new = not args.csv.exists()
    total, done = len(waiting), 0
    active: list[Running] = []
    with args.csv.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        if new:
            writer.writeheader()
        while waiting or active:
            while waiting and len(active) < args.jobs:
                active.append(start(waiting.pop(0), limits))
            time.sleep(0.02)
            for running in list(active):
                row = finish(running, args.memory_gb * 1024, args.time)
                if row is None:
                    continue
                active.remove(running)
                done += 1
                if row:
                    writer.writerow(row | {"code": code})
                    file.flush()
                    report(f"[{done}/{total}]", row)


def report(progress: str, row: dict[str, Any]) -> None:
    told = row.get("message") or "; ".join(
        crop for share in SHARES if not str(crop := row.get(f"crop_{share}", "")).startswith("ok")
    )
    free = f"{row['free_share']:.1%} free" if "free_share" in row else ""
    print(progress, row["network"], row.get("kind", ""), row["status"], free, f"{row['seconds']} s", told, flush=True)


def warm_up() -> None:
    """Import and run once what every check needs, so that no check is charged for it."""
    import precrop

    warnings.filterwarnings("ignore")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.safetensors")
        precrop.save(precrop.precrop(precrop.create_model("precrop/resnet20"), 0.5), path)
        precrop.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--csv", type=Path, default=ROOT / "runs" / "coverage.csv")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--memory-gb", type=float, default=6, help="limit of each process")
    parser.add_argument("--time", type=float, default=300, help="limit of each process in seconds")
    parser.add_argument("--kind", choices=("cnn", "hybrid"), default="", help="only networks of this kind")
    parser.add_argument("--train-params", type=float, default=150, metavar="M", help="above, on the meta device only")
    parser.add_argument("--train-gmacs", type=float, default=20, metavar="G", help="of one image; above, likewise")
    parser.add_argument("--file-params", type=float, default=30, metavar="M", help="above, nothing is saved to a file")
    parser.add_argument("--stale", action="store_true", help="run rows of other sources again")
    parser.add_argument("--failed", action="store_true", help="run rows that did not pass again")
    parser.add_argument("--summary", action="store_true", help="write the table and run nothing")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "COVERAGE.md", help="where --summary writes")
    args = parser.parse_args()
    if args.summary:
        from coverage_summary import summary

        args.output.write_text(summary(list(read_rows(args.csv).values()), all_networks(), sources()))
        print(f"wrote {args.output}")
    else:
        run(args)


if __name__ == "__main__":
    main()

"""How much faster an engine runs a crop, beside Torch-Pruning and unstructured masks: the tables of the README.

    pip install -e ".[onnx,openvino]" torch-pruning==1.6.1
    python benchmarks/latency.py [--write docs/LATENCY.md] [--csv FILE] [--json FILE] [--quick] [NETWORK ...]

Each network is timed dense, cropped to shares of its parameters and of its multiply-adds, pruned by Torch-Pruning to
the same multiply-adds, and with masks (`latency_variants.py`), all in turns, by the code of ``precrop bench``: batch
1, float32, one thread. Where crops realise less than 0.95, the worst is profiled by layer (`latency_profile.py`).
Tables go to standard output in Markdown, progress to standard error; files are written after each network.

    python benchmarks/latency.py --targets none onnxruntime openvino     widths for an engine beside the default ones
    python benchmarks/latency.py --round-to 0 8 16 32 --params --peers   widths in units, without peers
    python benchmarks/latency.py --scorers synexp uniform synflow        other scorers

A crop for a target that is an engine of this run is timed in that engine only.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import shlex
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from latency_profile import TOP, Profile, profile
from latency_report import LOW, Row, page, sections, to_csv, to_json
from latency_variants import CROP, DENSE, MASK, NO_TARGET, TORCH_PRUNING, Choices, Variant, variants

import precrop
from precrop.errors import PrecropError
from precrop.export import export_onnx
from precrop.export.bench import BenchRow, bench
from precrop.export.machine import processor, versions
from precrop.export.timing import realised_share
from precrop.files import write_atomically

NETWORKS = (
    "torchvision/resnet50",
    "torchvision/mobilenet_v2",
    "torchvision/shufflenet_v2_x1_0",
    "torchvision/efficientnet_b0",
)
BACKENDS = ("onnxruntime", "openvino")
PEERS = {"torch-pruning": TORCH_PRUNING, "masks": MASK}
PROFILE_ROUNDS = 40


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    if "torch-pruning" in args.peers:
        try:
            version("torch-pruning")
        except PackageNotFoundError:
            sys.exit("torch-pruning is not installed. pip install torch-pruning==1.6.1, or leave it out of --peers.")
    machine = machine_line()
    command = shlex.join(["python", "benchmarks/latency.py", *told(sys.argv[1:])])
    rows: list[Row] = []
    profiles: list[Profile] = []
    begun = time.monotonic()
    try:
        for name in args.networks:
            measured, why = measure(name, args, progress(name, begun))
            rows += measured
            profiles += why
            if args.csv:
                write_atomically(args.csv, to_csv(rows).encode())
            if args.json:
                write_atomically(args.json, to_json(machine, rows, profiles).encode())
            if args.write:
                text = page(command, machine, args.rounds, args.warmup, rows, profiles, TOP)
                write_atomically(args.write, text.encode())
    except PrecropError as error:
        sys.exit(f"error: {error}")
    print(f"{machine}. {args.rounds} rounds.\n\n{sections(rows, profiles)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--params", nargs="*", type=float, default=[0.5, 0.25], help="shares of the parameters")
    parser.add_argument("--macs", nargs="*", type=float, default=[0.5, 0.25], help="shares of the multiply-adds")
    parser.add_argument("--targets", nargs="+", default=[NO_TARGET], help=f"target=; {NO_TARGET}: the default widths")
    parser.add_argument("--round-to", nargs="+", type=int, default=[0], help="round_to=; 0: the default")
    parser.add_argument("--scorers", nargs="+", default=["synexp"])
    parser.add_argument("--peers", nargs="*", default=[*PEERS], choices=[*PEERS])
    parser.add_argument("--peer-round-to", nargs="+", type=int, default=[0, 8, 16], help="Torch-Pruning's; 0: any")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument(
        "--profiles", choices=("worst", "all"), default="worst", help="of the crops that realise little"
    )
    parser.add_argument("--quick", action="store_true", help="macs 0.5 and few rounds: does it run?")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, docs/LATENCY.md")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and profiles")
    args = parser.parse_args()
    if args.quick:
        args.params, args.macs, args.peer_round_to, args.rounds, args.warmup = [], [0.5], [16], 5, 1
    for path in (args.write, args.csv, args.json):
        if path is not None and not path.parent.is_dir():
            parser.error(f"cannot write {path}: its folder does not exist. Create it first.")
    return args


def told(arguments: list[str]) -> list[str]:
    """The arguments that a page depends on: not where else the rows were written."""
    places = [i for i, argument in enumerate(arguments) if argument in ("--csv", "--json")]
    return [argument for i, argument in enumerate(arguments) if i not in places and i - 1 not in places]


def measure(name: str, args: argparse.Namespace, say: Callable[[str], None]) -> tuple[list[Row], list[Profile]]:
    """All rows of one network, and the profiles of the crops that realise little."""
    torch.manual_seed(0)
    dense = precrop.create_model(name).eval()
    shape = precrop.plan(dense, 1.0).input_shape
    choices = Choices(
        budgets=[*(("params", share) for share in args.params), *(("macs", share) for share in args.macs)],
        round_to=args.round_to,
        scorers=args.scorers,
        targets=args.targets,
        peers=[PEERS[peer] for peer in args.peers],
        peer_round_to=args.peer_round_to,
    )
    found = variants(dense, choices, say)
    title = name.rpartition("/")[2]
    rows: list[Row] = []
    profiles: list[Profile] = []
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, Path] = {}
        for variant in found:
            if variant.model is not None:
                say(f"exporting {variant.label}")
                files[variant.label] = Path(folder, f"{len(files)}.onnx")
                export_onnx(variant.model, files[variant.label], shape)
        for backend in args.backends:
            own = [v for v in found if v.target is None or v.target == backend or v.target not in args.backends]
            timed = {v.label: files[v.label] for v in own if v.label in files}
            say(f"timing {len(timed)} networks in {backend}")
            result = bench(timed, backend, rounds=args.rounds, warmup=args.warmup, progress=say)
            measured = {row.name: row for row in result.rows}
            found_rows = [as_row(title, backend, variant, own[0], measured.get(variant.label)) for variant in own]
            rows += found_rows
            profiles += explained(title, backend, own, found_rows, timed, args, say)
    return rows, profiles


def explained(
    title: str,
    backend: str,
    own: list[Variant],
    rows: list[Row],
    timed: dict[str, Path],
    args: argparse.Namespace,
    say: Callable[[str], None],
) -> list[Profile]:
    """The profiles of the crops that realise less than `LOW`: of the one that realises least, or of all."""
    slow = {row.label: row for row in rows if row.method == CROP and not row.failure and row.realised_share < LOW}
    if slow and args.profiles == "worst":
        worst = min(slow, key=lambda label: slow[label].realised_share)
        slow = {worst: slow[worst]}
    if not slow:
        return []
    say(f"profiling {', '.join(slow)} in {backend}")
    files = {DENSE: timed[DENSE], **{label: timed[label] for label in slow}}
    times = bench(files, backend, rounds=min(args.rounds, PROFILE_ROUNDS), warmup=2, layers=True).layers
    crops = [variant for variant in own if variant.label in slow]
    return [profile(title, backend, slow[crop.label].realised_share, own[0], crop, times) for crop in crops]


def as_row(network: str, backend: str, variant: Variant, dense: Variant, measured: BenchRow | None) -> Row:
    """A row of the tables; raises `PrecropError` where the exported file computes other MACs than the network."""
    named = (network, backend, variant.method, variant.kind, variant.share, variant.widths, variant.label)
    if measured is None:
        return Row(*named, failure=variant.failure)
    if measured.macs != (dense if variant.method == MASK else variant).macs:
        raise PrecropError(
            f"{variant.label} of {network} has {variant.macs:,} multiply-adds, and its ONNX file {measured.macs:,}; "
            "expected the same. Look for operators that export.macs does not count."
        )
    macs_ratio = variant.macs / dense.macs
    return Row(
        *named,
        params=variant.params,
        params_ratio=variant.params / dense.params,
        macs=variant.macs,
        macs_ratio=macs_ratio,
        median_ms=measured.median_ms,
        p99_ms=measured.p99_ms,
        speedup=measured.speedup,
        speedup_low=measured.speedup_low,
        speedup_high=measured.speedup_high,
        realised_share=realised_share(measured.speedup, macs_ratio),
    )


def machine_line() -> str:
    """What the figures depend on."""
    found = versions()
    names = [name for name in ("torch", "torchvision", "onnxruntime", "openvino") if name in found]
    listed = [f"Python {found['python']}", *(f"{name} {found[name]}" for name in names)]
    with suppress(PackageNotFoundError):
        listed.append(f"torch-pruning {version('torch-pruning')}")
    return f"Measured on {processor()}, one thread, {', '.join(listed)}"


def progress(network: str, begun: float) -> Callable[[str], None]:
    """Lines on standard error; not one for each round."""

    def say(line: str) -> None:
        if ": round " not in line:
            print(f"{time.monotonic() - begun:6.0f} s  {network}: {line}", file=sys.stderr, flush=True)

    return say


if __name__ == "__main__":
    main()

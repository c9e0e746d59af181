"""How much of the saving in MACs a crop realises as speed, per network, budget and unit of the widths.

    python benchmarks/realised.py [--backend onnxruntime openvino] [--units 0 8 16 32] [--scorers synexp uniform] ...

Crops each network to a share of its multiply-adds with widths in several units (0: the default), exports dense and
cropped to ONNX, and times them in turns, in one process, on one thread, at batch 1. *Realised* is the speed-up times
the MACs ratio: 1 when half the MACs take half the time. Prints one line for each.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from crop_speed import machine

import precrop
from precrop.errors import PrecropError
from precrop.export import export_onnx

NETWORKS = (
    "torchvision/resnet50",
    "torchvision/mobilenet_v2",
    "torchvision/shufflenet_v2_x1_0",
    "torchvision/efficientnet_b0",
)


def runner(backend: str, path: Path, images: Any) -> Any:
    """A function that runs the file once on ``images``, on one thread."""
    if backend == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, {"input": images})
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape(list(images.shape))
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda: request.infer({0: images}, share_inputs=True, share_outputs=True)


def times_ms(runs: list[Any], rounds: int) -> np.ndarray[Any, Any]:
    """(rounds, networks): each round runs each network once, in a changing order."""
    for run in runs * 3:
        run()
    taken = np.zeros((rounds, len(runs)))
    for turn in range(rounds):
        for i in np.roll(np.arange(len(runs)), turn):
            start = time.perf_counter()
            runs[i]()
            taken[turn, i] = (time.perf_counter() - start) * 1e3
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--backends", nargs="+", default=["onnxruntime", "openvino"])
    parser.add_argument("--kind", choices=("macs", "params"), default="macs")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.5])
    parser.add_argument("--units", nargs="+", type=int, default=[0], help="round_to; 0 is the default")
    parser.add_argument("--scorers", nargs="+", default=["synexp"])
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine("torch", "torchvision", "onnxruntime"), "\n")
    print(
        "| network | crop | MACs | params | backend | ms | speed-up | realised |\n|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in args.networks:
        torch.manual_seed(0)
        dense = precrop.create_model(name).eval()
        crops = {"dense": dense}
        for share in args.shares:
            for scorer in args.scorers:
                for unit in args.units:
                    try:
                        crop = precrop.precrop(dense, scorer=scorer, round_to=unit or None, **{args.kind: share})
                    except PrecropError as error:
                        print(name, unit, error)
                        continue
                    crops[f"{args.kind} {share:g} {scorer} {unit or 'default'}"] = crop.eval()
        shape = precrop.plan(dense, 1.0).input_shape
        images = np.random.default_rng(0).standard_normal((1, *shape), dtype=np.float32)
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i, model in enumerate(crops.values()):
                paths.append(Path(folder, f"{i}.onnx"))
                export_onnx(model, paths[-1], shape)
            for backend in args.backends:
                taken = times_ms([runner(backend, path, images) for path in paths], args.rounds)
                median = np.median(taken, axis=0)
                for (title, model), ms, ratio in zip(
                    crops.items(), median, np.median(taken[:, :1] / taken, axis=0), strict=True
                ):
                    plan = getattr(model, "crop_plan", None)
                    macs, params = (plan.macs_ratio, plan.params_ratio) if plan else (1.0, 1.0)
                    numbers = f"{macs:.3f} | {params:.3f} | {backend} | {ms:.2f} | {ratio:.2f} | {ratio * macs:.2f}"
                    print(f"| {name} | {title} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()

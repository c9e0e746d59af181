"""The commands that leave PyTorch: ``precrop export`` and ``precrop bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from precrop.cli_options import (
    DataRoot,
    InputShape,
    Model,
    ModelArgs,
    Original,
    build_model,
    check_output,
    is_checkpoint,
    new_console,
    parsed_shape,
)
from precrop.errors import ExportError, PrecropError

Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="DATA",
        help="A data set of the recipes, such as digits, whose images give int8 its ranges.",
        show_default=False,
    ),
]
PrecisionName = Annotated[str, typer.Option(metavar="TYPE", help="fp32, fp16, bf16 or int8.")]
CALIBRATION_BATCH = 32


def export(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file: .onnx, .plan, .engine or .xml.", show_default=False
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="onnx, tensorrt or openvino; by default what FILE's suffix says.", show_default=False
        ),
    ] = None,
    precision: PrecisionName = "fp32",
    batch: Annotated[str, typer.Option(metavar="N,N,N", help="Batch sizes to build for.")] = "1,8,32",
    calibration: Calibration = None,
    data_root: DataRoot = None,
    layers: Annotated[bool, typer.Option("--layers", help="Print each layer's time in the engine.")] = False,
    input_shape: InputShape = None,
    seed: Annotated[int, typer.Option(help="Seed of fresh weights and of the check's images.")] = 0,
    model_arg: ModelArgs = None,
    original: Original = None,
) -> None:
    """Write MODEL as a file of an engine, checked against PyTorch, with a description beside it (FILE.json)."""
    import torch

    from precrop.export import export as export_model
    from precrop.export.backends import backend_for_format
    from precrop.export.parity import parity_text

    console = new_console()
    backend_for_format(to, output.suffix)
    check_output(output, output.suffix)
    torch.manual_seed(seed)
    with console.status(f"building {model}"):
        network = build_model(model, model_arg, original)
        shape = _image_shape(network, input_shape, bool(calibration))
        loader = _calibration(calibration, data_root, shape)
    with console.status(f"exporting {model} to {output}"):
        done = export_model(
            network,
            output,
            to=to,
            precision=precision,
            batch=batch_sizes(batch),
            calibration=loader,
            input_shape=shape,
            seed=seed,
        )
    console.print(
        f"saved {done.path} ({done.size_bytes:,} bytes), {done.format} {done.precision}, described in "
        f"{done.sidecar.name}"
    )
    console.print(f"{parity_text(done.deviation, done.precision)} (in {done.checked_in})")
    if layers:
        _print_layers(console, done, seed)


def bench(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="A B ...",
            help="Checkpoints, MODEL names or .onnx files; the first is the reference.",
            show_default=False,
        ),
    ],
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="onnxruntime, openvino, torch, torch-compile or tensorrt.")
    ] = "onnxruntime",
    batch: Annotated[str, typer.Option(metavar="N,N", help="Batch sizes, each measured on its own.")] = "1",
    threads: Annotated[int, typer.Option(help="Threads within an operator.")] = 1,
    precision: PrecisionName = "fp32",
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cpu or cuda; by default the backend's own.", show_default=False)
    ] = None,
    calibration: Calibration = None,
    data_root: DataRoot = None,
    rounds: Annotated[int, typer.Option(help="Rounds that count; each runs every network once.")] = 200,
    warmup: Annotated[int, typer.Option(help="Rounds before them.")] = 20,
    layers: Annotated[bool, typer.Option("--layers", help="Print each layer's time in the engine.")] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table.", show_default=False)
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all of it.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the speed-ups: .png or .svg.", show_default=False)
    ] = None,
    input_shape: InputShape = None,
    seed: Annotated[int, typer.Option(help="Seed of fresh weights and of the images.")] = 0,
    model_arg: ModelArgs = None,
    original: Original = None,
) -> None:
    """Time networks in an engine, in turns, and print what each crop realises of its saving in MACs."""
    import torch

    from precrop.export.bench import bench as measure
    from precrop.export.extras import require
    from precrop.export.report import bench_table, compared_table, layers_table, machine_line, plot_bench
    from precrop.files import write_atomically

    console = new_console()
    for path, suffixes in ((csv, (".csv",)), (json, (".json",)), (plot, (".png", ".svg"))):
        check_output(path, *suffixes)
    if plot is not None:
        require("plot", "matplotlib")
    if original is not None and not any(map(is_checkpoint, networks)):
        raise PrecropError("--original is given, and no checkpoint that it could be the original of. Leave it out.")
    torch.manual_seed(seed)
    built: dict[str, Any] = {}
    with console.status("building the networks") as status:
        for name in networks:
            built[_unused(name, built)] = _network(name, model_arg, original if is_checkpoint(name) else None)
        shape = parsed_shape(input_shape)
        if calibration is not None:
            shape = _image_shape(next((m for m in built.values() if not isinstance(m, Path)), None), input_shape, True)
        result = measure(
            built,
            backend,
            batch=batch_sizes(batch),
            threads=threads,
            precision=precision,
            device=device,
            calibration=_calibration(calibration, data_root, shape),
            input_shape=shape,
            rounds=rounds,
            warmup=warmup,
            layers=layers,
            seed=seed,
            progress=status.update,
        )
    console.print(bench_table(result))
    console.print(machine_line(result))
    console.print(
        "speed-up: the median over the rounds; realised: the speed-up times the MACs ratio, 1 where half takes half"
    )
    if result.layers:
        named = {name: found for name, found in result.layers.items() if any(layer.layer for layer in found)}
        if len(named) == len(result.layers):
            console.print(compared_table(result.layers))
        else:
            for name, found in result.layers.items():
                console.print(name)
                console.print(layers_table(found))
    if csv is not None:
        write_atomically(csv, result.to_csv().encode())
    if json is not None:
        write_atomically(json, (result.to_json() + "\n").encode())
    if plot is not None:
        plot_bench(result, plot)
    for path in (csv, json, plot):
        if path is not None:
            console.print(f"saved {path}")


def batch_sizes(text: str) -> tuple[int, ...]:
    """``1,8,32`` as numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ExportError(f"--batch is {text!r}; expected numbers such as 1,8,32.") from None


def _image_shape(network: Any, text: str | None, needed: bool) -> tuple[int, ...] | None:
    """The shape given; else, where data must be made to fit it, the network's own."""
    shape = parsed_shape(text)
    if shape is None and needed and network is not None:
        from precrop.export.front import image_shape

        shape = image_shape(network.eval(), None)
    return shape


def _calibration(name: str | None, root: str | None, shape: Sequence[int] | None) -> Any:
    from precrop.cli_scoring import data_loader

    try:
        return data_loader(name, root, CALIBRATION_BATCH, None if shape is None else tuple(shape))
    except PrecropError as error:
        raise type(error)(
            str(error).replace("--data", "--calibration").replace("--calibration-root", "--data-root")
        ) from error


def _network(name: str, model_arg: list[str] | None, original: str | None) -> Any:
    """An ONNX file's path, or the network of a MODEL name or a checkpoint."""
    from precrop.export.backends import BACKENDS

    suffix = Path(name).suffix
    if suffix == ".onnx":
        return Path(name)
    if any(suffix in row.suffixes for row in BACKENDS.values()):
        raise ExportError(
            f"{name} is an engine, which does not tell its MACs, and bench builds its own. Expected a checkpoint, a "
            "MODEL name or an .onnx file."
        )
    return build_model(name, model_arg, original)


def _unused(name: str, taken: dict[str, Any]) -> str:
    """The name, numbered if it is given twice."""
    names = (name, *(f"{name} #{count}" for count in range(2, len(taken) + 2)))
    return next(candidate for candidate in names if candidate not in taken)


def _print_layers(console: Any, done: Any, seed: int) -> None:
    """Each layer's time; where the engine cannot run here, the reason."""
    import json

    from precrop.export.backends import RunSettings, backend_for_format, named
    from precrop.export.bench import LAYER_ROUNDS
    from precrop.export.parity import parity_images
    from precrop.export.report import layers_table

    row = backend_for_format(done.format, done.path.suffix)
    (images,) = parity_images(done.input_shape, seed, done.batch[:1])
    try:
        if done.precision not in row.runs:
            raise ExportError(f"{row.title} has no {done.precision}.")
        with row.runner(done.path, images, RunSettings(1, row.devices[0], done.precision)) as runner:
            runner.run()
            found = named(runner.layers(LAYER_ROUNDS), json.loads(done.sidecar.read_text())["modules"])
    except PrecropError as error:
        console.print(f"no times by layer: {error}")
        return
    console.print(f"layers at batch {done.batch[0]}, one thread, in {row.title}:")
    console.print(layers_table(found))


def add_to(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.command()(export)
    app.command()(bench)

"""The command line: ``precrop inspect``, ``score``, ``crop``, ``train``, ``export``, ``bench``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from precrop import cli_export
from precrop.cli_options import (
    BatchSize,
    DataName,
    DataRoot,
    Ignore,
    InputShape,
    Model,
    ModelArgs,
    Original,
    build_model,
    check_output,
    new_console,
    parsed_shape,
    share_of,
)
from precrop.errors import PrecropError

app = typer.Typer(
    help="Crop convolutional networks to a budget before they are trained.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Crop convolutional networks to a budget before they are trained."""
    if version:
        from precrop import __version__

        typer.echo(f"precrop {__version__}")
        raise typer.Exit


@app.command()
def inspect(
    model: Model,
    input_shape: InputShape = None,
    model_arg: ModelArgs = None,
    ignore: Ignore = None,
    original: Original = None,
) -> None:
    """List every width of MODEL: free, tied with which layers, or fixed by which source line."""
    from precrop import api
    from precrop.tables import fixed_table, size_line, width_table

    console = new_console()
    with console.status(f"building and tracing {model}"):
        graph = api.inspect(build_model(model, model_arg, original), parsed_shape(input_shape), ignore or ())
    console.print(f"{model}, input {'x'.join(map(str, graph.input_shape))}: {size_line(graph.size(graph.original))}")
    console.print(width_table(graph))
    if graph.fixed:
        console.print(fixed_table(graph))


@app.command()
def score(
    model: Model,
    scorer: Annotated[str, typer.Option(help="A scorer's name; an unknown one lists all.")] = "synflow",
    density: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of all weights to keep, 0 < density <= 1.")
    ] = "0.1",
    data: DataName = None,
    data_root: DataRoot = None,
    batch_size: BatchSize = 128,
    batches: Annotated[int | None, typer.Option(min=1, help="Batches in each round.", show_default=False)] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw a bar chart: .png or .svg.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Save the densities as .json.", show_default=False),
    ] = None,
    input_shape: InputShape = None,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights and of the scorer.")] = 0,
    model_arg: ModelArgs = None,
    original: Original = None,
) -> None:
    """Score MODEL and print the share of each layer's weights to keep."""
    import torch

    from precrop import api
    from precrop.cli_scoring import data_loader, progress_bar
    from precrop.scoring.run import scorer_named
    from precrop.tables import densities_line, densities_table

    console = new_console()
    check_output(plot, ".png", ".svg")
    check_output(output, ".json")
    row = scorer_named(scorer)
    if plot is not None:
        from precrop.export.extras import require

        require("plot", "matplotlib")
    torch.manual_seed(seed)
    with console.status(f"building {model}"):
        network = build_model(model, model_arg, original)
        loader = data_loader(data, data_root, batch_size, parsed_shape(input_shape)) if row.needs_data else None
    with progress_bar(scorer) as report:
        densities = api.score(
            network,
            scorer,
            share_of(density),
            data=loader,
            input_shape=parsed_shape(input_shape),
            batches=batches,
            seed=seed,
            progress=report,
        )
    console.print(densities_table(densities))
    console.print(densities_line(densities))
    if plot is not None:
        from precrop.plotting import plot_densities

        plot_densities(densities, plot, title=f"{model}, {scorer} at density {densities.density:g}")
        console.print(f"saved {plot}")
    if output is not None:
        densities.save(output)
        console.print(f"saved {output}")


@app.command()
def crop(
    model: Model,
    ratio: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share kept of parameters and MACs alike, 0 < ratio <= 1.",
            show_default=False,
        ),
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of the parameters kept.", show_default=False)
    ] = None,
    macs: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of the multiply-adds kept.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Save the cropped network: .safetensors (weights and plan) or .json (the plan alone).",
            show_default=False,
        ),
    ] = None,
    scorer: Annotated[
        str,
        typer.Option(
            help="What spreads the budget over the layers: synexp, uniform, a scorer of `precrop score`, or the .json "
            "that it saved."
        ),
    ] = "synexp",
    data: DataName = None,
    data_root: DataRoot = None,
    batch_size: BatchSize = 128,
    round_to: Annotated[
        int | None,
        typer.Option(
            help="Widths become multiples of this; by default of 16, or of less in a network narrower than 128.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Make the crop fast in this engine: onnxruntime, openvino or tensorrt.",
            show_default=False,
        ),
    ] = None,
    ignore: Ignore = None,
    input_shape: InputShape = None,
    widen: Annotated[bool, typer.Option("--widen", help="Let layers grow beyond their own width (PreConfig).")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the fresh weights.")] = 0,
    model_arg: ModelArgs = None,
    original: Original = None,
) -> None:
    """Crop MODEL to a budget, print its plan, and save it with -o."""
    import torch

    from precrop import api
    from precrop.checkpoint import save
    from precrop.cli_scoring import densities_for
    from precrop.tables import layer_table, plan_lines

    console = new_console()
    check_output(output, ".safetensors", ".json")
    torch.manual_seed(seed)
    budget = {"ratio": share_of(ratio), "params": share_of(params), "macs": share_of(macs)}
    with console.status(f"building {model}"):
        network = build_model(model, model_arg, original)
    densities = densities_for(network, scorer, budget, data, data_root, batch_size, parsed_shape(input_shape), seed)
    with console.status(f"cropping {model}"):
        small = api.precrop(
            network,
            **budget,
            scorer=densities,
            round_to=round_to,
            target=target,
            ignore=ignore or (),
            input_shape=parsed_shape(input_shape),
            widen=widen,
        )
    plan: Any = small.crop_plan
    console.print(layer_table(plan))
    for line in plan_lines(plan):
        console.print(line)
    if output is None:
        console.print("nothing saved; pass -o FILE.safetensors to keep it")
    elif output.suffix == ".json":
        plan.save(output)
    else:
        save(small, output)
    if output is not None:
        console.print(f"saved {output} ({output.stat().st_size:,} bytes)")


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/configs/digits.yaml.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Change recipe entries, such as train.epochs=5.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where the run's folder is made.")] = Path("runs"),
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an earlier run of the same recipe left.")
    ] = False,
) -> None:
    """Train what a recipe describes, in all its variants and seeds; export and measure each.

    A run that was stopped, or killed, goes on where it was when the same command is given again.
    """
    from precrop.recipes import launch, load_recipe
    from precrop.recipes import train as run_recipe

    checked = load_recipe(recipe, overrides or ())
    count = launch.to_start(checked.execution)
    if count > 1:
        sys.exit(launch.start(count, sys.argv[1:]))
    run_recipe(checked, (), runs, restart=restart)


cli_export.add_to(app)


def main() -> None:
    """Run the command line; an error of precrop's own is one message, never a traceback."""
    from precrop.errors import PrecropWarning

    warnings.showwarning = _show_warning  # type: ignore[assignment]
    warnings.simplefilter("always", PrecropWarning)
    try:
        app()
    except PrecropError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


def _show_warning(message: Any, category: type[Warning], *place: Any) -> None:
    from precrop.errors import PrecropWarning

    if issubclass(category, PrecropWarning):
        typer.echo(f"warning: {message}", err=True)

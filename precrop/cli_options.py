"""What the commands share: options, how a model is built, where is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from precrop.errors import PrecropError

_MODEL_HELP = "timm/NAME, torchvision/NAME, precrop/NAME, file.py:factory, or a saved checkpoint."

Model = Annotated[str, typer.Argument(help=_MODEL_HELP, show_default=False)]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="C,H,W",
        help="One image's shape; by default the model's own.",
        show_default=False,
    ),
]
ModelArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--model-arg",
        metavar="KEY=VALUE",
        help="Passed to the model's builder, such as num_classes=10.",
        show_default=False,
    ),
]
Original = Annotated[
    str | None,
    typer.Option(
        "--original",
        metavar="MODEL",
        help="What a checkpoint was cropped from, where that is a network of your own: file.py:factory.",
        show_default=False,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="LAYER",
        help="A layer, module or pattern whose output width stays; may be repeated.",
        show_default=False,
    ),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        help="A data set of the recipes, such as digits, for a scorer that needs data.",
        show_default=False,
    ),
]
DataRoot = Annotated[
    str | None,
    typer.Option("--data-root", metavar="DIR", help="Where that data set's files are.", show_default=False),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Images in a batch, for a scorer that needs data.")]


def new_console() -> Any:
    """A console for results."""
    from rich.console import Console

    # Names and numbers are printed as they are; a pipe gets whole lines, not ones cut at 80 columns.
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=140)


def check_output(path: Path | None, *suffixes: str) -> None:
    """Refuse before the work what would fail after it."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise PrecropError(f"cannot tell what to write to {path}: expected a name ending in {' or '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise PrecropError(f"cannot write {path}: the folder {path.parent} does not exist. Create it first.")


def share_of(text: str | None) -> Any:
    """A share as a number; what is none is left for the API to refuse, which explains the convention."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def build_model(name: str, model_args: list[str] | None, original: str | None = None) -> Any:
    """The network of a MODEL name and KEY=VALUE arguments; with ``original``, which they then go to, of a checkpoint.

    Raises `PrecropError` for an ``original`` of what is no checkpoint.
    """
    import yaml

    from precrop.checkpoint import load
    from precrop.names import create_model

    kwargs = {}
    for entry in model_args or ():
        key, equals, value = entry.partition("=")
        if not equals:
            raise PrecropError(f"--model-arg is {entry!r}; expected KEY=VALUE, such as num_classes=10.")
        try:
            kwargs[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise PrecropError(f"--model-arg {key} is {value!r}, which is no YAML value.") from error
    if original is None:
        return create_model(name, **kwargs)
    if not is_checkpoint(name):
        raise PrecropError(
            f"--original is given, and {name} is no checkpoint: it is built by its own name. Leave it out."
        )
    return load(name, model=create_model(original, **kwargs))


def is_checkpoint(name: str) -> bool:
    """Whether a MODEL name is that of a file which `precrop.save` wrote."""
    return name.endswith(".safetensors")


def parsed_shape(text: str | None) -> tuple[int, ...] | None:
    """``3,224,224`` as numbers."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise PrecropError(f"--input-shape is {text!r}; expected numbers such as 3,224,224.") from None

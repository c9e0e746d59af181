"""From a recipe to trained, exported and measured variants of one network."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

import precrop
from precrop.crop_plan import CropPlan
from precrop.errors import PrecropError, RecipeError
from precrop.export import export_onnx, measure_latency
from precrop.export.extras import require
from precrop.recipes.data import DATASETS, ImageData
from precrop.recipes.loading import dump_recipe, load_recipe
from precrop.recipes.results import RunResult, VariantResult
from precrop.recipes.schema import Recipe, Variant

CHANNELS_BY_DEFAULT = 3


def train(
    path_or_recipe: str | Path | Recipe,
    overrides: Sequence[str] = (),
    runs_dir: str | Path = "runs",
    console: Console | None = None,
) -> RunResult:
    """Train every variant of a recipe, export and time them, and print one table.

    The files land in ``runs_dir/<name>-<hash of the resolved recipe>/``: ``recipe.yaml``,
    ``metrics.json`` and ``metrics.csv``, and for each variant a folder with ``plan.json``,
    ``model.safetensors``, ``model.onnx`` and the training's own ``metrics.csv``. The folder
    appears when the run is complete; one that an earlier run of the same recipe left is
    replaced then. A failed run leaves nothing (one killed outright, a hidden ``.part`` folder).

    Args:
        path_or_recipe: a YAML file, the name of a shipped recipe, or a recipe.
        overrides: ``section.key=value``, checked as the file is.
        runs_dir: where runs are collected; made if absent.
        console: where progress and the table go (none: standard output).

    Raises:
        RecipeError: the recipe is faulty, does not fit its data, or its loss is no longer finite.
        MissingExtraError: what the recipe needs is not installed.
        PrecropError: the network cannot be cropped as asked or exported, or a file cannot be written.
    """
    recipe = load_recipe(path_or_recipe, overrides)
    console = console or Console()
    with console.status("loading"):
        require("train", "lightning")
        if recipe.export is not None:
            require("onnx", "onnx", "onnxscript", "onnxruntime")
        data = DATASETS[recipe.data.name](recipe.data)
    with _threads(recipe.execution.threads):
        with console.status("cropping"):
            original = _original(recipe, data)
            # All plans first: a budget that cannot be met is found before anything is trained.
            plans = {name: _plan(original, recipe, variant, data) for name, variant in recipe.variants.items()}
        target = Path(runs_dir) / f"{recipe.name}-{recipe.digest()}"
        with _run_folder(target, console) as folder:
            result = _run(recipe, data, original, plans, folder, console)
    result = replace(result, folder=target)
    console.print(result.table())
    console.print(f"files: {target}", highlight=False, soft_wrap=True)
    return result


def _run(
    recipe: Recipe,
    data: ImageData,
    original: nn.Module,
    plans: dict[str, CropPlan],
    folder: Path,
    console: Console,
) -> RunResult:
    (folder / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    networks, results = _train_variants(recipe, data, original, plans, folder, console)
    if recipe.export is not None:
        paths = {name: folder / name / "model.onnx" for name in networks}
        for name, network in networks.items():
            with console.status(f"exporting {name} to ONNX"):
                exported = export_onnx(network, paths[name], data.shape)
            results[name] = replace(
                results[name], onnx_max_abs_error=exported.max_abs_error, onnx_size_bytes=exported.size_bytes
            )
            console.print(
                f"{name:<10} ONNX: {exported.size_bytes / 1e3:,.0f} kB, largest error against PyTorch "
                f"{exported.max_abs_error:.1e}",
                highlight=False,
            )
        if recipe.export.latency is not None:
            with console.status("timing in ONNX Runtime"):
                timed = measure_latency(paths, **recipe.export.latency.model_dump())
            for name, latency in timed.items():
                results[name] = replace(results[name], latency_ms=latency.median_ms, latency_p99_ms=latency.p99_ms)
    result = RunResult(folder, recipe, tuple(results.values()))
    (folder / "metrics.json").write_text(result.to_json() + "\n", encoding="utf-8")
    (folder / "metrics.csv").write_text(result.to_csv(), encoding="utf-8")
    return result


def _train_variants(
    recipe: Recipe,
    data: ImageData,
    original: nn.Module,
    plans: dict[str, CropPlan],
    folder: Path,
    console: Console,
) -> tuple[dict[str, nn.Module], dict[str, VariantResult]]:
    from precrop.recipes.progress import VariantBar, progress_bars
    from precrop.recipes.training import fit

    networks: dict[str, nn.Module] = {}
    results: dict[str, VariantResult] = {}
    with progress_bars(console) as progress:
        for name, plan in plans.items():
            torch.manual_seed(recipe.seed)
            network = precrop.apply(original, plan)
            (folder / name).mkdir()
            try:
                outcome = fit(network, data, recipe, folder / name, [VariantBar(progress, name)])
            except RecipeError as error:
                raise RecipeError(f"variant {name}: {error}") from error
            plan.save(folder / name / "plan.json")
            precrop.save(network, folder / name / "model.safetensors")
            networks[name] = network
            results[name] = VariantResult(
                name=name,
                cropped=recipe.variants[name].crop,
                params=plan.cropped.params,
                macs=plan.cropped.macs,
                accuracy=outcome.accuracy,
                train_s=outcome.train_s,
            )
    return networks, results


def _original(recipe: Recipe, data: ImageData) -> nn.Module:
    """The network as its name says, made for the data's classes and channels; checked on one image."""
    kwargs = dict(recipe.model.kwargs)
    channels = data.shape[0]
    if not re.search(r"\.py:\w+$|\.safetensors$", recipe.model.name):
        kwargs.setdefault("num_classes", data.classes)
        if channels != CHANNELS_BY_DEFAULT:
            kwargs.setdefault("in_chans", channels)
    torch.manual_seed(recipe.seed)
    network = precrop.create_model(recipe.model.name, **kwargs)
    was_training = network.training
    try:
        with torch.inference_mode():
            scores = network.eval()(torch.zeros(1, *data.shape))
    except RuntimeError as error:
        raise RecipeError(
            f"model: {recipe.model.name} does not run on an image {data.shape} of {recipe.data.name}: "
            f"{str(error).partition(chr(10))[0]}. Expected a network for this size (see data.image_size)."
        ) from error
    network.train(was_training)
    shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if shape != (1, data.classes):
        raise RecipeError(
            f"model: {recipe.model.name} gives outputs {shape} for one image; expected (1, {data.classes}), "
            f"a score for each class of {recipe.data.name}. Set model.kwargs.num_classes."
        )
    return network


def _plan(original: nn.Module, recipe: Recipe, variant: Variant, data: ImageData) -> CropPlan:
    if not variant.crop:
        return precrop.plan(original, 1.0, scorer="uniform", input_shape=data.shape)
    crop = recipe.crop
    assert crop is not None  # the schema refuses a cropping variant without a budget
    return precrop.plan(
        original,
        crop.ratio,
        params=crop.params,
        macs=crop.macs,
        scorer=variant.scorer or crop.scorer,
        round_to=crop.round_to,
        ignore=tuple(crop.ignore),
        input_shape=data.shape,
        widen=crop.widen,
    )


@contextmanager
def _run_folder(target: Path, console: Console) -> Iterator[Path]:
    """A folder beside ``target`` that becomes it when the block succeeds and vanishes when it fails."""
    if target.exists():
        console.print(f"{target} is replaced when this run is complete", highlight=False, soft_wrap=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    except OSError as error:
        raise PrecropError(f"cannot write the run folder {target}: {error.strerror}. Choose another one.") from error
    try:
        yield beside
        beside.chmod(target.parent.stat().st_mode)
        retired = beside.with_suffix(".old")
        if target.exists():
            target.rename(retired)
        beside.rename(target)
        shutil.rmtree(retired, ignore_errors=True)
    except OSError as error:
        raise PrecropError(f"cannot write the run folder {target}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Run with ``count`` torch threads (none: as it is), then as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

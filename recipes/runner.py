"""From a recipe to trained, exported and measured variants of one network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn

import precrop
from precrop.crop_plan import CropPlan
from precrop.errors import RecipeError
from precrop.export.extras import require
from precrop.files import replacing, write_atomically
from precrop.recipes import masks
from precrop.recipes.data import ImageData, load_data
from precrop.recipes.exporting import calibration_for, check_export, with_latency, write_files
from precrop.recipes.folders import locked, run_folder, training_folder
from precrop.recipes.launch import Processes, joined
from precrop.recipes.loading import dump_recipe, load_recipe
from precrop.recipes.results import RunResult, Training, VariantResult, environment
from precrop.recipes.schema import Export, Recipe
from precrop.recipes.variants import Design, build, design, original


def train(
    path_or_recipe: str | Path | Recipe,
    overrides: Sequence[str] = (),
    runs_dir: str | Path = "runs",
    console: Console | None = None,
    restart: bool = False,
) -> RunResult:
    """Train every variant of a recipe, export and time them, and print one table.

    The files land in ``runs_dir/<name>-<hash of what is computed>/``: ``recipe.yaml``, ``metrics.json``,
    ``metrics.csv``, ``report.html`` and plots, and for each variant and seed a folder ``<variant>/seed<n>`` with
    ``plan.json``, ``model.safetensors``, ``checkpoints/``, ``result.json``, the training's own ``metrics.csv``, and for
    the first seed ``model.onnx`` or what else ``export.to`` names. A run that was stopped, however it was, goes on
    from its last whole checkpoint when it is started again; variants that are finished are not trained again.

    Under ``torchrun`` all processes call this; the first one writes and prints.

    Args:
        path_or_recipe: a YAML file, the name of a shipped recipe, or a recipe.
        overrides: ``section.key=value``, checked as the file is.
        runs_dir: where runs are collected; made if absent.
        console: where progress and the table go (none: standard output).
        restart: forget what an earlier run of the same recipe left.

    Raises:
        RecipeError: the recipe is faulty, does not fit its data, or its loss is no longer finite.
        MissingExtraError: what the recipe needs is not installed.
        PrecropError: the network cannot be cropped as asked or exported, a file cannot be written, or
            another run of the same recipe is at work.
    """
    recipe = load_recipe(path_or_recipe, overrides)
    with joined(recipe.execution) as group:
        console = console or Console()
        if not group.first:
            console = Console(quiet=True)
        with console.status("loading"):
            require("train", "lightning", "tensorboard", "matplotlib")
            if recipe.export is not None:
                require("onnx", "onnx", "onnxscript", "onnxruntime")
                check_export(recipe.export)
            data = load_data(recipe.data)
        run = _Run(recipe, data, run_folder(runs_dir, recipe), group, console)
        with _threads(recipe.execution.threads):
            # The first seed's plans first: a budget that cannot be met is found before anything is trained.
            with console.status("cropping"):
                network = original(recipe, data, recipe.seed)
                for name in recipe.variants:
                    run.designs[name, recipe.seed] = run.designed(network, name, recipe.seed)
            with locked(run.folder, restart, run.say) if group.first else nullcontext():
                group.wait()
                result = run.all()
    if group.first:
        console.print(result.table())
        console.print(f"report: {run.folder / 'report.html'}", highlight=False, soft_wrap=True)
        console.print(f"files: {run.folder}", highlight=False, soft_wrap=True)
    return result


@dataclass
class _Run:
    """A recipe on its data in its folder, as one of the processes of ``group``."""

    recipe: Recipe
    data: ImageData
    folder: Path
    group: Processes
    console: Console

    def __post_init__(self) -> None:
        self.designs: dict[tuple[str, int], Design] = {}

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def all(self) -> RunResult:
        """Everything, in order; what is finished already is not done again."""
        recipe = self.recipe
        if self.group.first:
            write_atomically(self.folder / "recipe.yaml", dump_recipe(recipe).encode())
        trainings: dict[str, list[Training]] = {name: [] for name in recipe.variants}
        # A seed of every variant before the next seed: an unfinished run can be compared, too.
        for seed in range(recipe.seed, recipe.seed + recipe.seeds):
            for name in recipe.variants:
                trainings[name].append(self.training(name, seed))
        variants = [VariantResult.over(name, recipe.variants[name].crop, found) for name, found in trainings.items()]
        if not self.group.first:
            return RunResult(self.folder, recipe, tuple(variants))
        if recipe.export is not None:
            variants = self.exported(recipe.export, variants)
        result = RunResult(self.folder, recipe, tuple(variants))
        write_atomically(self.folder / "metrics.json", (result.to_json() + "\n").encode())
        write_atomically(self.folder / "metrics.csv", result.to_csv().encode())
        self.reported(result)
        return result

    def training(self, name: str, seed: int) -> Training:
        """One variant with one seed, trained to the end."""
        from precrop.recipes.training import checkpoints, fit
        from precrop.recipes.training.progress import VariantBar, progress_bars

        recipe, place = self.recipe, training_folder(self.folder, name, seed)
        title = name if recipe.seeds == 1 else f"{name}/{seed}"
        of = f"{recipe.name}-{recipe.digest()} {name} seed {seed}"
        finished = self.group.agree(Training.load(place, of) if self.group.first else None)
        if finished is not None:
            self.say(f"{title:<10} finished before: {finished.accuracy:.2%} (--restart trains it again)")
            return finished
        network = original(recipe, self.data, seed)
        made = self.designs.get((name, seed)) or self.designed(network, name, seed)
        network = build(network, recipe.variants[name], made, recipe, self.data, seed)
        if self.group.first:
            place.mkdir(parents=True, exist_ok=True)
            made.plan.save(place / "plan.json")
            if made.masks:
                with replacing(place / "mask.safetensors") as beside:
                    save_file(made.masks, beside)
        try:
            with progress_bars(self.console) as progress:
                outcome = fit(
                    network,
                    self.data,
                    recipe,
                    place,
                    [VariantBar(progress, title)] if self.group.first else [],
                    seed=seed,
                    masks=made.masks,
                    of=f"{of}, tensors {_fingerprint(network)}",
                    say=lambda text: self.say(f"{title:<10} {text}"),
                )
        except RecipeError as error:
            saved = checkpoints(place / "checkpoints") if self.group.first else []
            kept = f" The last good checkpoint is kept: {saved[0]}" if saved else ""
            raise RecipeError(f"variant {title}: {error}{kept}") from error
        result = Training(
            of=of,
            variant=name,
            seed=seed,
            params=made.params,
            macs=made.macs,
            accuracy=outcome.accuracy,
            train_s=outcome.train_s,
            history=outcome.history,
            execution=recipe.execution.model_dump(mode="json"),
            environment=environment(),
        )
        if self.group.first:
            precrop.save(network, place / "model.safetensors")
            result.save(place)
        return result

    def designed(self, network: nn.Module, name: str, seed: int) -> Design:
        """What is made of the original: decided once, by the first process, and kept for when a run is taken up."""
        return self.group.agree(self._design(network, name, seed) if self.group.first else None)  # type: ignore[return-value]

    def _design(self, network: nn.Module, name: str, seed: int) -> Design:
        place = training_folder(self.folder, name, seed)
        variant = self.recipe.variants[name]
        masked = variant.weights == "mask"
        if (place / "checkpoints").is_dir() and (place / "plan.json").is_file():
            path = place / "mask.safetensors"
            if not masked or path.is_file():
                return Design(CropPlan.load(place / "plan.json"), masks.load(path, network) if masked else {})
        return design(network, self.recipe, variant, self.data, seed)

    def exported(self, asked: Export, variants: list[VariantResult]) -> list[VariantResult]:
        """The first seed's networks as files of engines, checked against PyTorch, and timed."""
        networks, found = {}, []
        fresh = original(self.recipe, self.data, self.recipe.seed)
        calibration = calibration_for(asked, self.data, self.recipe.seed)
        for variant in variants:
            place = training_folder(self.folder, variant.name, self.recipe.seed)
            networks[variant.name] = precrop.load(place / "model.safetensors", model=fresh).eval()
            with self.console.status(f"exporting {variant.name} to {', '.join(asked.to)}"):
                files = write_files(networks[variant.name], place, asked, self.data, calibration)
            found.append(replace(variant, files=files))
            for file in files:
                self.say(
                    f"{variant.name:<10} {file.path.name}: {file.size_bytes / 1e3:,.0f} kB, largest error against "
                    f"PyTorch {file.max_abs_error:.1e}"
                )
        if asked.latency is not None:
            with self.console.status("timing") as status:
                found = with_latency(
                    found, networks, asked, asked.latency, self.data, calibration, lambda line: status.update(line)
                )
        return found

    def reported(self, result: RunResult) -> None:
        """The plots and the page."""
        from precrop.recipes.report import write_report

        places = {name: training_folder(self.folder, name, self.recipe.seed) for name in self.recipe.variants}
        plans = {name: CropPlan.load(place / "plan.json") for name, place in places.items()}
        masked = {name: place / "mask.safetensors" for name, place in places.items()}
        shares = {
            name: {key.rpartition(".")[0]: mask.float().mean().item() for key, mask in load_file(path).items()}
            for name, path in masked.items()
            if self.recipe.variants[name].weights == "mask"
        }
        write_report(result, plans, shares, self.folder)


def _fingerprint(network: nn.Module) -> str:
    """Eight hexadecimal digits of the names and shapes of all tensors."""
    state = [(name, tuple(value.shape)) for name, value in network.state_dict().items()]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:8]


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Run with ``count`` torch threads (none: as it is), then as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""One training from beginning or checkpoint to end: Lightning's Trainer set up for a recipe.

To Lightning the whole training is one epoch, with a validation after as many steps as an epoch of the
recipe has. So there is one kind of moment at which a training can be taken up again, between two steps.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from precrop.errors import RecipeError
from precrop.recipes.data import ImageData
from precrop.recipes.launch import Processes, processes
from precrop.recipes.schema import Recipe
from precrop.recipes.sections import Execution
from precrop.recipes.training.activations import checkpointed
from precrop.recipes.training.classifier import Classifier
from precrop.recipes.training.keeping import Keeper, Storage, write_history
from precrop.recipes.training.order import Padded, Seeded, StepOrder

PRECISIONS: dict[int | str, Any] = {32: "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True)
class Fit:
    """The outcome of a training: accuracy on the held-out images in [0, 1] after the last epoch.

    ``train_s`` is the wall time of the fit, its validation after every epoch included, over all
    its sittings. ``history`` has a row for each epoch: epoch, step, lr, train_loss, val_loss,
    accuracy, seconds.
    """

    accuracy: float
    train_s: float
    history: tuple[dict[str, float], ...] = ()


def fit(
    network: nn.Module,
    data: ImageData,
    recipe: Recipe,
    folder: Path,
    callbacks: Sequence[Callback] = (),
    *,
    seed: int | None = None,
    masks: Mapping[str, Tensor] | None = None,
    of: str = "a network",
    say: Callable[[str], None] = print,
) -> Fit:
    """Train ``network`` in place and leave it on the CPU in inference mode.

    Goes on from the last whole checkpoint in ``folder/checkpoints`` where there is one; ``say`` is told so.
    ``folder`` gets ``metrics.csv`` with a line for each epoch, and TensorBoard's files. With `train.ema`
    ``network`` ends as the average.

    Args:
        network: its output is (N, classes).
        data: the images.
        recipe: its ``train`` and ``execution`` sections are used.
        folder: of this training alone; exists.
        callbacks: Lightning's.
        seed: of the order of the images, their variation, mixing and dropout (none: the recipe's).
        masks: parameter name to what of it is trained.
        of: what is trained, in words that no other training has: the checkpoints carry them.
        say: told where a training is taken up, and of checkpoints that are refused.

    Raises:
        RecipeError: the loss is no longer finite, the batch does not fit the images or the processes,
            or the machine cannot do what ``execution`` asks for.
    """
    group = processes()
    train, execution = recipe.train, recipe.execution
    seed = recipe.seed if seed is None else seed
    _check_batch(recipe, data, group)
    order = StepOrder(
        data.train_images,
        train.batch_size,
        train.epochs,
        seed,
        rank=group.rank,
        processes=group.count,
        parts=execution.accumulate,
    )
    every = execution.checkpoint_every or order.steps
    storage = Storage(folder / "checkpoints", of, execution.accumulate)
    timer = Timer()
    with ExitStack() as stack:
        stack.enter_context(_quiet_lightning())
        lightning.seed_everything(seed, verbose=False)
        classifier = Classifier(
            network, train, data.classes, steps=order.steps, parts=execution.accumulate, seed=seed, masks=masks
        )
        if execution.channels_last:
            classifier.to(memory_format=torch.channels_last)
            for average in classifier.hidden.values():
                average.to(memory_format=torch.channels_last)
        begun = group.agree(storage.last(say) if group.first else None)
        if begun is not None:
            order.start = storage.step(begun)
            say(f"taken up after step {order.start:,} of {order.steps * train.epochs:,}, from {begun}")
        trainer = _trainer(recipe, order, group, storage, folder, [timer, Keeper(storage, every, order), *callbacks])
        stack.enter_context(_prepared(network, execution))
        trainer.fit(classifier, *_loaders(data, recipe, order, seed, group, trainer), ckpt_path=begun)
    if classifier.averaged is not network:
        network.load_state_dict(classifier.averaged.state_dict())
    network.to("cpu").to(memory_format=torch.contiguous_format).eval()
    if group.first:
        write_history(folder, classifier.history)
    return Fit(
        accuracy=classifier.history[-1]["accuracy"],
        train_s=timer.time_elapsed("train"),
        history=tuple(classifier.history),
    )


def _check_batch(recipe: Recipe, data: ImageData, group: Processes) -> None:
    batch, parts = recipe.train.batch_size, group.count * recipe.execution.accumulate
    if batch > data.train_images:
        raise RecipeError(f"train.batch_size: got {batch}; expected at most the {data.train_images} images.")
    mixing = recipe.train.mixup > 0 or recipe.train.cutmix > 0
    unit = parts * (2 if mixing else 1)
    if batch % unit:
        raise RecipeError(
            f"train.batch_size: got {batch}; expected a multiple of {unit} ({group.count} processes x "
            f"execution.accumulate {recipe.execution.accumulate}{' x a pair of mixed images' if mixing else ''})."
        )


def _trainer(
    recipe: Recipe, order: StepOrder, group: Processes, storage: Storage, folder: Path, callbacks: list[Callback]
) -> lightning.Trainer:
    execution = recipe.execution
    on_gpu = torch.cuda.is_available() and execution.accelerator != "cpu"
    wants_gpu = [
        what
        for what, asked in (
            ("accelerator: gpu", execution.accelerator == "gpu"),
            ("precision: fp16", execution.precision == "fp16"),
            ("strategy: fsdp", execution.strategy == "fsdp"),
            ("sync_batchnorm: true", execution.sync_batchnorm),
        )
        if asked
    ]
    if wants_gpu and not on_gpu:
        raise RecipeError(
            f"execution: {', '.join(wants_gpu)} needs a GPU, and this is a training on the CPU. "
            "Leave it out, or run on a machine whose GPU torch finds (torch.cuda.is_available())."
        )
    return lightning.Trainer(
        accelerator="cuda" if on_gpu else "cpu",
        devices=group.local_count,
        num_nodes=group.count // group.local_count,
        strategy=_strategy(recipe, group),
        precision=PRECISIONS[execution.precision],
        plugins=[storage, TorchElasticEnvironment() if group.count > 1 else LightningEnvironment()],
        sync_batchnorm=execution.sync_batchnorm and group.count > 1,
        accumulate_grad_batches=execution.accumulate,
        gradient_clip_val=recipe.train.clip_grad,
        max_epochs=1,
        val_check_interval=order.steps * order.parts,
        deterministic="warn" if execution.deterministic else None,
        benchmark=not execution.deterministic,
        logger=TensorBoardLogger(folder, name="", version="tensorboard", purge_step=order.start),
        callbacks=callbacks,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def _strategy(recipe: Recipe, group: Processes) -> Any:
    from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy

    if recipe.execution.strategy == "fsdp":
        if recipe.train.ema is not None:
            raise RecipeError(
                "execution.strategy: fsdp does not keep an average of the weights. Use ddp with train.ema."
            )
        return FSDPStrategy(state_dict_type="full")
    if group.count == 1:
        return "auto"
    return DDPStrategy(gradient_as_bucket_view=True)


def _loaders(
    data: ImageData, recipe: Recipe, order: StepOrder, seed: int, group: Processes, trainer: lightning.Trainer
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    common: dict[str, Any] = {
        "num_workers": recipe.execution.workers,
        "pin_memory": trainer.strategy.root_device.type == "cuda",
        "persistent_workers": recipe.execution.workers > 0,
    }
    train = DataLoader(Seeded(data.train, seed), batch_sampler=order, **common)
    held_out = Padded(data.val, data.val_images, group.rank, group.count)
    val = DataLoader(held_out, max(recipe.train.batch_size // group.count, 256), **common)
    return train, val


@contextmanager
def _prepared(network: nn.Module, execution: Execution) -> Iterator[None]:
    """The network as `execution` wants it to be computed, and as it was afterwards."""
    with ExitStack() as stack:
        if execution.activation_checkpointing:
            stack.enter_context(checkpointed(network))
        if execution.compile:
            if execution.activation_memory is not None:
                from torch._functorch import config

                stack.enter_context(config.patch(activation_memory_budget=execution.activation_memory))
            network.compile()
            stack.callback(setattr, network, "_compiled_call_impl", None)
        yield


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep Lightning's tips and advice off the screen; its errors still come, and settings are put back."""
    loggers = [logging.getLogger(name) for name in ("lightning", "lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

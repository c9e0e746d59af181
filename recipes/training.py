"""Training one network: Lightning runs the loop, timm brings optimizers, schedules and mixing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.loggers import CSVLogger
from timm.data import Mixup  # type: ignore[attr-defined]
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]
from timm.scheduler import create_scheduler_v2  # type: ignore[attr-defined]
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from precrop.errors import RecipeError
from precrop.recipes.data import ImageData
from precrop.recipes.schema import Recipe, Train

PRECISIONS: dict[int | str, Any] = {32: "32-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Fit:
    """The outcome of a training: accuracy on the held-out images in [0, 1] after the last epoch.

    ``train_s`` is the wall time of the fit, its validation after every epoch included.
    """

    accuracy: float
    train_s: float


class Classifier(lightning.LightningModule):
    """Image classification: cross-entropy, on mixed images where the recipe mixes them."""

    def __init__(self, network: nn.Module, train: Train, classes: int) -> None:
        """Wrap ``network``, whose output is (N, classes)."""
        super().__init__()
        self.network = network
        self.settings = train
        self.mix = None
        if train.mixup > 0 or train.cutmix > 0:
            self.mix = Mixup(  # type: ignore[no-untyped-call]
                mixup_alpha=train.mixup,
                cutmix_alpha=train.cutmix,
                label_smoothing=train.label_smoothing,
                num_classes=classes,
            )

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (N, classes) of images (N, C, H, W)."""
        scores: Tensor = self.network(images)
        return scores

    def training_step(self, batch: Sequence[Tensor], batch_index: int) -> Tensor:
        """The mean loss of images (N, C, H, W) and classes (N,); raises `RecipeError` unless it is finite."""
        images, targets = batch
        if self.mix is None:
            smoothing = self.settings.label_smoothing
        else:
            images, targets = self.mix(images, targets)  # targets: (N, classes), smoothed already
            smoothing = 0.0
        loss = functional.cross_entropy(self(images), targets, label_smoothing=smoothing)
        if not torch.isfinite(loss):
            raise RecipeError(
                f"the loss became {loss.item()} at step {self.global_step + 1} (epoch "
                f"{self.current_epoch + 1}); expected a finite one. Lower train.lr (now "
                f"{self.settings.lr:g}) or raise train.warmup_epochs."
            )
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(images))
        return loss

    def validation_step(self, batch: Sequence[Tensor], batch_index: int) -> None:
        """Log the accuracy and the loss of a held-out batch."""
        images, targets = batch
        scores = self(images)
        right = (scores.argmax(dim=1) == targets).float().mean()
        self.log("accuracy", right, batch_size=len(images))
        self.log("val_loss", functional.cross_entropy(scores, targets), batch_size=len(images))

    def configure_optimizers(self) -> Any:
        """timm's optimizer, and its schedule stepped with every batch."""
        train = self.settings
        optimizer = create_optimizer_v2(
            self.network,
            opt=train.optimizer,
            lr=train.lr,
            weight_decay=train.weight_decay,
            momentum=train.momentum,
        )
        if train.schedule == "constant" and train.warmup_epochs == 0:
            return optimizer
        schedule, _ = create_scheduler_v2(
            optimizer,
            # A step schedule whose first step never comes is constant after its warm-up.
            sched="step" if train.schedule == "constant" else train.schedule,
            decay_epochs=train.epochs + 1,
            num_epochs=train.epochs,
            warmup_epochs=train.warmup_epochs,
            warmup_lr=train.lr * 0.01,
            step_on_epochs=False,
            updates_per_epoch=int(self.trainer.estimated_stepping_batches) // train.epochs,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """timm counts updates itself."""
        scheduler.step_update(num_updates=self.global_step)


def fit(
    network: nn.Module,
    data: ImageData,
    recipe: Recipe,
    folder: Path,
    callbacks: Sequence[Callback] = (),
) -> Fit:
    """Train ``network`` in place and leave it on the CPU in inference mode.

    The order of the images, and mixing, follow the recipe's seed. ``folder`` gets
    Lightning's ``metrics.csv`` with one line for each epoch. Raises `RecipeError`
    when the loss is no longer finite or the training split holds no full batch.
    """
    train, execution = recipe.train, recipe.execution
    if train.batch_size > data.train_images:
        raise RecipeError(f"train.batch_size: got {train.batch_size}; expected at most the {data.train_images} images.")
    timer = Timer()
    with _quiet_lightning():
        lightning.seed_everything(recipe.seed, verbose=False)
        trainer = lightning.Trainer(
            accelerator=execution.accelerator,
            devices=1,
            precision=PRECISIONS[execution.precision],
            max_epochs=train.epochs,
            deterministic="warn",
            logger=CSVLogger(folder, name="", version=""),
            log_every_n_steps=1,
            callbacks=[timer, *callbacks],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        classifier = Classifier(network, train, data.classes)
        if execution.channels_last:
            classifier.to(memory_format=torch.channels_last)
        trainer.fit(classifier, *_loaders(data, recipe))
    network.to("cpu").to(memory_format=torch.contiguous_format).eval()
    return Fit(accuracy=float(trainer.callback_metrics["accuracy"]), train_s=timer.time_elapsed("train"))


def _loaders(data: ImageData, recipe: Recipe) -> tuple[DataLoader[Any], DataLoader[Any]]:
    batch, workers = recipe.train.batch_size, recipe.execution.workers
    # Its own generator: variants see the same order, whatever dropout or mixing draw in between.
    order = torch.Generator().manual_seed(recipe.seed)
    # Whole batches only: a remainder of one image has no batch statistics, and mixing wants an even number.
    train = DataLoader(data.train, batch, shuffle=True, drop_last=True, generator=order, num_workers=workers)
    val = DataLoader(data.val, max(batch, 256), num_workers=workers)
    return train, val


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

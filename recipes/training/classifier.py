"""The Lightning module: loss, validation, optimizer and schedule, and what a checkpoint holds besides."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import FSDPStrategy
from timm.data import Mixup  # type: ignore[attr-defined]
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]
from timm.scheduler import create_scheduler_v2  # type: ignore[attr-defined]
from timm.utils import ModelEmaV3  # type: ignore[attr-defined]
from torch import Tensor, nn
from torch.nn import functional

from precrop.errors import RecipeError
from precrop.recipes.sections import Train
from precrop.recipes.training.order import PADDING, derived_seed, seed_all

# On a GPU, asking for the loss waits for it: there the losses are looked at together, every so many steps.
LOOK_EVERY = 50
# A rate of the warm-up's first step, as a share of the rate that it leads to.
WARMUP_FROM = 0.01


class Classifier(lightning.LightningModule):
    """Image classification: cross-entropy, on mixed images where the recipe mixes them.

    ``history`` has a row for each epoch that was validated.
    """

    def __init__(
        self,
        network: nn.Module,
        train: Train,
        classes: int,
        *,
        steps: int = 1,
        parts: int = 1,
        seed: int = 0,
        masks: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Wrap ``network``, whose output is (N, classes).

        ``steps`` are an epoch's, each in ``parts``. ``masks`` names the parameters of which
        only the entries where the mask is true are trained; the others are zero already.
        """
        super().__init__()
        self.network = network
        self.settings, self.steps, self.parts, self.seed = train, steps, parts, seed
        self.masks = dict(masks or {})
        self.history: list[dict[str, float]] = []
        # By name, before a strategy flattens the tensors: what has one axis is a bias or of a norm.
        self.undecayed = {name for name, weight in network.named_parameters() if weight.ndim <= 1}
        # Hidden from Lightning, which would take its parameters for the network's.
        self.hidden: dict[str, ModelEmaV3] = {}
        if train.ema is not None:
            self.hidden["ema"] = ModelEmaV3(network, train.ema, use_warmup=True, exclude_buffers=False)
        self.mix = None
        if train.mixup > 0 or train.cutmix > 0:
            self.mix = Mixup(  # type: ignore[no-untyped-call]
                mixup_alpha=train.mixup,
                cutmix_alpha=train.cutmix,
                label_smoothing=train.label_smoothing,
                num_classes=classes,
            )
        self.loss_sum, self.loss_count = torch.zeros((), dtype=torch.float64), 0
        self.unfinite = torch.full((), -1)  # the first step whose loss was not finite
        self.sums = torch.zeros(3, dtype=torch.float64)  # of the validation: right, loss, images
        self.epoch_began = time.monotonic()

    @property
    def averaged(self) -> nn.Module:
        """What is validated and kept: the average of the weights where there is one, else the network."""
        kept: nn.Module = self.hidden["ema"].module if "ema" in self.hidden else self.network
        return kept

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (N, classes) of images (N, C, H, W)."""
        scores: Tensor = self.network(images)
        return scores

    def on_fit_start(self) -> None:
        """Put beside the network what Lightning does not know of."""
        for average in self.hidden.values():
            average.module.to(self.device)
        self.masks = {name: mask.to(self.device) for name, mask in self.masks.items()}
        self.loss_sum, self.unfinite = self.loss_sum.to(self.device, torch.float32), self.unfinite.to(self.device)
        self.epoch_began = time.monotonic()

    def training_step(self, batch: Sequence[Tensor], batch_index: int) -> Tensor:
        """The mean loss of images (N, C, H, W) and classes (N,); raises `RecipeError` unless it is finite."""
        images, targets = batch
        step, part = divmod(batch_index, self.parts)
        # Mixing draws from NumPy, and alike in every part of a batch; the network draws from torch.
        seed_all(derived_seed(self.seed, "mix", step))
        torch.manual_seed(derived_seed(self.seed, "step", step, part, self.global_rank))
        if self.mix is None:
            smoothing = self.settings.label_smoothing
        else:
            images, targets = self.mix(images, targets)  # targets: (N, classes), smoothed already
            smoothing = 0.0
        loss = functional.cross_entropy(self(images), targets, label_smoothing=smoothing)
        with torch.no_grad():
            self.loss_sum += loss
            self.loss_count += 1
            self.unfinite = torch.where((self.unfinite < 0) & ~loss.isfinite(), step, self.unfinite)
        if loss.device.type == "cpu" or step % LOOK_EVERY == 0:
            self.check_finite()
        return loss

    def check_finite(self) -> None:
        """Raise `RecipeError` with the first step whose loss was not finite."""
        step = int(self.unfinite)
        if step >= 0:
            raise RecipeError(
                f"the loss became nan or infinite at step {step + 1} (epoch {step // self.steps + 1}); expected a "
                f"finite one. Lower train.lr (now {self.settings.lr:g}), raise train.warmup_epochs or set "
                "train.clip_grad."
            )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Masked weights get no gradient, so that they stay zero under any optimizer."""
        if self.masks:
            for name, weight in self.network.named_parameters():
                if name in self.masks and weight.grad is not None:
                    weight.grad.mul_(self.masks[name])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        """Average the weights after every step."""
        if "ema" in self.hidden and (batch_index + 1) % self.parts == 0:
            self.hidden["ema"].update(self.network, step=(batch_index + 1) // self.parts)

    def on_validation_start(self) -> None:
        """All processes validate the network that the first one will keep."""
        if self.trainer.world_size > 1 and not isinstance(self.trainer.strategy, FSDPStrategy):
            for buffer in self.averaged.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def validation_step(self, batch: Sequence[Tensor], batch_index: int) -> None:
        """Add up right answers and losses of a held-out batch."""
        images, targets = batch
        scores = self.averaged(images).float()
        real = targets != PADDING
        right = (scores.argmax(dim=1) == targets).sum()
        loss = functional.cross_entropy(scores, targets, ignore_index=PADDING, reduction="sum")
        self.sums = self.sums.to(self.device, torch.float32) + torch.stack([right, loss, real.sum()]).float()

    def on_validation_epoch_end(self) -> None:
        """The epoch's row of the history, the same in every process."""
        self.check_finite()
        right, loss, images = self._over_processes(self.sums).tolist()
        total, count = self._over_processes(torch.stack([self.loss_sum, self.loss_sum.new_tensor(self.loss_count)]))
        now = time.monotonic()
        row: dict[str, float] = {
            "epoch": len(self.history) + 1,
            "step": self.global_step,
            "lr": float(self.trainer.optimizers[0].param_groups[0]["lr"]),
            "train_loss": float(total / count),
            "val_loss": loss / images,
            "accuracy": right / images,
            "seconds": now - self.epoch_began,
        }
        self.history.append(row)
        self.epoch_began = now
        self.loss_sum, self.loss_count, self.sums = torch.zeros_like(self.loss_sum), 0, torch.zeros_like(self.sums)
        self.log("accuracy", row["accuracy"])
        for logger in self.loggers:
            logger.log_metrics(
                {key: row[key] for key in ("lr", "train_loss", "val_loss", "accuracy")}, self.global_step
            )

    def _over_processes(self, sums: Tensor) -> Tensor:
        reduced: Tensor = self.trainer.strategy.reduce(sums.clone(), reduce_op="sum")
        return reduced

    def configure_optimizers(self) -> Any:
        """timm's optimizer, and its schedule stepped with every batch."""
        train = self.settings
        weights = {name: weight for name, weight in self.network.named_parameters() if weight.requires_grad}
        groups: list[dict[str, Any]] = [
            {"params": [w for name, w in weights.items() if name in self.undecayed], "weight_decay": 0.0},
            {"params": [w for name, w in weights.items() if name not in self.undecayed]},
        ]
        try:
            optimizer = create_optimizer_v2(
                [group for group in groups if group["params"]],
                opt=train.optimizer,
                lr=train.lr,
                weight_decay=train.weight_decay,
                momentum=train.momentum,
                **train.optimizer_kwargs,
            )
        except TypeError as error:
            raise RecipeError(f"train.optimizer_kwargs: {train.optimizer} does not take them: {error}.") from error
        if train.schedule == "constant" and train.warmup_epochs == 0:
            return optimizer
        schedule, _ = create_scheduler_v2(
            optimizer,
            # A step schedule whose first step never comes is constant after its warm-up.
            sched="step" if train.schedule == "constant" else train.schedule,
            decay_epochs=train.epochs + 1,
            decay_milestones=train.milestones,
            decay_rate=1.0 if train.schedule == "poly" else train.decay_rate,
            num_epochs=train.epochs,
            min_lr=train.min_lr,
            warmup_epochs=train.warmup_epochs,
            warmup_lr=train.lr * WARMUP_FROM,
            step_on_epochs=False,
            updates_per_epoch=self.steps,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """timm counts updates itself."""
        scheduler.step_update(num_updates=self.global_step)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the average, the history and the losses since the last validation."""
        total, count = self._over_processes(torch.stack([self.loss_sum, self.loss_sum.new_tensor(self.loss_count)]))
        share = self.loss_count / float(count) if self.loss_count else 0.0
        checkpoint["precrop"] = {
            "step": self.global_step,
            "parts": self.parts,
            "history": self.history,
            "loss_sum": total.double() * share,
            "loss_count": self.loss_count,
            "averages": {name: average.module.state_dict() for name, average in self.hidden.items()},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what `on_save_checkpoint` added."""
        own = checkpoint["precrop"]
        self.history = [dict(row) for row in own["history"]]
        self.loss_sum, self.loss_count = own["loss_sum"].float(), own["loss_count"]
        for name, average in self.hidden.items():
            average.module.load_state_dict(own["averages"][name])

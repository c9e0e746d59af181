"""When and where checkpoints are kept: Lightning's hooks over `precrop.recipes.training.checkpoints`."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import CheckpointIO

from precrop.errors import RecipeError
from precrop.files import write_atomically
from precrop.recipes.launch import processes
from precrop.recipes.training.checkpoints import (
    NAME,
    checkpoint_path,
    last_whole,
    prune,
    read_checkpoint,
    write_checkpoint,
)
from precrop.recipes.training.order import StepOrder


class Storage(CheckpointIO):
    """The checkpoints of one training, as Lightning's way of writing and reading them.

    Only the first process touches the disk; the others are sent what it read, so that the
    machines need no disk in common.
    """

    def __init__(self, folder: Path, of: str, parts: int) -> None:
        """``of`` is what is trained, ``parts`` how many batches Lightning sees in a step."""
        self.folder, self.of, self.parts = folder, of, parts

    def last(self, say: Callable[[str], None]) -> str | None:
        """The checkpoint to go on from."""
        prune(self.folder)
        found = last_whole(self.folder, self.of, say)
        return None if found is None else str(found)

    @staticmethod
    def step(path: str) -> int:
        """The number of steps that a checkpoint was taken after."""
        name = NAME.fullmatch(Path(path).name)
        if name is None:
            raise RecipeError(f"{path} is not the name of a training's checkpoint. Expected one that a training wrote.")
        return int(name[1])

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write it whole, then forget those that are no longer needed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_checkpoint(Path(path), self.of, checkpoint)
        prune(self.folder)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read it in the first process; Lightning's count of batches is put in the parts of this run."""
        group = processes()
        read: Any = read_checkpoint(Path(path), self.of) if group.first else None
        tree: dict[str, Any] = group.agree(read)
        was = tree["precrop"]["parts"]
        batches = tree["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (batches["current"], batches["total"]):
            # Ready is one more than the rest: the batch that the checkpoint was taken before.
            done = counts["completed"] // was * self.parts
            counts.update(ready=done + 1, started=done, processed=done, completed=done)
        return tree

    def remove_checkpoint(self, path: Any) -> None:
        """Remove one."""
        Path(path).unlink(missing_ok=True)


class Keeper(Callback):
    """Writes a checkpoint before every step whose number is a multiple of ``every``, and the history as CSV."""

    def __init__(self, storage: Storage, every: int, order: StepOrder) -> None:
        """Of the training whose batches ``order`` gives."""
        self.storage, self.every, self.order = storage, every, order

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Before a step: the one before it is done, and so is its validation."""
        step, part = divmod(batch_idx, self.order.parts)
        if part or step == self.order.start or step % self.every:
            return
        self._check_finite(pl_module, step)
        trainer.save_checkpoint(checkpoint_path(self.storage.folder, step))

    @staticmethod
    def _check_finite(pl_module: Any, step: int) -> None:
        """A checkpoint that cannot be gone on from must not take the place of one that can."""
        pl_module.check_finite()
        weights = [weight.detach().isfinite().all() for weight in pl_module.network.parameters()]
        if not torch.stack(weights).all():
            raise RecipeError(
                f"the weights became nan or infinite at step {step} (epoch {(step - 1) // pl_module.steps + 1}); "
                f"expected finite ones. Lower train.lr (now {pl_module.settings.lr:g}) or set train.clip_grad."
            )

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """The history so far, for whoever looks while it runs."""
        if trainer.is_global_zero:
            write_history(self.storage.folder.parent, pl_module.history)


def write_history(folder: Path, history: Sequence[dict[str, float]]) -> None:
    """``metrics.csv``: a line for each epoch. Written anew each time: a training taken up repeats no line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(history[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    write_atomically(folder / "metrics.csv", text.getvalue().encode())

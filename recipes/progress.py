"""Progress of a whole training in one line: epochs, accuracy, images a second, time left.

Lightning's own bar starts again with every epoch, so it knows neither the time
left nor, on small data, more than a flicker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# Where nothing can be redrawn (a log file), a line comes no oftener than this.
LOG_EVERY_S = 10.0


@contextmanager
def progress_bars(console: Console) -> Iterator[Progress]:
    """Bars for the variants of a run; each stays on the screen when it is full."""
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=14),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress


class VariantBar(Callback):
    """Advances one bar with every batch of one variant's training."""

    def __init__(self, progress: Progress, variant: str) -> None:
        """Name the bar; it opens when the training starts."""
        self.progress = progress
        self.variant = variant
        self.task: TaskID | None = None
        self.accuracy = ""
        self.throughput = ""
        self.images = 0
        self.epoch_start_s = self.logged_s = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Open the bar once the number of batches is known."""
        total = trainer.num_training_batches * (trainer.max_epochs or 1)
        self.task = self.progress.add_task(self.variant, total=total, note="")

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Throughput is an epoch's."""
        self.images = 0
        self.epoch_start_s = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """One batch further."""
        assert self.task is not None
        self.images += len(batch[0])
        self.throughput = f"  {self.images / (time.monotonic() - self.epoch_start_s):,.0f} img/s"
        self.progress.update(self.task, advance=1, note=self._note(trainer))

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Show the new accuracy; on a console that cannot redraw, as a line of its own."""
        assert self.task is not None
        self.accuracy = f"  {trainer.callback_metrics['accuracy']:.1%}"
        self.progress.update(self.task, note=self._note(trainer))
        last = trainer.current_epoch + 1 == trainer.max_epochs
        if self.progress.disable and (last or time.monotonic() - self.logged_s > LOG_EVERY_S):
            self.logged_s = time.monotonic()
            self.progress.console.print(f"{self.variant:<10} {self._note(trainer)}", highlight=False)

    def _note(self, trainer: lightning.Trainer) -> str:
        return f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}{self.throughput}{self.accuracy}"

"""Progress of a whole training in one line: epochs, accuracy, images a second, time left.

Lightning's own bar counts the batches of one of its epochs, and knows neither the
accuracy nor the images a second.
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
        self.task: TaskID
        self.note = ""
        self.images = 0
        self.began_s = self.logged_s = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Open the bar once the number of batches is known, where a training is taken up."""
        done = trainer.fit_loop.epoch_loop.batch_progress.current.completed
        self.task = self.progress.add_task(self.variant, total=trainer.num_training_batches, completed=done, note="")
        self.began_s = time.monotonic()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One batch further; throughput is an epoch's so far, over all processes."""
        self.images += len(batch[0]) * trainer.world_size
        self._show(trainer, pl_module, batch_idx)
        self.progress.advance(self.task)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Show the new accuracy; on a console that cannot redraw, as a line of its own."""
        done = trainer.fit_loop.epoch_loop.batch_idx
        self._show(trainer, pl_module, done)
        last = done + 1 >= trainer.num_training_batches
        if self.progress.disable and (last or time.monotonic() - self.logged_s > LOG_EVERY_S):
            self.logged_s = time.monotonic()
            self.progress.console.print(f"{self.variant:<10} {self.note}", highlight=False)
        self.images = 0
        self.began_s = time.monotonic()

    def _show(self, trainer: lightning.Trainer, pl_module: Any, batch_idx: int) -> None:
        epoch = batch_idx // (pl_module.steps * pl_module.parts) + 1
        accuracy = f"  {pl_module.history[-1]['accuracy']:.1%}" if pl_module.history else ""
        throughput = f"  {self.images / (time.monotonic() - self.began_s):,.0f} img/s"
        self.note = f"epoch {epoch}/{pl_module.settings.epochs}{throughput}{accuracy}"
        self.progress.update(self.task, note=self.note)

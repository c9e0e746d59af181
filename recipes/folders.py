"""The folder of a run: whose it is, what is finished in it, and that one run at a time writes to it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from precrop.errors import PrecropError
from precrop.recipes.schema import Recipe

# A killed run's data workers hold its lock until they notice.
PATIENCE_S = 15.0


def run_folder(runs_dir: str | Path, recipe: Recipe) -> Path:
    """Where a recipe's run is: ``<name>-<digest>``, the same whenever the same is computed."""
    return Path(runs_dir) / f"{recipe.name}-{recipe.digest()}"


def training_folder(folder: Path, variant: str, seed: int) -> Path:
    """Where one training of a run is."""
    return folder / variant / f"seed{seed}"


@contextmanager
def locked(folder: Path, restart: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Make ``folder``, empty if ``restart``, and keep it for this run while the block runs.

    The lock is the operating system's, so that it goes with the process however that ends.
    Raises `PrecropError` when another run holds it, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a")
    except OSError as error:
        raise PrecropError(f"cannot write the run folder {folder}: {error.strerror}. Choose another one.") from error
    with file:
        _acquire(file, folder, say)
        if restart:
            for path in folder.iterdir():
                if path.name != ".lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield
        except OSError as error:
            raise PrecropError(f"cannot write the run folder {folder}: {error.strerror or error}.") from error


def _acquire(file: IO[str], folder: Path, say: Callable[[str], None]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return
    start, said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() - start > PATIENCE_S:
                raise PrecropError(
                    f"another run writes to {folder}. Wait for it, or choose another folder with --runs."
                ) from None
            if not said:
                say(f"waiting for the run that writes to {folder} to end")
                said = True
            time.sleep(0.2)

"""Files that are whole or absent: write beside, then rename. And JSON that someone else may have written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from precrop.errors import PrecropError


def checked_path(path: object) -> Path:
    """A path given as text or as a path; raises `PrecropError` for anything else."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise PrecropError(f"got {path!r}, a {type(path).__name__}, as a path; expected a str or a pathlib.Path.")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise PrecropError(f"got the path {os.fspath(path)!r}, which names no file.")
    return Path(path)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it over ``path`` if the block succeeds.

    On an error the temporary file is removed and ``path`` stays as it was.
    Raises `PrecropError` when the folder does not exist or cannot be written.
    """
    target = checked_path(path)
    if not target.parent.is_dir():
        raise PrecropError(f"cannot write {target}: the folder {target.parent} does not exist. Create it first.")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise PrecropError(f"cannot write {target}: {error.strerror}.") from error
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)
        os.replace(beside, target)
    except OSError as error:
        raise PrecropError(f"cannot write {target}: {error.strerror or error}.") from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_together(main: str | Path, *others: str | Path) -> Iterator[Path]:
    """Yield a temporary folder in which the block writes files of these names; put them in place if it succeeds.

    ``main`` is the file that is opened, the ``others`` are what it refers to: it goes first and comes back last, so
    that where it is, they are its own.
    """
    target = checked_path(main)
    if not target.parent.is_dir():
        raise PrecropError(f"cannot write {target}: the folder {target.parent} does not exist. Create it first.")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=".part", dir=target.parent) as name:
            folder = Path(name)
            yield folder
            target.unlink(missing_ok=True)
            for path in (*map(Path, others), target):
                os.replace(folder / path.name, path)
    except OSError as error:
        raise PrecropError(f"cannot write {target}: {error.strerror or error}.") from error


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write ``content`` to ``path``, all of it or none."""
    with replacing(path) as beside:
        beside.write_bytes(content)


def parsed_json(text: str | bytes) -> Any:
    """The value of a JSON text, which may be of any origin; raises `ValueError`, also for one that is nested too deep.

    (Python's own parser raises `RecursionError` then, and is not to be trusted with the stack.)
    """
    return from_json(text)

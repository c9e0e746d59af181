"""CIFAR-10 and CIFAR-100 from their original files, in the Python or the binary version.

The Python version is a pickle. It is read by an unpickler that imports and calls nothing: in the place of each of
NumPy's functions that such a file names it puts a note of what the file says, and the pixels are taken from the notes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precrop.errors import RecipeError
from precrop.recipes.data.images import Arrays, ImageData, Transformed, check_classes, check_targets, folder_of
from precrop.recipes.data.transforms import transforms

if TYPE_CHECKING:
    from precrop.recipes.sections import Data

SIDE = 32
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


class _Layout:
    """Where a version of a data set keeps its images, its labels, and bytes before an image."""

    def __init__(self, classes: int, folder: str, train: list[str], val: list[str], key: bytes, labels: int) -> None:
        self.classes, self.folder, self.train, self.val = classes, folder, train, val
        self.key, self.labels = key, labels


LAYOUTS = {
    "cifar10": (
        _Layout(
            10, "cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], b"labels", labels=1
        ),
        _Layout(
            10,
            "cifar-10-batches-bin",
            [f"data_batch_{i}.bin" for i in range(1, 6)],
            ["test_batch.bin"],
            b"",
            labels=1,
        ),
    ),
    "cifar100": (
        _Layout(100, "cifar-100-python", ["train"], ["test"], b"fine_labels", labels=2),
        _Layout(100, "cifar-100-binary", ["train.bin"], ["test.bin"], b"", labels=2),
    ),
}


def load(settings: Data) -> ImageData:
    """CIFAR as (3, S, S), S the ``image_size`` or 32: 50,000 training and 10,000 held-out images."""
    layouts = LAYOUTS[settings.name]
    classes = check_classes(settings, layouts[0].classes, settings.name)
    holds = f"the folder {layouts[0].folder} (or {layouts[1].folder})"
    root = _downloaded(settings) if settings.download else folder_of(settings, holds)
    layout = next((layout for layout in layouts if (root / layout.folder).is_dir()), None)
    if layout is None and root.name in [layout.folder for layout in layouts]:
        layout, root = next(layout for layout in layouts if layout.folder == root.name), root.parent
    if layout is None:
        raise RecipeError(f"data.root: {root} does not hold {holds}. Unpack the archive there, or set data.download.")
    folder = root / layout.folder
    train, val = (_split(folder, layout, names) for names in (layout.train, layout.val))
    side = settings.image_size or SIDE
    varied, plain = transforms(settings, (3, side, side), MEAN, STD)
    return ImageData(
        train=Transformed(train, varied),
        val=Transformed(val, plain),
        train_images=len(train),
        val_images=len(val),
        classes=classes,
        shape=(3, side, side),
        plain=Transformed(train, plain),
    )


def _split(folder: Path, layout: _Layout, names: list[str]) -> Arrays:
    images, targets = [], []
    for name in names:
        path = folder / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RecipeError(
                f"data.root: cannot read {path}: {error.strerror}. Unpack the archive again, or set data.download."
            ) from error
        pixels, labels = _binary(content, layout, path) if path.suffix == ".bin" else _pickled(content, layout, path)
        images.append(pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))  # (N, 32, 32, 3)
        targets.append(labels)
        check_targets(np.unique(labels), layout.classes, str(path))
    return Arrays(np.ascontiguousarray(np.concatenate(images)), np.concatenate(targets))


def _binary(content: bytes, layout: _Layout, path: Path) -> tuple[Any, Any]:
    row = layout.labels + 3 * SIDE * SIDE
    if not content or len(content) % row:
        raise RecipeError(
            f"{path} is torn: {len(content):,} bytes are no multiple of {row}, one image. Fetch it again."
        )
    table = np.frombuffer(content, np.uint8).reshape(-1, row)
    return table[:, layout.labels :], table[:, layout.labels - 1].astype(np.int64)


class _Note:
    """What a pickle says an object is made of: ``made`` from these arguments, then given this ``state``."""

    __slots__ = ("made", "state")

    def __init__(self, *made: Any) -> None:
        self.made, self.state = made, None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Noting:
    """Stands for a function that a pickle calls; a new one for each mention, so that no change of it lasts."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return _Note(*arguments)


class _Bytes(_Noting):
    """Stands for ``_codecs.encode``, by which later protocols write byte strings."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        text, encoding = arguments
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError(f"it encodes a {type(text).__name__} as {encoding!r}")
        return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Lists, dicts, bytes, numbers, and notes in the place of arrays; any other name in the pickle is refused.

    NumPy's own functions are not called: given sizes and flags of a file's choosing they can be had to read memory
    that is not the array's.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in NOTED:
            return NOTED[module, name]()
        raise pickle.UnpicklingError(f"it names {module}.{name}")


NOTED: dict[tuple[str, str], Callable[[], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Noting,
    ("numpy._core.multiarray", "_reconstruct"): _Noting,
    ("numpy", "dtype"): _Noting,
    ("numpy", "ndarray"): lambda: "ndarray",  # only handed on to _reconstruct
    ("_codecs", "encode"): _Bytes,
}


def _pixels(note: Any) -> Any:
    """The array of a note, (N, 3072) uint8; its state is a version, the shape, the type, the order and the bytes."""
    _, shape, kind, by_columns, raw = note.state
    count, row = shape
    if kind.made[0] not in ("u1", b"u1") or not isinstance(raw, bytes) or len(raw) != count * row:
        raise ValueError(f"images {shape} of type {kind.made[0]!r} in {len(raw):,} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _pickled(content: bytes, layout: _Layout, path: Path) -> tuple[Any, Any]:
    try:
        record = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = _pixels(record[b"data"]), record[layout.key]
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise ValueError(f"labels are no list of whole numbers but a {type(labels).__name__}")
        if pixels.shape != (len(labels), 3 * SIDE * SIDE):
            raise ValueError(f"images {pixels.shape} and {len(labels)} labels")
        return pixels, np.asarray(labels, np.int64)
    except Exception as error:  # a foreign pickle can raise anything
        raise RecipeError(f"{path} is not a file of {layout.folder}: {error}. Unpack the archive again.") from error


def _downloaded(settings: Data) -> Path:
    """The folder of the archive, checked by torchvision's checksums; its own reader would unpickle the files."""
    from torchvision.datasets import CIFAR10, CIFAR100
    from torchvision.datasets.utils import check_integrity, download_and_extract_archive

    root = Path(settings.root or "data").expanduser()
    source = {"cifar10": CIFAR10, "cifar100": CIFAR100}[settings.name]
    folder = root / source.base_folder
    try:
        if not all(check_integrity(folder / name, md5) for name, md5 in (*source.train_list, *source.test_list)):
            download_and_extract_archive(source.url, root, filename=source.filename, md5=source.tgz_md5)
    except (OSError, RuntimeError) as error:
        raise RecipeError(
            f"data.download: cannot fetch {settings.name} to {root}: {error}. Put the archive's folder there by hand."
        ) from error
    return root

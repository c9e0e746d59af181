"""Small data sets of the formats that the runner reads, drawn at random, in a folder."""

import gzip
import io
import json
import pickle
import struct
import tarfile

import numpy as np
from PIL import Image


def drawn(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fashion_mnist(folder, count=40, zipped=True):
    for split, seed in (("train", 0), ("t10k", 1)):
        parts = {
            "images-idx3": drawn(count, 28, 28, seed=seed),
            "labels-idx1": (np.arange(count) % 10).astype(np.uint8),
        }
        for name, array in parts.items():
            content = idx_bytes(array)
            path = folder / f"{split}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)


def cifar10(folder, count=16, binary=False):
    kind = "bin" if binary else "py"
    inner = folder / f"cifar-10-batches-{kind}"
    inner.mkdir(parents=True)
    for number, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        pixels = drawn(count, 3072, seed=number)
        labels = [index % 10 for index in range(count)]
        if binary:
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
            (inner / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            (inner / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))


def cifar100(folder, count=120, binary=False):
    inner = folder / f"cifar-100-{'binary' if binary else 'python'}"
    inner.mkdir(parents=True)
    for seed, name in enumerate(("train", "test")):
        pixels = drawn(count, 3072, seed=seed)
        coarse, fine = [index % 20 for index in range(count)], [index % 100 for index in range(count)]
        if binary:
            rows = np.concatenate([np.array([coarse, fine], np.uint8).T, pixels], axis=1)
            (inner / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            content = {b"data": pixels, b"fine_labels": fine, b"coarse_labels": coarse}
            (inner / name).write_bytes(pickle.dumps(content, protocol=2))


def jpeg(seed, side=40):
    content = io.BytesIO()
    Image.fromarray(drawn(1, side, side + 4, 3, seed=seed)[0]).save(content, "jpeg")
    return content.getvalue()


def image_folder(folder, classes=3, count=4, splits=("train", "val")):
    for split in splits:
        for label in range(classes):
            inner = folder / split / f"class{label:04d}"
            inner.mkdir(parents=True)
            for number in range(count):
                (inner / f"{number}.jpg").write_bytes(jpeg(label * 100 + number))


def shards(folder, classes=3, count=6, info=False):
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    for split in ("train", "val"):
        names = []
        for shard in range(2):
            names.append(f"{split}-{shard:06d}.tar")
            with tarfile.open(folder / names[-1], "w") as tar:
                for number in range(count):
                    for kind, content in (("jpg", jpeg(number)), ("cls", str((number + shard) % classes).encode())):
                        member = tarfile.TarInfo(f"{shard}_{number:04d}.{kind}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
        splits[split] = {
            "name": split,
            "filenames": names,
            "shard_lengths": [count, count],
            "num_samples": 2 * count,
        }
    if info:
        (folder / "_info.json").write_text(json.dumps({"splits": splits}))

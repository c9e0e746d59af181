import pickle
import sys

import pytest
import torch
from support_images import cifar10, cifar100, drawn, fashion_mnist, image_folder, shards
from torch.nn import functional

from precrop.errors import MissingExtraError, RecipeError
from precrop.recipes.data import DATASETS, cifar, load_data
from precrop.recipes.sections import Augment, Data
from precrop.recipes.training.order import Seeded


def test_digits_are_split_class_by_class_without_overlap():
    data = DATASETS["digits"](Data(name="digits", val_share=0.25))
    train, train_targets = data.train.tensors
    val, val_targets = data.val.tensors
    assert (len(train), len(val)) == (data.train_images, data.val_images) == (1347, 450)
    assert data.shape == tuple(train.shape[1:]) == tuple(val.shape[1:]) == (1, 8, 8)
    shares = torch.bincount(val_targets) / (torch.bincount(val_targets) + torch.bincount(train_targets))
    assert len(shares) == data.classes == 10
    assert (shares - 0.25).abs().max() < 0.01
    # The digits hold no image twice, so a shared image would be a leak.
    together = torch.cat([train, val]).flatten(1)
    assert len(together.unique(dim=0)) == len(together) == 1797


def test_digits_are_normalized_by_the_training_split_and_the_split_never_changes():
    small = DATASETS["digits"](Data(name="digits"))
    large = DATASETS["digits"](Data(name="digits", image_size=16))
    train, targets = large.train.tensors
    assert large.shape == (1, 16, 16)
    assert train.mean().item() == pytest.approx(0, abs=1e-5)
    assert train.std().item() == pytest.approx(1, abs=1e-5)
    assert torch.equal(targets, small.train.tensors[1])
    # Interpolation commutes with normalization up to one scale and one shift for all images.
    enlarged = functional.interpolate(small.train.tensors[0], (16, 16), mode="bilinear")
    enlarged = (enlarged - enlarged.mean()) / enlarged.std()
    torch.testing.assert_close(enlarged, train, atol=1e-4, rtol=0)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"sklearn.*pip install 'precrop\[train\]'"):
        DATASETS["digits"](Data(name="digits"))


def loaded(name, **settings):
    return load_data(Data(name=name, **{"root": None, **settings}))


@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist_is_read_where_a_system_package_puts_it(tmp_path, zipped):
    fashion_mnist(tmp_path, zipped=zipped)
    data = loaded("fashion_mnist", root=str(tmp_path))
    image, target = data.val[3]
    assert (data.train_images, data.val_images, data.classes, data.shape) == (40, 40, 10, (1, 28, 28))
    pixels = torch.from_numpy(drawn(40, 28, 28, seed=1)[3]) / 255
    torch.testing.assert_close(image[0], (pixels - 0.2860) / 0.3530)
    assert target == 3
    assert loaded("fashion_mnist", root=str(tmp_path), image_size=16).train[0][0].shape == (1, 16, 16)


@pytest.mark.parametrize("binary", [True, False])
def test_cifar_is_read_in_both_versions(tmp_path, binary):
    cifar10(tmp_path, binary=binary)
    data = loaded("cifar10", root=str(tmp_path))
    assert (data.train_images, data.val_images, data.classes, data.shape) == (80, 16, 10, (3, 32, 32))
    image, target = data.plain[17]
    pixels = torch.from_numpy(drawn(16, 3072, seed=1)[1]).view(3, 32, 32) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (cifar.MEAN, cifar.STD))
    torch.testing.assert_close(image, (pixels - mean) / std)
    assert target == 1


@pytest.mark.parametrize("binary", [True, False])
def test_cifar_100_has_the_fine_labels(tmp_path, binary):
    cifar100(tmp_path, binary=binary)
    data = loaded("cifar100", root=str(tmp_path))
    assert (data.train_images, data.val_images, data.classes, data.shape) == (120, 120, 100, (3, 32, 32))
    assert [data.val[index][1] for index in (19, 20, 99, 100)] == [19, 20, 99, 0]


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    class Harm:
        def __reduce__(self):
            return print, ("harm",)

    cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({b"data": Harm()}))
    with pytest.raises(RecipeError, match=r"test_batch is not a file of cifar-10-batches-py: it names builtins\.print"):
        loaded("cifar10", root=str(tmp_path))


def test_image_folders_and_shards_hold_the_same_images(tmp_path):
    image_folder(tmp_path / "folder")
    shards(tmp_path / "shards")
    for name, images in (("folder", 12), ("webdataset", 12)):
        data = loaded(name, root=str(tmp_path / ("shards" if name == "webdataset" else name)), image_size=32, classes=3)
        assert (data.train_images, data.val_images, data.classes, data.shape) == (images, images, 3, (3, 32, 32))
        assert sorted({data.train[index][1] for index in range(images)}) == [0, 1, 2]
        assert data.val[5][0].shape == (3, 32, 32)
    # A shard's pictures can be read in other processes.
    again = pickle.loads(pickle.dumps(data.val.source))
    assert again[5][0].tobytes() == data.val.source[5][0].tobytes()


def test_shards_by_timms_name(tmp_path):
    pytest.importorskip("webdataset")
    shards(tmp_path, info=True)
    data = loaded("wds/here", root=str(tmp_path), image_size=32)
    assert (data.train_images, data.classes) == (12, 3)
    assert data.train[0][0].shape == (3, 32, 32)


def test_a_hugging_face_data_set_on_the_disk(tmp_path):
    pytest.importorskip("datasets")
    image_folder(tmp_path / "images")
    data = loaded(f"hfds/{tmp_path}/images", root=str(tmp_path / "cache"), image_size=32, val_split="validation")
    assert (data.train_images, data.val_images, data.classes) == (12, 12, 3)
    assert data.train[0][0].shape == (3, 32, 32)


@pytest.mark.parametrize("name", ["wds/here", "hfds/here"])
def test_a_library_that_is_missing_is_named(monkeypatch, name):
    library = {"wds/here": "webdataset", "hfds/here": "datasets"}[name]
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library}.*pip install 'precrop\["):
        loaded(name, root="x")


def test_augmentation_follows_epoch_and_image_alone(tmp_path):
    cifar10(tmp_path)
    augment = Augment(crop="pad", flip=True, auto="rand-m9-mstd0.5", color_jitter=0.2, erase=0.5)
    data = loaded("cifar10", root=str(tmp_path), augment=augment)
    images = Seeded(data.train, seed=3)
    torch.manual_seed(1)
    first = images[0, 7][0]
    torch.manual_seed(2)
    images[1, 3]
    assert torch.equal(images[0, 7][0], first)
    assert not torch.equal(images[1, 7][0], first)
    assert not torch.equal(Seeded(data.train, seed=4)[0, 7][0], first)
    assert torch.equal(data.val[7][0], data.val[7][0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "folder"}, r"data\.root: missing; expected the folder that holds train/<class>"),
        ({"name": "folder", "root": "{}/absent"}, r"absent does not exist; expected the folder that holds"),
        ({"name": "folder", "root": "{}/file"}, r"file is a file"),
        ({"name": "folder", "root": "{}"}, r"has no folder 'train'; it has: empty, odd, shards"),
        ({"name": "folder", "root": "{}/odd"}, r"has 3 classes and .*val has 2; .*\(in one only: class0002\)"),
        ({"name": "folder", "root": "{}/odd", "val_split": "train", "classes": 10}, r"says 10 and .*odd has 3"),
        ({"name": "fashion_mnist", "root": "{}/empty"}, r"has no train-images-idx3-ubyte.*dataset-fashion-mnist"),
        ({"name": "fashion_mnist", "root": "{}/empty", "classes": 100}, r"data\.classes: the recipe says 100"),
        (
            {"name": "cifar100", "root": "{}/empty"},
            r"does not hold the folder cifar-100-python \(or cifar-100-binary\)",
        ),
        ({"name": "webdataset", "root": "{}/empty"}, r"has no train\*\.tar; it has: no tar file"),
        ({"name": "webdataset", "root": "{}/shards", "classes": 5}, r"says 5 and .*shards has 3"),
        ({"name": "digits", "classes": 7}, r"says 7 and digits has 10"),
        ({"name": "digits", "augment": Augment(flip=True)}, r"got augment, mean, std or download for digits"),
        (
            {"name": "folder", "root": "{}/odd", "val_split": "train", "mean": [0.5]},
            r"data\.mean: got 1 entries; expected 3",
        ),
    ],
)
def test_what_is_missing_or_does_not_match_is_said(tmp_path, settings, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    image_folder(tmp_path / "odd", splits=["train"])
    image_folder(tmp_path / "odd", classes=2, splits=["val"])
    shards(tmp_path / "shards")
    root = settings.get("root")
    with pytest.raises(RecipeError, match=message):
        load_data(Data(**{**settings, "root": root and root.format(tmp_path)}))


def test_torn_idx_files_are_said(tmp_path):
    fashion_mnist(tmp_path, zipped=False)
    path = tmp_path / "train-labels-idx1-ubyte"
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], "is torn: 47 bytes, and its head .* asks for 48"),
        (b"PK" + whole, "is not an IDX file of bytes"),
        (b"", "is not an IDX file"),
        (whole[:-1] + b"\x0b", r"has the class 11; expected 0 to 9"),
    ):
        path.write_bytes(content)
        with pytest.raises(RecipeError, match=message):
            loaded("fashion_mnist", root=str(tmp_path))

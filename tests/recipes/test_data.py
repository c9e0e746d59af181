import sys

import pytest
import torch
from torch.nn import functional

from precrop.errors import MissingExtraError
from precrop.recipes.data import DATASETS
from precrop.recipes.schema import Data


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

import copy

import torch
from nets import Residual
from torch import nn

from precrop.cropping.copying import copy_structure


def test_a_structural_copy_is_a_deep_copy():
    model = Residual()
    model.settings = {"rates": [0.1, 0.2], "shape": (3, 8, 8)}
    model.alias = model.stem  # one module under two names stays one
    ours, theirs = copy_structure(model, {}), copy.deepcopy(model)
    assert repr(ours) == repr(theirs)
    assert ours.alias is ours.stem
    assert ours.settings == model.settings
    assert ours.settings["rates"] is not model.settings["rates"]
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()
    ours.up.register_forward_hook(lambda *args: None)
    assert not model.up._forward_hooks


def test_the_memo_replaces_tensors():
    model = nn.Linear(2, 3)
    new = nn.Parameter(torch.zeros(5, 2))
    copied = copy_structure(model, {id(model.weight): new})
    assert copied.weight is new
    assert torch.equal(copied.bias, model.bias)


def test_a_class_that_copies_itself_is_asked():
    class Counted(nn.Linear):
        def __deepcopy__(self, memo):
            return Counted(7, 7)

    assert copy_structure(nn.Sequential(Counted(2, 2)), {})[0].in_features == 7

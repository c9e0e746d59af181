import contextvars
import copy
import logging
import math
import os
import socket
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from nets import Residual
from torch import nn

import precrop
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


class Helper:
    """An object with attributes, as a logger or a cache is; it cannot be pickled for its lock."""

    def __init__(self, **attributes):
        self.lock = threading.Lock()
        vars(self).update(attributes)


UNCOPIABLE = {
    "lock": threading.Lock,
    "rlock": threading.RLock,
    "condition": threading.Condition,
    "file": lambda: open(os.devnull),  # noqa: SIM115
    "socket": socket.socket,
    "generator": lambda: (i for i in range(3)),
    "iterator of a file": lambda: iter(open(os.devnull)),  # noqa: SIM115
    "module": lambda: math,
    "weakref": lambda: weakref.ref(Helper),
    "lambda": lambda: lambda x: x,
    "logger": lambda: logging.getLogger("precrop.test"),
    "random numbers": lambda: torch.Generator().manual_seed(3),
    "object": Helper,
    "executor": lambda: ThreadPoolExecutor(1),
    "frame": sys._getframe,
    "memory": lambda: memoryview(b"abc"),
    "context variable": lambda: contextvars.ContextVar("v"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", UNCOPIABLE)
@pytest.mark.parametrize("held", ["attribute", "list", "tuple", "dict", "set"])
def test_what_cannot_be_copied_is_shared(kind, held):
    thing = UNCOPIABLE[kind]()
    if held == "set" and kind == "memory":
        pytest.skip("views of memory are not hashed here")
    model = Residual()
    model.up.thing = {
        "attribute": thing,
        "list": [thing, [1, 2]],
        "tuple": (thing, [1, 2]),
        "dict": {"one": thing},
        "set": {thing},
    }[held]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = precrop.precrop(model, 0.5, input_shape=(3, 8, 8))
    assert type(small.up.thing) is type(model.up.thing)
    if held == "attribute" and kind not in ("logger", "random numbers"):
        assert small.up.thing is thing
    elif held != "attribute":
        assert small.up.thing is not model.up.thing or held in ("tuple", "set")
    precrop.score(model, "synflow", 0.5, input_shape=(3, 8, 8))
    small(torch.zeros(2, 3, 8, 8))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert copy_structure(small, {}).up[0].weight.shape == small.up[0].weight.shape


def test_what_cannot_be_copied_and_holds_the_network_is_named():
    model = nn.Sequential(Residual())
    model[0].up.helper = Helper(parts={"a": [model[0].stem]})
    with pytest.raises(
        precrop.PrecropError, match=r"attribute 'helper' of the module '0\.up', a \w+: the Helper .*lock"
    ):
        precrop.precrop(model, 0.5, input_shape=(3, 8, 8))


def test_an_unfinished_copy_leaves_nothing_behind():
    """The list in the helper is copied once more for the other attribute, not taken from the failed copy."""
    shared = [1, [2]]
    model = nn.Identity()
    model.helper, model.other = Helper(shared=shared), shared
    copied = copy_structure(model, {})
    assert copied.helper is model.helper and copied.other == shared and copied.other is not shared


def test_references_follow_the_copy():
    model = Residual()
    model.up.parent = weakref.ref(model)
    model.up.run = model.stem.forward
    vars(model.up)["pair"] = (model.stem, [model.stem])
    copied = copy_structure(model, {})
    assert copied.up.parent() is copied
    assert copied.up.run.__self__ is copied.stem
    assert copied.up.pair[0] is copied.stem and copied.up.pair[1][0] is copied.stem

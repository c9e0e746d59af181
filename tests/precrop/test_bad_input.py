"""Every argument of every public function, given what it is not: it works, or a PrecropError says what is wrong."""

import inspect
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import Chain
from torch import nn

import precrop
from precrop import PrecropError
from precrop.errors import BudgetError, ModelNameError, PlanError

SHAPE = (3, 8, 8)
DATA = [(torch.randn(4, *SHAPE), torch.arange(4))]


class Anything:
    def __repr__(self):
        return "Anything()"


# Made anew for every call: a generator gives its items once.
VALUES = {
    "None": lambda: None,
    "an empty text": lambda: "",
    "a text": lambda: "abc",
    "a null byte": lambda: "a\0b",
    "bytes": lambda: b"abc",
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "8": lambda: 8,
    "3.5": lambda: 3.5,
    "0.5": lambda: 0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "a huge number": lambda: 10**400,
    "a complex number": lambda: 1j,
    "True": lambda: True,
    "an empty list": list,
    "a list of None": lambda: [None],
    "a list of texts": lambda: ["abc"],
    "a list of numbers": lambda: [3, 8, 8],
    "a nested list": lambda: [[1]],
    "an empty tuple": tuple,
    "an empty dict": dict,
    "a dict of texts": lambda: {"abc": "abc"},
    "a dict of numbers": lambda: {1: 2},
    "densities": lambda: {"one.0": 0.5},
    "a set": lambda: {3},
    "an object": Anything,
    "a class": lambda: Anything,
    "a module class": lambda: nn.Linear,
    "a module": lambda: nn.Linear(2, 2),
    "a function": lambda: len,
    "a generator": lambda: (n for n in (3, 8, 8)),
    "a generator of texts": lambda: (n for n in ("abc",)),
    "a range": lambda: range(3),
    "np.int64": lambda: np.int64(8),
    "np.float32": lambda: np.float32(0.5),
    "np.bool": lambda: np.bool_(True),
    "np.nan": lambda: np.float64("nan"),
    "an array": lambda: np.ones(3),
    "an array of whole numbers": lambda: np.array([3, 8, 8]),
    "an array of one": lambda: np.array(0.5),
    "a tensor of one": lambda: torch.tensor(0.5),
    "a tensor of a whole number": lambda: torch.tensor(8),
    "a tensor": lambda: torch.ones(3),
    "a tensor without data": lambda: torch.tensor(0.5, device="meta"),
    "a size": lambda: torch.Size(SHAPE),
    "a path": lambda: Path("abc"),
    "a device": lambda: torch.device("cpu"),
    "a dtype": lambda: torch.float16,
    "a lock": threading.Lock,
    "an exception": lambda: ValueError("abc"),
}


def a_plan():
    return precrop.plan(Chain(), 0.5, input_shape=SHAPE)


def a_crop():
    return precrop.precrop(Chain(), 0.5, input_shape=SHAPE)


class Halves(nn.Module):
    def forward(self, x):
        return x[:, : self.half]


# What is called, and arguments with which it works.
FUNCTIONS = {
    "plan": (precrop.plan, lambda: {"model": Chain(), "ratio": 0.5, "input_shape": SHAPE}),
    "precrop": (precrop.precrop, lambda: {"model": Chain(), "params": 0.5, "input_shape": SHAPE}),
    "apply": (precrop.apply, lambda: {"model": Chain(), "plan": a_plan()}),
    "inspect": (precrop.inspect, lambda: {"model": Chain(), "input_shape": SHAPE}),
    "score": (
        precrop.score,
        lambda: {"model": Chain(), "scorer": "snip", "density": 0.5, "data": DATA, "input_shape": SHAPE},
    ),
    "save": (precrop.save, lambda: {"model": a_crop(), "path": "crop.safetensors"}),
    "load": (precrop.load, lambda: {"path": "here.safetensors", "model": Chain()}),
    "create_model": (precrop.create_model, lambda: {"name": "precrop/resnet20", "num_classes": 5, "in_chans": 1}),
    "register_forward": (precrop.register_forward, lambda: {"cls": Halves, "forward": lambda model, x: x}),
    "register_size_attributes": (
        lambda cls, name: precrop.register_size_attributes(cls, name),
        lambda: {"cls": Halves, "name": "half"},
    ),
    "CropPlan.load": (precrop.CropPlan.load, lambda: {"path": "plan.json"}),
    "CropPlan.from_json": (precrop.CropPlan.from_json, lambda: {"text": a_plan().to_json()}),
    "CropPlan.save": (lambda path: a_plan().save(path), lambda: {"path": "plan.json"}),
    "Densities.load": (precrop.Densities.load, lambda: {"path": "plan.json"}),
    "export": (precrop.export, lambda: {"model": a_crop(), "path": "crop.onnx", "precision": "int8"}),
}


def arguments(name):
    function = FUNCTIONS[name][0]
    if name == "create_model":
        return ["name", "num_classes", "in_chans"]
    if name == "export":
        return [p for p in inspect.signature(precrop.export.front.export).parameters]
    return [p for p in inspect.signature(function).parameters if p != "source"]


CASES = [(name, argument) for name in FUNCTIONS for argument in arguments(name)]


@pytest.fixture
def _in_a_folder(tmp_path, monkeypatch):
    """Files to read by the names above, tables that are put back, and none that is written elsewhere."""
    from precrop.cropping import forwards, layers

    monkeypatch.chdir(tmp_path)
    precrop.save(a_crop(), "here.safetensors")
    a_plan().save("plan.json")
    for table, at in ((layers, "SIZE_ATTRIBUTES"), (layers, "REGISTERED"), (forwards, "FORWARDS")):
        monkeypatch.setattr(table, at, dict(getattr(table, at)))


@pytest.mark.usefixtures("_in_a_folder")
@pytest.mark.parametrize(("name", "argument"), CASES, ids=[".".join(case) for case in CASES])
def test_an_argument_works_or_is_refused(name, argument):
    function, given = FUNCTIONS[name]
    raw = {}
    for label, make in VALUES.items():
        kwargs = {**given(), argument: make()}
        if name == "export" and argument not in ("model", "path", "to", "precision"):
            kwargs.setdefault("calibration", Anything())  # refused last: nothing is built
        if argument in ("params", "macs"):
            kwargs.pop("ratio", None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(**kwargs)
        except PrecropError as error:
            if len(str(error)) < 20:
                raw[label] = f"says little: {error}"
        except Exception as error:
            raw[label] = f"{type(error).__name__}: {str(error)[:150]}"
    assert not raw


@pytest.mark.parametrize("half", [np.float64(0.5), np.float32(0.5), np.float16(0.5), torch.tensor(0.5), np.array(0.5)])
def test_a_share_may_come_from_numpy_or_torch(half):
    assert precrop.plan(Chain(), half, input_shape=SHAPE) == a_plan()
    assert precrop.plan(Chain(), params=half, macs=half, input_shape=SHAPE) == a_plan()
    assert precrop.score(Chain(), "synexp", half, input_shape=SHAPE) == precrop.score(
        Chain(), "synexp", 0.5, input_shape=SHAPE
    )
    densities = {"one.0": half, "two.0": half}
    plain = {"one.0": 0.5, "two.0": 0.5}
    assert precrop.plan(Chain(), 0.5, scorer=densities, input_shape=SHAPE) == precrop.plan(
        Chain(), 0.5, scorer=plain, input_shape=SHAPE
    )


@pytest.mark.parametrize(
    "shape",
    [list(SHAPE), torch.Size(SHAPE), np.array(SHAPE), torch.tensor(SHAPE), tuple(map(np.int64, SHAPE)), iter(SHAPE)],
)
def test_a_shape_may_come_from_numpy_or_torch(shape):
    assert precrop.plan(Chain(), 0.5, input_shape=shape) == a_plan()


@pytest.mark.parametrize("unit", [np.int64(4), torch.tensor(4), np.array(4)])
def test_a_unit_may_come_from_numpy_or_torch(unit):
    plan = precrop.plan(Chain(), 0.5, round_to=unit, input_shape=SHAPE)
    assert plan == precrop.plan(Chain(), 0.5, round_to=4, input_shape=SHAPE)
    assert precrop.CropPlan.from_json(plan.to_json()) == plan


def test_no_names_to_ignore():
    assert precrop.plan(Chain(), 0.5, ignore=None, input_shape=SHAPE) == a_plan()
    assert len(precrop.plan(Chain(), 0.9, ignore=(n for n in ["one.0"]), input_shape=SHAPE).ignore) == 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: precrop.plan(Chain(), "x"), BudgetError, "ratio is 'x', a str; expected a number"),
        (lambda: precrop.plan(Chain(), 10**400), BudgetError, "expected a number"),
        (lambda: precrop.plan(Chain(), 0.5, input_shape=8), PrecropError, "input_shape is 8; expected positive integ"),
        (
            lambda: precrop.plan(Chain(), 0.5, scorer=None),
            PrecropError,
            "unknown scorer None. Expected one of 'synexp'",
        ),
        (lambda: precrop.plan(Chain(), 0.5, ignore=3), PrecropError, r"ignore is 3; expected layer names"),
        (lambda: precrop.plan(Chain(), 0.5, ignore=[""]), PrecropError, r"ignore is \[''\]; expected layer names"),
        (lambda: precrop.plan(Chain(), 0.5, widen="no"), PrecropError, "widen is 'no'; expected True or False"),
        (lambda: precrop.plan(Chain(), 0.5, target=[]), PrecropError, r"unknown target \[\]. Expected one of"),
        (lambda: precrop.plan(Chain(), 0.5, scorer={"one.0": "a"}), PrecropError, "density of one.0 is 'a'"),
        (lambda: precrop.plan(Chain(), 0.5, scorer={"one.0": True}), PrecropError, "density of one.0 is True"),
        (
            lambda: precrop.plan(Chain, 0.5),
            PrecropError,
            r"got the class Chain where a torch.nn.Module was expected.*Chain\(",
        ),
        (lambda: precrop.apply(Chain(), "plan.json"), PlanError, r"got a str as the plan.*CropPlan\.load"),
        (lambda: precrop.CropPlan.load(None), PrecropError, "got None, a NoneType, as a path; expected a str"),
        (lambda: precrop.save(a_crop(), 3), PrecropError, "got 3, a int, as a path"),
        (lambda: precrop.save("x", "y"), PlanError, "got 'x' to save; expected a cropped network"),
        (lambda: precrop.create_model(None), ModelNameError, "got None as a model's name.*Expected timm/NAME"),
        (
            lambda: precrop.score(Chain(), "snip", 0.5, data=DATA, loss=3),
            PrecropError,
            "loss is 3; expected a function",
        ),
        (
            lambda: precrop.score(Chain(), "snip", 0.5, data=DATA, seed="a"),
            PrecropError,
            "seed is 'a'; expected a whole",
        ),
        (lambda: precrop.export(a_crop(), "a.onnx", batch=1.5), PrecropError, "batch is 1.5; expected positive whole"),
        (
            lambda: precrop.export(a_crop(), "a.onnx", tolerance="x"),
            PrecropError,
            "tolerance is 'x'; expected the larg",
        ),
    ],
)
def test_a_refusal_says_what_was_got_and_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()

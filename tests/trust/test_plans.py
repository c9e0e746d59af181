"""Plans that were edited: what a plan says of a network is checked against it, and all that is not so is said."""

import json

import pytest
import torch
import torchvision
from nets import Chain, Residual
from torch import nn

import precrop
from precrop.cropping import forwards
from precrop.errors import PlanError

SHAPE = (3, 8, 8)


class Shuffled(nn.Module):
    """A width in units of four, beside one that is tied to nothing."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        self.last = nn.Linear(32, 5)

    def forward(self, x):
        x = torch.relu(self.grouped(torch.relu(self.first(x))))
        return self.last(x.mean((2, 3)))


@pytest.fixture
def record():
    return json.loads(precrop.plan(Shuffled(), 0.5, input_shape=SHAPE).to_json())


def applied(record, model=None):
    return precrop.apply(model or Shuffled(), precrop.CropPlan.from_json(json.dumps(record)))


def first(record):
    return next(iter(record["widths"].values()))


def test_a_plan_as_it_was_made_applies(record):
    assert applied(record).crop_plan == precrop.CropPlan.from_json(json.dumps(record))


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (11, r"kept is 11, expected a multiple of 4"),
        (2, r"kept is 2, expected a multiple of 4; .*kept is 2, expected at least 4"),
        (500, r"kept is 500, expected at most the original's 32 in a plan that does not widen"),
        (28, r"cropped\.params is [\d]+, expected [\d]+"),
        (0, r"widths\.[\w.]+\.kept: Input should be greater than or equal to 1"),
        (-4, r"widths\.[\w.]+\.kept: Input should be greater than or equal to 1"),
        (2**40, r"widths\.[\w.]+\.kept: Input should be less than"),
        (True, r"widths\.[\w.]+\.kept: Input should be a valid integer"),
        (8.0, r"widths\.[\w.]+\.kept: Input should be a valid integer"),
        ("8", r"widths\.[\w.]+\.kept: Input should be a valid integer"),
        (float("nan"), r"widths\.[\w.]+\.kept: Input should be a valid integer"),
        (None, r"widths\.[\w.]+\.kept: Input should be a valid integer"),
    ],
)
def test_an_edited_width(record, kept, said):
    first(record)["kept"] = kept
    with pytest.raises(PlanError, match=said):
        applied(record)


def set_in(record, path, value):
    *way, last = path
    for key in way:
        record = record[key]
    record[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("original", "params"), 2678, r"original\.params is 2678, expected"),
        (("original", "macs"), 1, r"original\.macs is 1, expected"),
        (("original", "activations"), 1, r"original\.activations is 1, expected"),
        (("cropped", "params"), 1, r"cropped\.params is 1, expected"),
        (("cropped", "macs"), 0, r"cropped\.macs is 0, expected"),
        (("cropped", "activations"), 7, r"cropped\.activations is 7, expected"),
        (("budget", "params"), 0.1, r"cropped\.params is \d+, expected at most the budget's 0\.1 of"),
        (("layers", 1, "params_kept"), 3, r"layers\.grouped\.params_kept is 3, expected"),
        (("layers", 1, "in_original"), 3, r"layers\.grouped\.in_original is 3, expected 32"),
        (("layers", 1, "croppable"), False, r"layers\.grouped\.croppable is False, expected True"),
        (("layers", 1, "name"), "other", r"layers are \[first, other, last\], expected \[first, grouped, last\]"),
        (("layers",), [], r"layers are \[none\]"),
        (("fixed",), [], r"fixed does not have what the network has: \[last \(5\)\]"),
        (("fixed", 0, "size"), 6, r"fixed does not have what the network has: \[last \(5\), last \(6\)\]"),
        (("target",), "abacus", r"target is 'abacus', expected one of onnxruntime"),
        (("ignore",), ["nothing"], r"ignore \['nothing'\] do not fit this Shuffled: ignore names no layer"),
        (("ignore",), ["first"], r"made for a network.*is no free width|is missing|not true"),
        (("input_shape",), [3, 16, 16], r"original\.macs is \d+, expected"),
        (("input_shape",), [4, 8, 8], r"input_shape \(4, 8, 8\).* do not fit"),
        (("input_shape",), [], r"input_shape: Tuple should have at least 1 item"),
        (("input_shape",), [3, 0, 8], r"input_shape\.1: Input should be greater than or equal to 1"),
        (("input_shape",), [3] * 99, r"input_shape: Tuple should have at most 8 items"),
        (("budget",), {"params": None, "macs": None}, r"budget: .*expected a cap"),
        (("budget", "params"), 0, r"budget\.params: Input should be greater than 0"),
        (("budget", "params"), 1.5, r"budget\.params: Input should be less than or equal to 1"),
        (("budget", "params"), float("nan"), r"budget\.params: Input should be"),
        (("original", "params"), 0, r"original: .*at least one parameter"),
        (("original", "params"), 2**70, r"original\.params: Input should be less than"),
        (("layers", 0, "params_original"), 0, r"layers\.0\.params_original: Input should be greater than"),
        (("round_to",), 0, r"round_to: Input should be greater than or equal to 1"),
        (("version",), 0, r"version: Input should be greater than or equal to 1"),
        (("version",), "one", r"version: Input should be a valid integer"),
        (("widen",), 1, r"widen: Input should be a valid boolean"),
        (("notes",), ["\x1b[2J"], r"notes\.0: .*without control characters"),
        (("scorer",), "s" * 9999, r"scorer: String should have at most"),
    ],
)
def test_an_edited_field(record, path, value, said):
    set_in(record, path, value)
    with pytest.raises(PlanError, match=said):
        applied(record)


def test_all_faults_are_said_at_once(record):
    first(record)["kept"] = 11
    first(record)["layers"] = ["other"]
    record["original"]["activations"] = 3
    record["layers"][2]["macs_original"] = 4
    record["fixed"] = []
    record["widths"]["made.up"] = {"original": 3, "kept": 3, "layers": []}
    with pytest.raises(PlanError) as caught:
        applied(record)
    for said in (
        "widths.made.up is no free width",
        "expected a multiple of 4",
        "layers is [other], expected [",
        "original.activations is 3",
        "layers.last.macs_original is 4",
        "fixed does not have",
    ):
        assert said in str(caught.value)


def test_many_faults_are_counted():
    model = torchvision.models.resnet18()
    record = json.loads(precrop.plan(model, 0.5).to_json())
    for row in record["layers"]:
        row["macs_kept"] += 1
    with pytest.raises(PlanError, match=rf"layers\.conv1\.macs_kept.*; and {len(record['layers']) - 8} more"):
        applied(record, model)


def test_a_plan_changed_in_memory_is_checked_as_a_file_is():
    made = precrop.plan(Chain(), 0.5, input_shape=SHAPE)
    name, width = next(iter(made.widths.items()))
    for kept, said in ((0, "greater than or equal to 1"), (True, "valid integer"), (99, "at most the original's")):
        changed = made.model_copy(update={"widths": {**made.widths, name: width.model_copy(update={"kept": kept})}})
        with pytest.raises(PlanError, match=said):
            precrop.apply(Chain(), changed)
    with pytest.raises(PlanError, match=r"got a dict .*CropPlan\.load"):
        precrop.apply(Chain(), made.model_dump())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"parent":' * 500 + "{}" + "}" * 500, "9" * 9999])
def test_text_that_is_deep_or_long_is_refused(text):
    with pytest.raises(PlanError, match="is not a precrop plan"):
        precrop.CropPlan.from_json(text)


def test_keys_of_a_file_are_printed_without_their_control_characters(record):
    record["\x1b[2J"] = 1
    with pytest.raises(PlanError, match=r"x1b\[2J'?: Extra inputs") as caught:
        applied(record)
    assert "\x1b" not in str(caught.value)


# What must go on applying


@pytest.mark.parametrize(
    "asked",
    [
        {"ratio": 1.0},
        {"ratio": 0.3},
        {"macs": 0.5, "round_to": 8},
        {"params": 0.6, "ignore": ["up"]},
        {"ratio": 0.5, "widen": True},
    ],
)
def test_true_plans_apply(asked, tmp_path):
    made = precrop.plan(Residual(), input_shape=SHAPE, **asked)
    made.save(tmp_path / "plan.json")
    small = precrop.apply(Residual(), precrop.CropPlan.load(tmp_path / "plan.json"))
    assert sum(p.numel() for p in small.parameters()) == made.cropped.params


def test_a_widened_plan_is_one_that_says_so():
    made = precrop.plan(Chain(), macs=0.9, input_shape=SHAPE, widen=True)
    assert any(width.kept > width.original for width in made.widths.values())
    with pytest.raises(PlanError, match="in a plan that does not widen"):
        precrop.apply(Chain(), made.model_copy(update={"widen": False}))


def test_a_crop_of_a_crop_of_a_crop_applies_to_each_of_them():
    def build():
        return Chain(a=64, b=128)

    once = precrop.precrop(build(), 0.6, input_shape=SHAPE)
    twice = precrop.precrop(once, 0.6)
    thrice = precrop.precrop(twice, 0.6)
    shapes = [p.shape for p in thrice.parameters()]
    for start in (build(), once, twice):
        assert [p.shape for p in precrop.apply(start, thrice.crop_plan).parameters()] == shapes


def test_a_plan_that_is_its_own_parent_ends():
    whole = precrop.plan(Chain(), 1.0, scorer="uniform", input_shape=SHAPE)
    lie = precrop.plan(Residual(), 0.5, input_shape=SHAPE).model_copy(update={"parent": whole})
    with pytest.raises(PlanError, match="the plan was made for"):
        precrop.apply(Chain(), lie)


def test_a_lie_in_the_parent_is_found():
    twice = precrop.precrop(precrop.precrop(Chain(a=32, b=64), 0.5, input_shape=SHAPE), 0.5).crop_plan
    parent = twice.parent.model_copy(update={"cropped": twice.cropped})
    with pytest.raises(PlanError, match="not true of this Chain: cropped"):
        precrop.apply(Chain(a=32, b=64), twice.model_copy(update={"parent": parent}))


class Pair(Chain):
    def forward(self, one, other):
        return super().forward(one) + super().forward(other)


def test_a_network_with_a_forward_of_its_own(monkeypatch):
    monkeypatch.setattr(forwards, "FORWARDS", dict(forwards.FORWARDS))
    precrop.register_forward(Pair, lambda model, images: model(images, images))
    made = precrop.plan(Pair(), 0.5, input_shape=SHAPE)
    small = precrop.apply(Pair(), made)
    image = torch.randn(2, *SHAPE)
    assert small(image, image).isfinite().all()

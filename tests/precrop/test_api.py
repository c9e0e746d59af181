import math

import pytest
import torch
import torchvision
from nets import Chain, Residual
from torch import nn

import precrop
from precrop.errors import BudgetError, PlanError, PrecropError

SHAPE = (3, 8, 8)


@pytest.mark.parametrize("ratio", [0, 1.5, -1, math.nan, math.inf, "half", True, [0.5]])
@pytest.mark.parametrize("name", ["ratio", "params", "macs"])
def test_a_bad_share_explains_the_convention(name, ratio):
    with pytest.raises(BudgetError, match=rf"{name} is .*share kept, 0 < ratio <= 1.*4x compression pass 0\.25"):
        precrop.precrop(Chain(), **{name: ratio}, input_shape=SHAPE)


def test_one_kind_of_budget_at_a_time():
    with pytest.raises(BudgetError, match=r"ratio=0\.5 and params= as well"):
        precrop.precrop(Chain(), 0.5, params=0.5, input_shape=SHAPE)
    with pytest.raises(BudgetError, match="no budget was given"):
        precrop.precrop(Chain(), input_shape=SHAPE)


def test_ratio_caps_both():
    crop = precrop.plan(Chain(), 0.5, input_shape=SHAPE)
    assert crop.budget.params == crop.budget.macs == 0.5
    assert crop.params_ratio <= 0.5
    assert crop.macs_ratio <= 0.5


@pytest.mark.parametrize("model", ["resnet18", None, Chain])
def test_not_a_model(model):
    with pytest.raises(PrecropError, match=r"torch\.nn\.Module was expected"):
        precrop.precrop(model, 0.5)


def test_wrapped_models_are_refused_by_name():
    with pytest.raises(PrecropError, match=r"DataParallel.*model\.module"):
        precrop.precrop(nn.DataParallel(Chain()), 0.5, input_shape=SHAPE)
    with pytest.raises(PrecropError, match=r"OptimizedModule.*model\._orig_mod"):
        precrop.precrop(torch.compile(Chain()), 0.5, input_shape=SHAPE)
    with pytest.raises(PrecropError, match="ScriptModule"):
        precrop.precrop(torch.jit.trace(Chain().eval(), torch.randn(1, *SHAPE)), 0.5, input_shape=SHAPE)


@pytest.mark.parametrize("shape", [(), (3, 0, 8), (3, 8.5, 8), ("3", 8, 8)])
def test_bad_input_shape(shape):
    with pytest.raises(PrecropError, match="expected positive integers"):
        precrop.precrop(Chain(), 0.5, input_shape=shape)


@pytest.mark.parametrize("unit", [0, -8, 2.5, True])
def test_bad_round_to(unit):
    with pytest.raises(PrecropError, match="positive integer"):
        precrop.precrop(Chain(), 0.5, input_shape=SHAPE, round_to=unit)


def test_input_shape_is_found():
    timm = pytest.importorskip("timm")
    assert precrop.plan(timm.create_model("resnet18", in_chans=1), 0.5).input_shape == (1, 224, 224)
    assert precrop.plan(timm.create_model("mobilenetv3_small_050"), 0.5).input_shape == (3, 224, 224)
    assert precrop.plan(timm.create_model("efficientnet_b1"), 0.5).input_shape == (3, 240, 240)
    assert precrop.plan(torchvision.models.squeezenet1_1(), 0.5).input_shape == (3, 224, 224)
    assert precrop.plan(precrop.create_model("precrop/resnet20"), 0.5).input_shape == (3, 32, 32)
    with pytest.raises(PrecropError, match="input_shape="):
        precrop.plan(nn.Sequential(nn.Conv1d(2, 8, 3), nn.Conv1d(8, 4, 3)), 0.5)


def test_one_dimensional_and_three_dimensional_convolutions_crop():
    for conv, pool, shape in ((nn.Conv1d, 1, (2, 16)), (nn.Conv3d, 3, (2, 6, 6, 6))):
        model = nn.Sequential(conv(2, 16, 3), nn.ReLU(), conv(16, 32, 3), nn.Flatten(), nn.LazyLinear(4))
        model(torch.randn(2, *shape))
        small = precrop.precrop(model, params=0.5, input_shape=shape)
        assert small(torch.randn(2, *shape)).shape == (2, 4)
        assert pool and small[0].out_channels < 16


def test_plan_then_apply_is_precrop():
    model = Residual()
    crop = precrop.plan(model, 0.5, input_shape=SHAPE)
    torch.manual_seed(1)
    applied = precrop.apply(model, crop)
    torch.manual_seed(1)
    direct = precrop.precrop(model, 0.5, input_shape=SHAPE)
    assert applied.crop_plan == direct.crop_plan == crop
    assert all(torch.equal(a, b) for a, b in zip(applied.parameters(), direct.parameters(), strict=True))


def test_a_plan_survives_json(tmp_path):
    crop = precrop.plan(Residual(), 0.5, input_shape=SHAPE, ignore=["stem"])
    crop.save(tmp_path / "plan.json")
    again = precrop.CropPlan.load(tmp_path / "plan.json")
    assert again == crop
    assert precrop.apply(Residual(), again).up[0].out_channels == crop.widths["up.0"].kept


def test_a_plan_for_another_network_is_refused():
    crop = precrop.plan(Chain(), 0.5, input_shape=SHAPE)
    with pytest.raises(PlanError, match=r"widths\.one\.0\.original is 16, expected 24"):
        precrop.apply(Chain(a=24), crop)
    with pytest.raises(PlanError, match="made for a network"):
        precrop.apply(Residual(), crop)
    # The same network at another input size would cost other MACs: the plan brings its own size.
    assert precrop.apply(Chain(), crop).crop_plan.input_shape == SHAPE


def test_a_crop_of_a_crop_is_rebuilt_from_the_original():
    model = Chain(a=32, b=64)
    twice = precrop.precrop(precrop.precrop(model, 0.5, input_shape=SHAPE), 0.5)
    rebuilt = precrop.apply(Chain(a=32, b=64), twice.crop_plan)
    assert [p.shape for p in rebuilt.parameters()] == [p.shape for p in twice.parameters()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a precrop plan"),
        ("{}", "input_shape: Field required"),
        ('{"version": 1, "unknown": 3}', "unknown: Extra inputs"),
    ],
)
def test_damaged_plans(tmp_path, text, message):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=message):
        precrop.CropPlan.load(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="cannot read the plan"):
        precrop.CropPlan.load(tmp_path / "none.json")


def test_what_is_printed():
    small = precrop.precrop(Chain(), params=0.5, input_shape=SHAPE)
    text = str(small.crop_plan)
    assert "asked at most: params 0.5" in text
    assert f"met: params {small.crop_plan.params_ratio:.4f}" in text
    assert f"16→{small.one[0].out_channels}" in text
    text = str(precrop.inspect(Chain(), input_shape=SHAPE))
    assert "one.0" in text
    assert "the network's output" in text


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    from precrop import files

    path = tmp_path / "plan.json"
    path.write_bytes(b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(PrecropError, match="No space left"):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]

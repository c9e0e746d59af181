"""`Densities`, the plan, and the command line."""

import json
import sys

import pytest
import torch
from nets import Chain, Residual
from support_cli import run

import precrop
from precrop import Densities, PrecropError, load, plan, score
from precrop.errors import MissingExtraError, ScoreError

SHAPE = (3, 8, 8)


def test_densities_are_a_mapping_that_prints_as_a_table():
    densities = score(Chain(), "erk", 0.5, input_shape=SHAPE)
    assert list(densities) == ["one.0", "two.0", "head.fc"]
    assert densities["one.0"] == dict(densities)["one.0"]
    assert densities == dict(densities)
    with pytest.raises(KeyError):
        densities["three"]
    lines = str(densities).splitlines()
    assert lines[0] == "scorer erk, input 3x8x8: density 0.5 of 5.36k weights, kept 0.5"
    assert [line.split()[0] for line in lines[4:7]] == ["one.0", "two.0", "head.fc"]
    assert "two.0" in repr(densities)
    with pytest.raises(AttributeError):
        densities.density = 0.1


def test_densities_survive_json(tmp_path):
    densities = score(Chain(), "synflow", 0.2, input_shape=SHAPE, keep_scores=True)
    densities.save(tmp_path / "d.json")
    again = Densities.load(tmp_path / "d.json")
    assert again == densities
    assert str(again) == str(densities)
    assert again.scores is None
    for text in ("", "{}", "[]", '{"densities": 3}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ScoreError, match="holds no densities"):
            Densities.load(tmp_path / "bad.json")
    with pytest.raises(ScoreError, match="cannot read"):
        Densities.load(tmp_path / "none.json")


def test_the_plan_names_the_scorer_and_the_tighter_budget_is_the_density():
    model, data = Residual(), [(torch.randn(8, *SHAPE), torch.arange(8))]
    by_name = plan(model, params=0.6, macs=0.3, scorer="snip", data=data)
    assert by_name.scorer == "snip"
    assert by_name == plan(model, params=0.6, macs=0.3, scorer=score(model, "snip", 0.3, data=data))
    assert plan(model, 0.5, scorer=dict(score(model, "snip", 0.3, data=data)), input_shape=SHAPE).scorer == "densities"
    small = precrop.precrop(model, 0.25, scorer="snip", data=data)
    assert small(torch.randn(2, *SHAPE)).shape == (2, 10)
    assert small.crop_plan.params_ratio <= 0.25


def test_score_prints_the_table(capsys, tmp_path):
    args = ("score", "precrop/resnet20", "--scorer", "magnitude", "--density", "0.1")
    status, out, err = run(capsys, *args, "-o", tmp_path / "d.json")
    assert not status
    assert "stage3.2.conv1" in out
    assert "scorer magnitude, input 3x32x32: density 0.1 of 271k weights, kept 0.1" in out
    assert not err
    assert json.loads((tmp_path / "d.json").read_text())["scorer"] == "magnitude"
    assert run(capsys, *args)[1] == out[: out.index("saved")]


@pytest.mark.parametrize(("name", "magic"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_score_draws_a_chart(capsys, tmp_path, name, magic):
    pytest.importorskip("matplotlib")
    args = ("score", "precrop/resnet56", "--scorer", "erk", "--density", "0.05")
    status, out, _ = run(capsys, *args, "--plot", tmp_path / name)
    assert not status
    assert f"saved {tmp_path / name}" in out.replace("\n", "")
    assert (tmp_path / name).read_bytes().startswith(magic)
    if name.endswith("svg"):
        assert "stage3.8.conv2" in (tmp_path / name).read_text()


def test_score_takes_a_data_set_of_the_recipes(capsys, tmp_path):
    pytest.importorskip("sklearn")
    shape = ("--input-shape", "1,16,16", "--model-arg", "in_chans=1")
    status, out, _ = run(
        capsys, "score", "precrop/resnet20", "--scorer", "snip", "--data", "digits", *shape, "-o", tmp_path / "d.json"
    )
    assert not status
    assert "scorer snip, input 1x16x16" in out
    budget = ("--params", "0.1")
    status, out, _ = run(
        capsys, "crop", "precrop/resnet20", "--scorer", "snip", "--data", "digits", *shape, *budget,
        "-o", tmp_path / "small.safetensors",
    )  # fmt: skip
    assert not status
    crop = load(tmp_path / "small.safetensors").crop_plan
    assert crop.scorer == "snip"
    status, _, _ = run(
        capsys, "crop", "precrop/resnet20", "--scorer", tmp_path / "d.json", "--model-arg", "in_chans=1", *budget,
        "-o", tmp_path / "plan.json",
    )  # fmt: skip
    assert not status
    assert precrop.CropPlan.load(tmp_path / "plan.json").widths == crop.widths


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--scorer", "synflw"], "Did you mean 'synflow'"),
        (["--scorer", "snip"], "scorer 'snip' needs data"),
        (["--scorer", "snip", "--data", "mnits"], "'digits'"),
        (["--scorer", "snip", "--data", "cifar10"], "--data cifar10: --data-root: missing"),
        (["--density", "2"], "0 < density <= 1"),
        (["--density", "half"], "0 < density <= 1"),
        (["--plot", "chart.pdf"], ".png or .svg"),
        (["--plot", "none/chart.png"], "does not exist"),
        (["-o", "d.safetensors"], "ending in .json"),
    ],
)
def test_errors_are_one_message(capsys, args, message):
    status, _, err = run(capsys, "score", "precrop/resnet20", *args)
    assert status == 1
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err


def test_a_crop_by_a_scorer_without_its_data(capsys):
    status, _, err = run(capsys, "crop", "precrop/resnet20", "--ratio", "0.5", "--scorer", "grasp")
    assert status == 1
    assert "scorer 'grasp' needs data" in err
    status, _, err = run(capsys, "crop", "precrop/resnet20", "--scorer", "grasp", "--data", "digits")
    assert status == 1
    assert "no budget was given" in err


def test_a_chart_without_matplotlib_names_the_extra(monkeypatch, tmp_path):
    from precrop.plotting import plot_densities

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"precrop\[plot\]"):
        plot_densities(score(Chain(), "erk", 0.5, input_shape=SHAPE), tmp_path / "c.png")


def test_a_chart_that_cannot_be_written(tmp_path):
    pytest.importorskip("matplotlib")
    from precrop.plotting import plot_densities

    with pytest.raises(PrecropError, match="cannot write"):
        plot_densities(score(Chain(), "erk", 0.5, input_shape=SHAPE), tmp_path / "none" / "c.png")

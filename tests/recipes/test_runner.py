import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

import precrop
from precrop.crop_plan import CropPlan
from precrop.errors import MissingExtraError, PrecropError, RecipeError
from precrop.recipes import DATASETS, load_recipe, shipped_recipes, train

SHORT = [
    "data.image_size=8",
    "train.epochs=1",
    "train.warmup_epochs=0",
    "train.batch_size=128",
    "export.latency.warmup=1",
    "export.latency.repeats=5",
]
VARIANTS = ["dense", "uniform", "cropped"]


def run(tmp_path, *overrides, recipe="digits"):
    text = io.StringIO()
    console = Console(file=text, width=100)
    result = train(recipe, [*SHORT, *overrides], tmp_path / "runs", console=console)
    return result, text.getvalue()


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A shortened run of the shipped recipe, and what it printed."""
    return run(tmp_path_factory.mktemp("digits"))


def test_the_run_folder_is_whole(digits):
    result, printed = digits
    recipe = load_recipe("digits", SHORT)
    assert result.folder.name == f"digits-{recipe.digest()}"
    assert load_recipe(result.folder / "recipe.yaml") == recipe == result.recipe
    found = {str(path.relative_to(result.folder)) for path in result.folder.rglob("*") if path.is_file()}
    of_each = ("plan.json", "model.safetensors", "model.onnx", "metrics.csv")
    expected = {"recipe.yaml", "metrics.json", "metrics.csv"}
    assert found == expected | {f"{name}/{file}" for name in VARIANTS for file in of_each}
    assert [path.name for path in result.folder.parent.iterdir()] == [result.folder.name]
    assert f"files: {result.folder}" in printed


def test_the_table_is_the_measurement(digits):
    result, printed = digits
    record = json.loads((result.folder / "metrics.json").read_text())
    rows = list(csv.DictReader((result.folder / "metrics.csv").open()))
    assert [variant.name for variant in result.variants] == VARIANTS
    assert [row["variant"] for row in record["variants"]] == [row["variant"] for row in rows] == VARIANTS
    assert record["hash"] == result.recipe.digest()
    assert torch.__version__.startswith(record["environment"]["torch"])
    dense = result.dense
    for variant, row, line in zip(result.variants, record["variants"], rows, strict=True):
        plan = CropPlan.load(result.folder / variant.name / "plan.json")
        assert (variant.params, variant.macs) == (plan.cropped.params, plan.cropped.macs)
        for key in ("params", "macs", "accuracy", "train_s", "latency_ms"):
            assert row[key] == getattr(variant, key) > 0
            assert float(line[key]) == row[key]
            assert row[f"{key}_ratio"] == pytest.approx(row[key] / getattr(dense, key))
        assert f"{variant.params:,}" in printed
        assert f"{variant.accuracy:.2%}" in printed
        assert f"{variant.latency_ms:.3f}" in printed
        assert f"largest error against PyTorch {variant.onnx_max_abs_error:.1e}" in printed
        assert variant.onnx_max_abs_error < 1e-4
    assert printed.count("÷ dense") == 2


def test_crops_keep_to_the_budget_and_dense_is_the_original(digits):
    result, _ = digits
    ratio = result.recipe.crop.ratio
    torch.manual_seed(0)
    original = precrop.create_model("precrop/resnet20", num_classes=10, in_chans=1)
    dense, uniform, cropped = result.variants
    assert dense.params == sum(weight.numel() for weight in original.parameters())
    for variant in (uniform, cropped):
        assert variant.params <= ratio * dense.params
        assert variant.macs <= ratio * dense.macs
    plans = [CropPlan.load(result.folder / name / "plan.json") for name in VARIANTS]
    assert [plan.scorer for plan in plans[1:]] == ["uniform", "synexp"]


def test_checkpoint_and_onnx_file_hold_the_trained_network(digits):
    import onnxruntime

    result, _ = digits
    data = DATASETS["digits"](result.recipe.data)
    images, targets = data.val.tensors
    for variant in result.variants:
        network = precrop.load(result.folder / variant.name / "model.safetensors").eval()
        with torch.no_grad():
            scores = network(images)
        accuracy = (scores.argmax(1) == targets).float().mean().item()
        assert accuracy == pytest.approx(variant.accuracy, abs=1.5 / len(targets))
        session = onnxruntime.InferenceSession(
            result.folder / variant.name / "model.onnx", providers=["CPUExecutionProvider"]
        )
        (exported,) = session.run(None, {"input": images.numpy()})
        np.testing.assert_allclose(exported, scores.numpy(), atol=1e-4 * max(1, scores.abs().max().item()))


def test_one_variant_without_export_then_again_in_its_place(tmp_path):
    overrides = ["export=null", "variants={small: {}}"]
    result, printed = run(tmp_path, *overrides)
    assert not (result.folder / "small" / "model.onnx").exists()
    assert result.dense is None
    assert "÷ dense" not in printed
    assert "is replaced" not in printed
    before = precrop.load(result.folder / "small" / "model.safetensors").state_dict()
    (result.folder / "stale").write_text("of the run before")

    again, printed = run(tmp_path, *overrides)
    assert again.folder == result.folder
    assert f"{result.folder} is replaced when this run is complete" in printed
    assert not (again.folder / "stale").exists()
    after = precrop.load(again.folder / "small" / "model.safetensors").state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [again.folder.name]


def test_failed_run_leaves_nothing_and_keeps_the_one_before(tmp_path):
    overrides = ["variants={dense: {crop: false}}", "export=null", "train.lr=1e30", "train.schedule=constant"]
    recipe = load_recipe("digits", [*SHORT, *overrides])
    before = tmp_path / "runs" / f"digits-{recipe.digest()}"
    before.mkdir(parents=True)
    (before / "metrics.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"variant dense: the loss became (nan|inf) at step \d+"):
        run(tmp_path, *overrides)
    assert [path.name for path in before.parent.iterdir()] == [before.name]
    assert (before / "metrics.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["model.kwargs={num_classes: 7}"], RecipeError, r"outputs \(1, 7\).*expected \(1, 10\)"),
        (["model.kwargs={in_chans: 3}"], RecipeError, r"does not run on an image \(1, 8, 8\) of digits"),
        (["variants.cropped.scorer=synflux"], PrecropError, "synflux"),
        (["model.name=precrop/resnet21"], PrecropError, "resnet21"),
    ],
)
def test_what_cannot_be_trained_is_found_before_training(tmp_path, overrides, error, message):
    with pytest.raises(error, match=message):
        run(tmp_path, *overrides)
    assert not (tmp_path / "runs").exists()


def test_runs_dir_that_is_a_file_is_said(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(PrecropError, match="cannot write the run folder"):
        run(tmp_path)


@pytest.mark.parametrize(("module", "extra"), [("lightning", "train"), ("onnxruntime", "onnx")])
def test_missing_extra_is_named_before_training(tmp_path, monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module}.*pip install 'precrop\[{extra}\]'"):
        run(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_torch_threads_are_put_back(tmp_path):
    before = torch.get_num_threads()
    with pytest.raises(PrecropError):
        run(tmp_path, f"execution.threads={before + 1}", "variants.cropped.scorer=synflux")
    assert torch.get_num_threads() == before


def test_importing_loads_no_trainer_and_no_engine():
    code = (
        "import sys, precrop.recipes, precrop.export; "
        "print([name for name in ('lightning', 'sklearn', 'onnx', 'onnxscript', 'onnxruntime') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_shipped_recipe_runs_shortened_above():
    assert set(shipped_recipes()) == {"digits"}

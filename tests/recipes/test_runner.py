import csv
import io
import json
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors import safe_open

import precrop
from precrop.crop_plan import CropPlan
from precrop.errors import MissingExtraError, PrecropError, RecipeError
from precrop.recipes import DATASETS, load_recipe, train
from precrop.recipes.folders import locked, run_folder
from precrop.recipes.training import checkpoints

SHORT = [
    "data.image_size=8",
    "train.epochs=1",
    "train.warmup_epochs=0",
    "train.batch_size=128",
    "export.latency.warmup=1",
    "export.latency.repeats=5",
]
VARIANTS = ["dense", "uniform", "cropped"]


def run(tmp_path, *overrides, recipe="digits", restart=False):
    text = io.StringIO()
    console = Console(file=text, width=100)
    result = train(recipe, [*SHORT, *overrides], tmp_path / "runs", console=console, restart=restart)
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
    found = {path for path in found if "/tensorboard/" not in path}
    of_each = ("plan.json", "model.safetensors", "model.onnx", "model.onnx.json", "metrics.csv", "result.json")
    expected = {"recipe.yaml", "metrics.json", "metrics.csv", "report.html", "accuracy.svg", "accuracy.png", ".lock"}
    assert found == expected | {f"{name}/seed0/{file}" for name in VARIANTS for file in of_each}
    for name in VARIANTS:
        assert list((result.folder / name / "seed0" / "tensorboard").glob("events.*"))
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
        plan = CropPlan.load(result.folder / variant.name / "seed0" / "plan.json")
        assert (variant.params, variant.macs) == (plan.cropped.params, plan.cropped.macs)
        for key in ("params", "macs", "accuracy", "train_s", "latency_ms"):
            assert row[key] == getattr(variant, key) > 0
            assert float(line[key]) == row[key]
            assert row[f"{key}_ratio"] == pytest.approx(row[key] / getattr(dense, key))
        assert f"{variant.params:,}" in printed
        assert f"{variant.accuracy:.2%}" in printed
        assert f"{variant.latency_ms:.3f}" in printed
        (file,) = variant.files
        assert (
            f"model.onnx: {file.size_bytes / 1e3:,.0f} kB, largest error against PyTorch {file.max_abs_error:.1e}"
            in (printed)
        )
        assert row["onnx_max_abs_error"] == float(line["onnx_max_abs_error"]) == file.max_abs_error < 1e-4
        assert row["onnx_size_bytes"] == (result.folder / variant.name / "seed0" / "model.onnx").stat().st_size
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
    plans = [CropPlan.load(result.folder / name / "seed0" / "plan.json") for name in VARIANTS]
    assert [plan.scorer for plan in plans[1:]] == ["uniform", "synexp"]


def test_checkpoint_and_onnx_file_hold_the_trained_network(digits):
    import onnxruntime

    result, _ = digits
    data = DATASETS["digits"](result.recipe.data)
    images, targets = data.val.tensors
    for variant in result.variants:
        network = precrop.load(result.folder / variant.name / "seed0" / "model.safetensors").eval()
        with torch.no_grad():
            scores = network(images)
        accuracy = (scores.argmax(1) == targets).float().mean().item()
        assert accuracy == pytest.approx(variant.accuracy, abs=1.5 / len(targets))
        session = onnxruntime.InferenceSession(
            result.folder / variant.name / "seed0" / "model.onnx", providers=["CPUExecutionProvider"]
        )
        (exported,) = session.run(None, {"input": images.numpy()})
        np.testing.assert_allclose(exported, scores.numpy(), atol=1e-4 * max(1, scores.abs().max().item()))


def test_a_finished_variant_is_not_trained_again_unless_asked(tmp_path):
    overrides = ["export=null", "variants={small: {}}"]
    result, printed = run(tmp_path, *overrides)
    assert not (result.folder / "small" / "seed0" / "model.onnx").exists()
    assert result.dense is None
    assert "÷ dense" not in printed
    before = precrop.load(result.folder / "small" / "seed0" / "model.safetensors").state_dict()

    # Exported now: the training is found again.
    again, printed = run(tmp_path, "variants={small: {}}")
    assert again.folder == result.folder
    assert "finished before" in printed
    assert again.variants[0].accuracy == result.variants[0].accuracy
    assert (again.folder / "small" / "seed0" / "model.onnx").exists()

    (result.folder / "stale").write_text("of the run before")
    again, printed = run(tmp_path, *overrides, restart=True)
    assert "finished before" not in printed
    assert not (again.folder / "stale").exists()
    after = precrop.load(again.folder / "small" / "seed0" / "model.safetensors").state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [again.folder.name]


def test_further_seeds_add_to_a_run(tmp_path):
    overrides = ["export=null", "variants={dense: {crop: false}, small: {}}", "crop={ratio: 0.1}"]
    first, _ = run(tmp_path, *overrides)
    both, printed = run(tmp_path, *overrides, "seeds=2")
    assert both.folder == first.folder
    assert printed.count("finished before") == 2
    for variant, alone in zip(both.variants, first.variants, strict=True):
        assert [training.seed for training in variant.trainings] == [0, 1]
        accuracies = [training.accuracy for training in variant.trainings]
        assert accuracies[0] == alone.accuracy
        assert variant.accuracy == pytest.approx(sum(accuracies) / 2)
        assert variant.accuracy_std == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
        assert f"{variant.accuracy:.2%} ± {variant.accuracy_std:.2%}" in printed
    weights = [
        precrop.load(both.folder / "dense" / f"seed{seed}" / "model.safetensors").conv1.weight for seed in (0, 1)
    ]
    assert not torch.equal(*weights)


def test_a_loss_that_is_no_longer_finite_keeps_the_last_good_checkpoint(tmp_path):
    overrides = ["variants={dense: {crop: false}}", "export=null", "train.lr=1e20", "train.schedule=constant"]
    overrides += ["train.optimizer=adamw", "execution.checkpoint_every=1"]
    with pytest.raises(
        RecipeError, match=r"variant dense: the (loss|weights) became nan or infinite at step \d+"
    ) as caught:
        run(tmp_path, *overrides)
    (folder,) = (tmp_path / "runs").iterdir()
    saved = checkpoints(folder / "dense" / "seed0" / "checkpoints")
    kept = re.search(r"The last good checkpoint is kept: (.*)$", str(caught.value))
    assert (kept[1] if kept else None) == (str(saved[0]) if saved else None)
    for path in saved:
        with safe_open(path, "pt") as file:
            assert all(file.get_tensor(name).isfinite().all() for name in file.keys())  # noqa: SIM118
    assert not (folder / "dense" / "seed0" / "result.json").exists()


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed")
def test_every_format_in_int8_from_the_recipes_own_images(tmp_path):
    export = "export={to: [onnx, openvino, tensorrt], precision: int8, batch: [1, 4], latency: {backend: openvino}}"
    result, printed = run(tmp_path, export, "variants={dense: {crop: false}}")
    folder = result.folder / "dense" / "seed0"
    (variant,) = result.variants
    assert [file.path.name for file in variant.files] == ["model.onnx", "model.xml", "model.plan"]
    for file in variant.files:
        facts = json.loads(file.sidecar.read_text())
        assert file.sidecar.parent == file.path.parent == folder
        assert (facts["precision"], facts["input"]["batch"]) == ("int8", [1, 4])
        assert facts["parity"]["on"] == "calibration images"
        assert f"{file.path.name}: {file.size_bytes / 1e3:,.0f} kB" in printed
    (row,) = result.rows()
    assert {f"{name}_max_abs_error" for name in ("onnx", "openvino", "tensorrt")} <= set(row)
    assert variant.latency_ms > 0
    assert "Latency: OpenVINO, int8, batch 1" in " ".join(printed.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_export_needs_is_said_before_the_training(tmp_path, monkeypatch):
    with pytest.raises(PrecropError, match=r"export\.latency\.backend is tensorrt, and PyTorch finds no NVIDIA"):
        run(tmp_path, "export.latency.backend=tensorrt")
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"precrop\[tensorrt-rtx\]"):
        run(tmp_path, "export.to=[tensorrt]")
    assert not (tmp_path / "runs").exists()


def test_two_runs_of_one_recipe_at_once_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("precrop.recipes.folders.PATIENCE_S", 0.3)
    recipe = load_recipe("digits", SHORT)
    with (
        locked(run_folder(tmp_path / "runs", recipe), False, print),
        pytest.raises(PrecropError, match="another run writes to"),
    ):
        run(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["model.kwargs={num_classes: 7}"], RecipeError, r"outputs \(1, 7\).*expected \(1, 10\)"),
        (["model.kwargs={in_chans: 3}"], RecipeError, r"does not run on an image \(1, 8, 8\) of digits"),
        (["variants.cropped.scorer=synflux"], RecipeError, "did you mean 'synflow'"),
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

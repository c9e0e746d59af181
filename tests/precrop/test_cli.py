import subprocess
import sys

import pytest
from support_cli import run

from precrop import CropPlan, load


def test_inspect_lists_free_and_fixed_widths(capsys):
    status, out, _ = run(capsys, "inspect", "precrop/resnet20")
    assert not status
    assert "input 3x32x32" in out
    assert "stage3.2.conv1" in out
    assert "the network's output" in out


def test_crop_saves_what_load_reads(capsys, tmp_path):
    path = tmp_path / "small.safetensors"
    status, out, _ = run(capsys, "crop", "precrop/resnet20", "--params", "0.5", "-o", path)
    assert not status
    assert f"saved {path}" in out.replace("\n", "")
    assert 0.495 <= load(path).crop_plan.params_ratio <= 0.5
    status, out, _ = run(capsys, "crop", path, "--ratio", "0.5", "-o", tmp_path / "plan.json")
    assert not status
    assert CropPlan.load(tmp_path / "plan.json").parent is not None


def test_model_arguments_reach_the_builder(capsys):
    status, out, _ = run(capsys, "inspect", "precrop/resnet20", "--model-arg", "num_classes=37")
    assert not status
    assert "37" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["crop", "precrop/resnet20", "--ratio", "1.5"], "4x compression pass 0.25"),
        (["crop", "precrop/resnet20", "--ratio", "half"], "4x compression pass 0.25"),
        (["crop", "precrop/resnet20"], "no budget was given"),
        (["crop", "precrop/resnet21", "--ratio", "0.5"], "precrop/resnet20"),
        (["crop", "precrop/resnet20", "--ratio", "0.5", "--ignore", "conv9"], "conv1"),
        (["crop", "precrop/resnet20", "--ratio", "0.5", "-o", "small.pt"], ".safetensors or .json"),
        (["crop", "precrop/resnet20", "--ratio", "0.5", "-o", "none/small.json"], "does not exist"),
        (["inspect", "precrop/resnet20", "--input-shape", "3,a"], "3,224,224"),
        (["inspect", "precrop/resnet20", "--model-arg", "classes"], "KEY=VALUE"),
        (["inspect", "none.safetensors"], "none.safetensors"),
        (["train", "none.yaml"], "none.yaml"),
    ],
)
def test_errors_are_one_message(capsys, args, message):
    status, _, err = run(capsys, *args)
    assert status == 1
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err


def test_python_m_and_the_version():
    result = subprocess.run([sys.executable, "-m", "precrop", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("precrop 0.")

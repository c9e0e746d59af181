import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "latency.py"
NETWORK = "precrop/resnet20"


def run(*arguments, cwd):
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_quick_run_times_crop_and_mask_and_writes_all(tmp_path):
    pytest.importorskip("onnxruntime")
    done = run(
        "--quick", NETWORK, "--backends", "onnxruntime", "--peers", "masks",
        "--write", "page.md", "--csv", "rows.csv", "--json", "all.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "rows.csv", newline="") as file:
        dense, crop, mask = list(csv.DictReader(file))
    assert (dense["label"], float(dense["speedup"])) == ("dense", 1.0)
    assert 0.45 < float(crop["macs_ratio"]) <= 0.5
    assert float(crop["realised_share"]) == pytest.approx(float(crop["speedup"]) * float(crop["macs_ratio"]))
    assert float(mask["macs_ratio"]) == pytest.approx(0.5, abs=0.001)
    found = json.loads((tmp_path / "all.json").read_text())
    assert len(found["rows"]) == 3
    assert {entry["crop"] for entry in found["profiles"]} <= {crop["label"]}
    page = (tmp_path / "page.md").read_text()
    assert "python benchmarks/latency.py --quick" in page
    assert all(f"| {row['label']} |" in page for row in (crop, mask))
    assert page.count("**resnet20**") == done.stdout.count("**resnet20**") == 1
    assert "exporting dense" in done.stderr


def test_faults_are_told_before_anything_is_measured(tmp_path):
    done = run("--quick", NETWORK, "--write", "none/page.md", cwd=tmp_path)
    assert done.returncode == 2
    assert "its folder does not exist" in done.stderr
    done = run("--quick", "torchvision/resnet51", "--peers", cwd=tmp_path)
    assert done.returncode == 1
    assert "error: " in done.stderr and "resnet50" in done.stderr

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from precrop.errors import MissingExtraError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("gpu_check", "gpu_correct", "gpu_measure", "gpu_order", "gpu_record")


def run_script(*arguments, cwd):
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_check

    yield gpu_check
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def record(script):
    return script.Record({"gpu": None}, {})


def row(script, crop, speedup, macs_ratio, network="net", what="train"):
    from gpu_record import Row

    ratios = (1.0, macs_ratio, 2.0, 500.0, speedup, speedup, speedup, speedup * macs_ratio)
    return Row(what, "fp32", 1, network, crop, *ratios, rounds=3)


def test_tiny_run_passes_its_checks_and_writes_all(tmp_path):
    arguments = ("--tiny", "--image", "32", "precrop/shufflenet_v2", "--only", "checks", "eager", "cuda-graph")
    done = run_script(*arguments, "--json", "gpu.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [check["passed"] for check in found["checks"]] == [True] * 4
    assert [entry["batch"] for entry in found["rows"] if entry["what"] == "eager"] == [1, 1, 2, 2]
    crop = found["rows"][1]
    assert crop["realised_share"] == pytest.approx(crop["speedup"] * crop["macs_ratio"])
    assert all(entry["error"] < 1e-3 for entry in found["rows"])
    assert "4 of 4 checks passed" in done.stdout
    assert "| eager | fp32 | 2 |" in done.stdout


@pytest.mark.slow
def test_tiny_run_in_full(tmp_path):
    done = run_script("--tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.count("| train |") == 8 + 4


def test_without_a_gpu_or_a_folder_it_says_so(tmp_path, script):
    if not script.torch.cuda.is_available():
        done = run_script(cwd=tmp_path)
        assert done.returncode == 1
        assert "finds no NVIDIA GPU" in done.stderr
    done = run_script("--tiny", "--json", "none/gpu.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "its folder does not exist" in done.stderr


def test_a_fault_or_a_missing_engine_is_told_and_the_rest_is_done(script, record):
    done = []

    def missing():
        raise MissingExtraError("cannot import tensorflow")

    def diverging():
        raise FloatingPointError("the loss became nan")

    def faulty():
        raise RuntimeError("out of memory\nand much more")

    tasks = [
        script.Task("first", "torch-compile", missing),
        script.Task("second", "torch-compile", lambda: done.append("second")),
        script.Task("third", "eager", faulty),
        script.Task("fourth", "checks", faulty),
        script.Task("fifth", "cuda-graph", lambda: done.append("fifth")),
        script.Task("sixth", "eager", lambda: done.append("sixth")),
        script.Task("seventh", "train", diverging),
    ]
    script.run(tasks, 1000, record, "cpu")
    assert done == ["sixth"]
    assert record.skipped == [
        "first: cannot import tensorflow",
        "second: cannot import tensorflow",
        "third: fails with RuntimeError: out of memory",
        "fourth: fails with RuntimeError: out of memory",
        "fifth: needs a GPU",
        "seventh: fails with FloatingPointError: the loss became nan",
    ]
    assert [found.name for found in record.failed] == ["fourth", "seventh"]


def test_the_time_is_kept(script, record, monkeypatch):
    monkeypatch.setitem(script.FIRST_GUESS_S, "eager", 0.1)
    done = []

    def endless():
        try:
            time.sleep(30)
        except Exception:
            done.append("taken for a fault")

    tasks = [
        script.Task("long", "torch-compile", lambda: done.append("long")),
        script.Task("endless", "eager", endless),
        script.Task("last", "eager", lambda: done.append("last")),
    ]
    begun = time.monotonic()
    script.run(tasks, 0.5, record, "cpu")
    assert time.monotonic() - begun < 10
    assert done == []
    assert "long: 0 s were left, and it takes about 60 s" in record.skipped
    assert "endless: the time was over before it was done" in record.skipped
    assert record.skipped[2].startswith("last: 0 s were left")


def test_summary_averages_over_networks(script, record, capsys):
    for entry in (("dense", 1.0, 1.0), ("half", 2.0, 0.5), ("dense", 1.0, 1.0, "b"), ("half", 0.5, 0.5, "b")):
        record.add(row(script, *entry))
    assert "| train | fp32 | 1 | 0.50, 1.00× (2) |" in record.summary()
    assert capsys.readouterr().out.count("| half |") == 2


def test_error_is_a_share_of_the_largest_output(script):
    from gpu_measure import error_of, images

    reference = np.array([[1.0, -4.0], [2.0, 0.0]])
    assert error_of(np.array([[1.0, -3.0]]), reference) == 0.25
    assert error_of(np.array([[1.0, -4.0], [2.0, 1.0], [9.0, 9.0]]), reference) == 0.25
    assert not error_of(np.array([[np.nan, 0.0]]), reference) <= 1
    np.testing.assert_array_equal(images(1, (3, 4, 4)), images(5, (3, 4, 4))[:1])


def test_every_part_of_the_order_is_known(script):
    from gpu_order import ORDER, ORDER_TINY

    for part, precision, batch, _ in (*ORDER, *ORDER_TINY):
        assert part in script.PARTS
        assert part in script.FIRST_GUESS_S
        assert (batch is None) == (part == "train")
        assert batch is None or precision in script.INFERENCE

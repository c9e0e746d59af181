"""A run that is killed outright, with ``kill -9``, goes on by the same command and ends bit-identical."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from precrop.recipes.training.checkpoints import checkpoints

RECIPE = """\
name: killed
model: {name: precrop/resnet20}
crop: {ratio: 0.1}
data: {name: digits}
train: {epochs: 4, batch_size: 128, ema: 0.9, mixup: 0.2}
execution: {accelerator: cpu, threads: 1, checkpoint_every: 1}
"""
STEPS = 4 * (1437 // 128)
ALONE = [sys.executable, "-m", "precrop"]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "precrop"]


def start(command, recipe, runs):
    return subprocess.Popen(
        [*command, "train", str(recipe), "--runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(command, recipe, runs):
    process = start(command, recipe, runs)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    return output


def wait_for(step, runs, process):
    """Until the checkpoint of a step is there, or a later one."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        for folder in runs.glob("*/cropped/seed0/checkpoints"):
            saved = checkpoints(folder)
            if saved and int(saved[0].stem.partition("-")[2]) >= step:
                return
        time.sleep(0.002)
    raise AssertionError(process.communicate()[0])


def weights(runs):
    (path,) = runs.glob("*/cropped/seed0/model.safetensors")
    return load_file(path)


def assert_identical(runs, others):
    one, other = weights(runs), weights(others)
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_killed_at_random_steps(recipe, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finished(ALONE, recipe, whole)
    rng = random.Random(5)
    for step in sorted(rng.sample(range(1, STEPS - 8), 2)):
        process = start(ALONE, recipe, cut)
        wait_for(step, cut, process)
        time.sleep(rng.uniform(0, 0.05))  # within a step, a write, a validation
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        process.stdout.close()
    assert "taken up after step" in finished(ALONE, recipe, cut)
    assert_identical(whole, cut)
    assert not list(cut.rglob("*.part"))


def children(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(child) for child in listed.stdout.split()]


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        settings = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
    return int(settings.get(b"RANK", -1))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_of_two_processes_killed(recipe, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finished(TWO, recipe, whole)
    for victim, step in ((1, 9), (0, 21)):
        process = start(TWO, recipe, cut)
        wait_for(step, cut, process)
        (pid,) = [child for child in children(process.pid) if rank_of(child) == victim]
        os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
        assert process.returncode != 0, output
    assert "taken up after step" in finished(TWO, recipe, cut)
    assert_identical(whole, cut)

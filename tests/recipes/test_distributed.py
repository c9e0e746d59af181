"""Two processes compute what one computes, at the same batch over all of them."""

import json
import os
import subprocess
import sys

import pytest
import torch

from precrop.errors import RecipeError
from precrop.recipes import launch
from precrop.recipes.sections import Execution
from precrop.recipes.training.order import Padded, StepOrder, shard

NETWORK = """\
from torch import nn

def grouped(num_classes=10, in_chans=1):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
"""
RECIPE = """\
name: two
model: {{name: {model}}}
data: {{name: digits}}
train: {{epochs: {epochs}, batch_size: 64, lr: 0.05, mixup: {mixup}, ema: 0.9}}
execution: {{accelerator: cpu, threads: 1}}
variants: {{dense: {{crop: false}}}}
"""
# Prints the loss and the sum of all weights after every step, of the first process.
SCRIPT = """\
import sys, json, torch
from precrop.recipes import train
from precrop.recipes.training import Classifier
steps = []
loss_of = Classifier.training_step
def noted(self, batch, index):
    loss = loss_of(self, batch, index)
    mean = self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")
    steps.append([float(mean), sum(float(w.double().abs().sum()) for w in self.network.parameters())])
    return loss
Classifier.training_step = noted
result = train(sys.argv[1], sys.argv[3:], sys.argv[2])
import os
if os.environ.get("RANK", "0") == "0":
    json.dump({"steps": steps, "accuracy": result.variants[0].accuracy}, open(sys.argv[2] + ".json", "w"))
"""


@pytest.fixture
def traced(tmp_path):
    """Runs a recipe in a number of processes; what was seen after every step, and the accuracy."""
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "script.py").write_text(SCRIPT)

    def traced(processes, model, *overrides, epochs=1, mixup=0.2):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RECIPE.format(model=model.format(tmp_path), epochs=epochs, mixup=mixup))
        runs = tmp_path / f"runs{processes}{len(list(tmp_path.iterdir()))}"
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        done = subprocess.run(
            [*command, str(tmp_path / "script.py"), str(recipe), str(runs), *overrides],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with open(f"{runs}.json") as file:
            return json.load(file)

    return traced


def test_two_processes_follow_one_step_by_step_without_batch_statistics(traced):
    one = traced(1, "{}/net.py:grouped")
    two = traced(2, "{}/net.py:grouped")
    parts = traced(2, "{}/net.py:grouped", "execution.accumulate=2")
    assert len(one["steps"]) == 1437 // 64
    torch.testing.assert_close(torch.tensor(two["steps"]), torch.tensor(one["steps"]), atol=1e-5, rtol=1e-5)
    # Of a batch in parts, the weights are seen before each part.
    weights = torch.tensor(parts["steps"])[::2, 1]
    torch.testing.assert_close(weights, torch.tensor(one["steps"])[:, 1], atol=1e-5, rtol=1e-5)
    assert two["accuracy"] == pytest.approx(one["accuracy"], abs=1.5 / 360)


@pytest.mark.slow
def test_two_processes_reach_the_accuracy_of_one_with_batch_norms(traced):
    overrides = ["model.kwargs={}", "crop={ratio: 0.25}", "variants={cropped: {}}", "train.ema=null"]
    one = traced(1, "precrop/resnet20", *overrides, epochs=4, mixup=0)
    two = traced(2, "precrop/resnet20", *overrides, epochs=4, mixup=0)
    assert one["accuracy"] > 0.9
    # Noise: the batch statistics are of 32 images and of 64; three standard errors at 95 % of 360 images.
    assert two["accuracy"] == pytest.approx(one["accuracy"], abs=0.035)


@pytest.mark.slow
def test_the_command_line_starts_the_processes_that_a_recipe_asks_for(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model="precrop/resnet20", epochs=1, mixup=0))
    done = subprocess.run(
        [sys.executable, "-m", "precrop", "train", "recipe.yaml", "execution.devices=2", "train.batch_size=256"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("files: runs") == 1
    assert done.stdout.count("epoch 1/1") == 1


@pytest.mark.parametrize("pieces", [1, 2, 4, 8])
def test_pieces_of_a_batch_are_a_partition_that_mirrors_like_the_whole(pieces):
    batch = torch.arange(16)
    cut = [shard(batch, number, pieces) for number in range(pieces)]
    assert torch.equal(torch.cat(cut).sort().values, batch)
    for piece in cut:
        assert torch.equal(piece + piece.flip(0), torch.full_like(piece, 15))


def test_every_image_is_seen_once_an_epoch_whatever_the_processes():
    def seen(processes, parts, start=0):
        steps = {}
        for rank in range(processes):
            order = StepOrder(50, 12, 3, seed=7, rank=rank, processes=processes, parts=parts)
            order.start = start
            assert len(order) == 3 * 4 * parts
            for number, batch in enumerate(order):
                assert len(batch) == 12 // (processes * parts)
                steps.setdefault(start + number // parts, []).extend(batch)
        return [sorted(step) for step in steps.values()]

    whole = seen(1, 1)
    assert seen(2, 1) == seen(3, 2) == whole
    assert seen(2, 3, start=5) == whole[5:]
    for epoch in range(3):
        images = [image for step in whole[4 * epoch : 4 * epoch + 4] for _, image in step]
        assert len(set(images)) == 48
    assert [image for _, image in whole[0]] != [image for _, image in whole[4]]


def test_held_out_images_are_counted_once():
    images = [(torch.zeros(1), number) for number in range(7)]
    found = [[target for _, target in (Padded(images, 7, rank, 3)[i] for i in range(3))] for rank in range(3)]
    assert sorted(target for targets in found for target in targets) == [-1, -1, *range(7)]
    assert {len(targets) for targets in found} == {3}


def test_processes_that_were_not_started_are_asked_for(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with (
        pytest.raises(RecipeError, match=r"execution\.nodes: the recipe says 2, and 1 was started.*torchrun"),
        launch.joined(Execution(nodes=2)),
    ):
        pass
    assert launch.to_start(Execution(devices=3)) == 3
    assert launch.to_start(Execution(accelerator="cpu")) == 1
    assert launch.to_start(Execution(devices=2, nodes=2)) == 1
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert launch.to_start(Execution(devices=3)) == 1

import csv
import re
from dataclasses import replace
from math import cos, pi

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import Progress
from support_training import BATCH, IMAGES, recipe, two_classes
from torch import nn
from torch.utils.data import TensorDataset

from precrop.errors import RecipeError
from precrop.recipes.training import Classifier, fit
from precrop.recipes.training.progress import VariantBar

EPOCHS = 3
STEPS = EPOCHS * IMAGES // BATCH


@pytest.fixture(scope="module")
def data():
    return two_classes()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def rates(data, settings, folder, monkeypatch):
    """The learning rate that each step was taken with."""
    seen = []
    step = Classifier.training_step

    def noting(self, batch, batch_index):
        seen.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return step(self, batch, batch_index)

    monkeypatch.setattr(Classifier, "training_step", noting)
    fit(network(), data, settings, folder)
    return seen


def test_training_learns_and_leaves_inference_mode(data, tmp_path):
    net = network()
    outcome = fit(net, data, recipe(), tmp_path)
    assert outcome.accuracy > 0.95
    assert outcome.train_s > 0
    assert not any(module.training for module in net.modules())
    images, targets = data.val.tensors
    with torch.no_grad():
        assert (net(images).argmax(1) == targets).float().mean().item() == pytest.approx(outcome.accuracy)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert {row["epoch"] for row in rows} == {"1", "2", "3"}
    assert any(row["train_loss"] for row in rows)


def test_same_seed_gives_the_same_weights_and_another_seed_others(data, tmp_path):
    settings = recipe(mixup=0.2)
    nets = [network() for _ in range(3)]
    for index, (net, seed) in enumerate(zip(nets, (0, 0, 1), strict=True)):
        fit(net, data, settings.model_copy(update={"seed": seed}), tmp_path / str(index))
    same, twin, other = (net[0].weight for net in nets)
    assert torch.equal(same, twin)
    assert not torch.allclose(same, other)


def test_every_variant_sees_the_images_in_the_same_order(data, tmp_path):
    class Noting(Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            self.seen.append(batch[0].mean().item())

    plain, drawing = Noting(), Noting()
    fit(network(), data, recipe(), tmp_path / "plain", [plain])
    fit(nn.Sequential(nn.Dropout(), network()), data, recipe(), tmp_path / "drawing", [drawing])
    assert plain.seen == drawing.seen
    assert len(set(plain.seen)) == STEPS


def test_schedules_follow_the_steps(data, tmp_path, monkeypatch):
    cosine = rates(data, recipe(), tmp_path / "cosine", monkeypatch)
    assert cosine == pytest.approx([0.025 * (1 + cos(pi * step / STEPS)) for step in range(STEPS)])


def test_constant_schedule_warms_up_and_stays(data, tmp_path, monkeypatch):
    seen = rates(data, recipe(schedule="constant", warmup_epochs=1), tmp_path, monkeypatch)
    per_epoch = STEPS // EPOCHS
    warming = [0.05 * (0.01 + 0.99 * step / per_epoch) for step in range(per_epoch)]
    assert seen == pytest.approx(warming + [0.05] * (STEPS - per_epoch))


@pytest.mark.parametrize(
    "train",
    [
        {"optimizer": "adamw", "lr": 0.01, "schedule": "poly"},
        {"cutmix": 1.0, "label_smoothing": 0.1},
        {"execution": {"precision": "bf16", "channels_last": True}},
    ],
)
def test_other_settings_learn_too(data, train, tmp_path):
    assert fit(network(), data, recipe(**train), tmp_path).accuracy > 0.8


def test_loss_that_is_no_longer_finite_stops_at_its_step(data, tmp_path):
    images, targets = data.train.tensors
    poisoned = images.clone()
    poisoned[17] = float("inf")
    blown = replace(data, train=TensorDataset(poisoned, targets))
    with pytest.raises(RecipeError, match=r"the loss became nan or infinite at step \d+ \(epoch 1\).*Lower train\.lr"):
        fit(network(), blown, recipe(), tmp_path)


def test_batch_larger_than_the_split_is_refused(data, tmp_path):
    with pytest.raises(RecipeError, match=r"train\.batch_size: got 128; expected at most the 64 images"):
        fit(network(), data, recipe(batch_size=128), tmp_path)


def test_progress_counts_every_batch_and_shows_the_accuracy(data, tmp_path):
    progress = Progress("{task.fields[note]}", console=Console(quiet=True), auto_refresh=False)
    outcome = fit(network(), data, recipe(), tmp_path, [VariantBar(progress, "dense")])
    (task,) = progress.tasks
    assert (task.description, task.completed, task.total) == ("dense", STEPS, STEPS)
    assert re.fullmatch(rf"epoch {EPOCHS}/{EPOCHS}  [\d,]+ img/s  {outcome.accuracy:.1%}", task.fields["note"]), (
        task.fields["note"]
    )

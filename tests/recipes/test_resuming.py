"""A training that was interrupted ends as if it had not been."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from support_training import recipe, two_classes
from torch import nn

from precrop.recipes.data import ImageData
from precrop.recipes.training import fit
from precrop.recipes.training.checkpoints import checkpoints

EPOCHS, STEPS = 3, 4  # of each epoch


class Interrupted(Exception):
    pass


class Stop(Callback):
    """Ends the training after a number of batches, in the middle of whatever Lightning is doing."""

    def __init__(self, after, hook="on_train_batch_end"):
        self.after = after
        self.taken = 0
        setattr(self, hook, self.count)

    def count(self, *args):
        self.taken += 1
        if self.taken == self.after:
            raise Interrupted


@pytest.fixture(scope="module")
def data() -> ImageData:
    return two_classes(varied=True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 2)
    )


def trained(data, settings, folder, *callbacks, said=None):
    net = network()
    outcome = fit(net, data, settings, folder, callbacks, say=(said if said is not None else []).append)
    return net.state_dict(), outcome


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "train",
    [
        {"ema": 0.9, "mixup": 0.3, "warmup_epochs": 1, "clip_grad": 0.5},
        {"optimizer": "adamw", "lr": 0.01, "cutmix": 1.0, "execution": {"channels_last": True, "accumulate": 2}},
        {"optimizer": "rmsprop", "lr": 0.01, "schedule": "constant"},
    ],
)
def test_interrupted_anywhere_it_ends_bit_identical(data, tmp_path, train):
    settings = recipe(epochs=EPOCHS, **train)
    parts = settings.execution.accumulate
    whole, outcome = trained(data, settings, tmp_path)
    assert len(outcome.history) == EPOCHS
    every = settings.model_copy(update={"execution": settings.execution.model_copy(update={"checkpoint_every": 1})})
    for after in range(2 * parts, EPOCHS * STEPS * parts + 1, parts + 1):
        folder = tmp_path / str(after)
        with pytest.raises(Interrupted):
            trained(data, every, folder, Stop(after))
        said = []
        again, resumed = trained(data, every, folder, said=said)
        assert f"taken up after step {(after - 1) // parts} of {EPOCHS * STEPS}" in said[0]
        assert_equal(whole, again)
        assert [{**row, "seconds": 0} for row in resumed.history] == [{**row, "seconds": 0} for row in outcome.history]


@pytest.mark.parametrize("hook", ["on_validation_start", "on_validation_end", "on_validation_batch_end"])
def test_interrupted_in_a_validation(data, tmp_path, hook):
    settings = recipe(epochs=EPOCHS)
    whole, outcome = trained(data, settings, tmp_path / "whole")
    with pytest.raises(Interrupted):
        trained(data, settings, tmp_path / "cut", Stop(2, hook))
    again, resumed = trained(data, settings, tmp_path / "cut")
    assert_equal(whole, again)
    assert [row["accuracy"] for row in resumed.history] == [row["accuracy"] for row in outcome.history]


def test_interrupted_again_and_again(data, tmp_path):
    settings = recipe(epochs=EPOCHS, execution={"checkpoint_every": 1})
    whole, _ = trained(data, settings, tmp_path / "whole")
    sittings = 0
    while True:
        sittings += 1
        try:
            again, _ = trained(data, settings, tmp_path / "cut", Stop(3))
            break
        except Interrupted:
            assert len(checkpoints(tmp_path / "cut" / "checkpoints")) <= 2
    assert sittings == 6
    assert_equal(whole, again)


def test_taken_up_with_other_parts_workers_and_checkpoints(data, tmp_path):
    """What `execution` says may change in between; the order of the images does not."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    first = {name: value.clone() for name, value in net.state_dict().items()}

    def run(folder, execution, *callbacks):
        net.load_state_dict(first)
        fit(net, data, recipe(epochs=EPOCHS, mixup=0.2, execution=execution), folder, callbacks, say=str)
        return {name: value.clone() for name, value in net.state_dict().items()}

    whole = run(tmp_path / "whole", {})
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", {"checkpoint_every": 1}, Stop(6))
    again = run(tmp_path / "cut", {"accumulate": 4, "workers": 2, "checkpoint_every": 3})
    for name, value in whole.items():
        torch.testing.assert_close(again[name], value, atol=1e-5, rtol=1e-5)


def test_a_torn_checkpoint_is_said_and_the_one_before_used(data, tmp_path):
    settings = recipe(epochs=EPOCHS, execution={"checkpoint_every": 1})
    whole, _ = trained(data, settings, tmp_path / "whole")
    with pytest.raises(Interrupted):
        trained(data, settings, tmp_path / "cut", Stop(8))
    last, before = checkpoints(tmp_path / "cut" / "checkpoints")
    last.write_bytes(last.read_bytes()[:-100])
    said = []
    again, _ = trained(data, settings, tmp_path / "cut", said=said)
    assert f"not used: the checkpoint {last} is torn" in said[0]
    assert f"taken up after step 6 of 12, from {before}" in said[1]
    assert_equal(whole, again)

"""How a training runs does not change what it computes."""

import shutil

import pytest
import torch
import torchvision
from support_training import recipe, two_classes
from torch import nn

import precrop
from precrop.errors import PrecropError, RecipeError
from precrop.recipes import masks
from precrop.recipes.training import fit
from precrop.recipes.training.activations import blocks, checkpointed


@pytest.fixture(scope="module")
def data():
    return two_classes(varied=True)


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(torch.relu(self.norm(self.conv(x))))


def network(dropout=0.2):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Sequential(Block(dropout), Block(dropout)), nn.Flatten(), nn.Linear(64, 2)
    )


def trained(data, folder, dropout=0.2, **settings):
    net = network(dropout)
    outcome = fit(net, data, recipe(**settings), folder)
    return net.state_dict(), outcome


@pytest.mark.parametrize(
    "execution",
    [
        {"activation_checkpointing": True},
        {"workers": 2},
        {"channels_last": True},
        pytest.param(
            {"compile": True, "activation_memory": 0.5},
            marks=[pytest.mark.slow, pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")],
        ),
    ],
    ids=lambda execution: "+".join(execution),
)
def test_the_same_weights_come_out(data, tmp_path, execution):
    exact = execution.keys() <= {"activation_checkpointing", "workers"}
    # Another order in memory, or another generator of the compiler's, drops other activations.
    dropout = 0.2 if exact else 0.0
    plain, _ = trained(data, tmp_path / "plain", dropout)
    other, _ = trained(data, tmp_path / "other", dropout, execution=execution)
    assert plain.keys() == other.keys()
    near = {"atol": 0, "rtol": 0} if exact else {"atol": 1e-4, "rtol": 1e-3}
    for name, value in plain.items():
        torch.testing.assert_close(other[name], value, **near)


def test_bf16_learns(data, tmp_path):
    assert trained(data, tmp_path, execution={"precision": "bf16"})[1].accuracy > 0.9


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
@pytest.mark.parametrize(
    "execution", [{"precision": "fp16"}, {"strategy": "fsdp"}, {"sync_batchnorm": True}, {"accelerator": "gpu"}]
)
def test_what_needs_a_gpu_says_so(data, tmp_path, execution):
    ((key, value),) = execution.items()
    with pytest.raises(RecipeError, match=rf"execution: {key}: {str(value).lower()} needs a GPU"):
        trained(data, tmp_path, execution=execution)


def test_a_batch_that_does_not_fit_the_parts_is_refused(data, tmp_path):
    with pytest.raises(RecipeError, match=r"got 16; expected a multiple of 3 \(1 processes x execution.accumulate 3\)"):
        trained(data, tmp_path, execution={"accumulate": 3})
    with pytest.raises(RecipeError, match=r"a multiple of 32 .* x a pair of mixed images"):
        trained(data, tmp_path, mixup=0.1, execution={"accumulate": 16})


def test_activation_checkpointing_runs_blocks_twice_and_moves_their_norms_once():
    net = network()
    runs = []
    for block in net[1]:
        block.conv.register_forward_hook(lambda *args: runs.append(1))
    assert blocks(net) == list(net[1])
    before = net[1][0].norm.running_mean.clone()
    with checkpointed(net):
        net(torch.randn(8, 1, 6, 6)).sum().backward()
    assert len(runs) == 4
    assert net[1][0].norm.num_batches_tracked == 1
    assert not torch.equal(net[1][0].norm.running_mean, before)
    assert "forward" not in vars(net[1][0])


def test_blocks_are_found_in_usual_networks_and_their_absence_is_said():
    assert len(blocks(torchvision.models.resnet18())) == 8
    assert len(blocks(torchvision.models.mobilenet_v2())) == 19
    assert len(blocks(precrop.create_model("precrop/resnet20"))) == 9
    with pytest.raises(RecipeError, match="VGG has no repeated blocks"), checkpointed(torchvision.models.vgg11()):
        pass


def test_the_average_of_the_weights_is_validated_and_kept(data, tmp_path):
    plain, _ = trained(data, tmp_path / "plain")
    averaged, outcome = trained(data, tmp_path / "averaged", ema=0.8)
    assert any(not torch.equal(plain[name], averaged[name]) for name in plain)
    net = network()
    net.load_state_dict(averaged)
    images, targets = data.val.tensors
    with torch.no_grad():
        assert (net.eval()(images).argmax(1) == targets).float().mean().item() == pytest.approx(outcome.accuracy)


def test_masked_weights_stay_zero_and_the_others_train(data, tmp_path):
    for optimizer in ("sgd", "adamw", "lamb"):
        net = network()
        mask = {"1.0.conv.weight": torch.rand(4, 4, 3, 3) < 0.3, "3.weight": torch.rand(2, 64) < 0.5}
        masks.apply(net, mask)
        before = {name: weight.clone() for name, weight in net.state_dict().items()}
        fit(net, data, recipe(optimizer=optimizer, lr=0.01), tmp_path / optimizer, masks=mask)
        for name, kept in mask.items():
            weight = net.state_dict()[name]
            assert not weight[~kept].any()
            assert (weight[kept] != before[name][kept]).all()


def test_masks_keep_the_highest_scores_and_shuffled_ones_as_many():
    scores = {"a.weight": torch.arange(12.0).view(3, 4), "b.weight": -torch.arange(10.0)}
    kept = masks.from_scores({"a": 0.25, "b": 0.5}, scores)
    assert kept["a.weight"].flatten().nonzero().flatten().tolist() == [9, 10, 11]
    assert kept["b.weight"].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    shuffled = masks.from_scores({"a": 0.25, "b": 0.5}, scores, shuffled=True, seed=1)
    again = masks.from_scores({"a": 0.25, "b": 0.5}, scores, shuffled=True, seed=1)
    assert {name: int(mask.sum()) for name, mask in shuffled.items()} == {"a.weight": 3, "b.weight": 5}
    assert all(torch.equal(shuffled[name], again[name]) for name in shuffled)
    assert any(not torch.equal(shuffled[name], kept[name]) for name in shuffled)
    assert masks.top(torch.zeros(5), 0.4).tolist() == [True, True, False, False, False]


def test_masks_that_do_not_fit_are_said():
    with pytest.raises(PrecropError, match="a mask needs scores of single weights"):
        masks.from_scores({"a": 0.5}, None)
    with pytest.raises(PrecropError, match=r"the mask of 3.weight is \(1,\), and the network has \(2, 64\)"):
        masks.apply(network(), {"3.weight": torch.ones(1, dtype=torch.bool)})

"""Each fault of the input has an error of its own: what was got, what was expected, what to do."""

import pytest
import torch
from nets import Chain
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from precrop import PrecropError, create_model, score
from precrop.errors import ScoreError

SHAPE = (3, 8, 8)
IMAGES, LABELS = torch.randn(8, *SHAPE), torch.arange(8)
DATA = TensorDataset(IMAGES, LABELS)


@pytest.mark.parametrize("density", [0, -0.1, 1.1, float("nan"), float("inf"), "0.1", True, None])
def test_density(density):
    with pytest.raises(ScoreError, match=r"density is .*0 < density <= 1 .*10x compression pass 0\.1"):
        score(Chain(), "magnitude", density, input_shape=SHAPE)


@pytest.mark.parametrize("name", ["synflw", "SNIP", "", None, 3])
def test_an_unknown_scorer_lists_all(name):
    with pytest.raises(PrecropError, match=r"unknown scorer .*'synexp', 'uniform', .*'prospr'"):
        score(Chain(), name, 0.1, input_shape=SHAPE)
    if name == "synflw":
        with pytest.raises(PrecropError, match="Did you mean 'synflow'"):
            score(Chain(), name, 0.1, input_shape=SHAPE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"needs data\. Pass data=, a DataLoader"),
        ([], "data is empty: the list gave no batch"),
        (iter([]), "data is empty"),
        (DataLoader(TensorDataset(IMAGES[:0], LABELS[:0])), "data is empty: the DataLoader"),
        (DATA, r"data is a TensorDataset.*Wrap a data set in a DataLoader"),
        (IMAGES, "data is a Tensor"),
        ("digits", "data is a str"),
        (7, "data is a int"),
        ({"images": IMAGES}, "data is a dict"),
        ([IMAGES], "a batch is a Tensor"),
        ([(IMAGES,)], "a batch is a tuple of 1"),
        ([{"image": IMAGES}], "a batch is a dict"),
        ([(IMAGES[0], LABELS[0])], r"labels of shape \(\).*Single images need a DataLoader"),
        ([(IMAGES, LABELS[:5])], r"images of shape \(8, 3, 8, 8\) and labels of shape \(5,\)"),
        ([(IMAGES[:0], LABELS[:0])], r"a batch of images has the shape \(0, 3, 8, 8\)"),
        ([(torch.randn(8, 3, 4, 4), LABELS)], r"has the shape \(8, 3, 4, 4\); expected \(N, 3, 8, 8\).*input_shape="),
        ([(IMAGES, LABELS + 5)], r"labels run from 5 to 12, and the network has 10 classes.*num_classes=13"),
        ([(IMAGES, LABELS - 1)], "labels run from -1 to 6"),
        ([(IMAGES, LABELS.float())], r"cross entropy does not fit outputs of shape \(8, 10\).*Pass loss="),
        ([(IMAGES, ["cat"] * 8)], "labels are a list.*expected a tensor"),
        ([(IMAGES * float("nan"), LABELS)], r"not finite for one\.0, two\.0, head\.fc\..*has no NaN"),
        ([(IMAGES * float("inf"), LABELS)], "not finite"),
    ],
)
def test_data(data, message):
    with pytest.raises(ScoreError, match=message):
        score(Chain(), "snip", 0.1, data=data, input_shape=SHAPE)


def test_a_single_image_with_batch_norms():
    class Pooled(Chain):
        def forward(self, x):
            return super().forward(nn.functional.adaptive_avg_pool2d(x, 1))

    with pytest.raises(
        ScoreError, match=r"train mode, where batch norms need more than one image.*at least two images"
    ):
        score(Pooled(), "snip", 0.1, data=[(IMAGES[:1], LABELS[:1])], input_shape=SHAPE)


def test_images_on_which_the_network_does_not_run():
    with pytest.raises(ScoreError, match=r"does not run on the data's images, of shape \(1, 8, 8\)"):
        score(Chain(), "snip", 0.1, data=[(IMAGES[:, :1], LABELS)])


def test_the_input_shape_is_the_data_s():
    assert score(Chain(), "snip", 0.1, data=[(IMAGES, LABELS)]).input_shape == SHAPE


def test_forms_of_data():
    """A loader, a list, one batch, a generator, more than two entries, several labels for each pixel."""
    plain = score(Chain(), "magnitude", 0.1, input_shape=SHAPE)
    torch.manual_seed(1)
    model = Chain()
    expected = score(model, "snip", 0.1, data=[(IMAGES, LABELS)])
    assert expected != plain
    for data in (
        (IMAGES, LABELS),
        [[IMAGES, LABELS]],
        iter([(IMAGES, LABELS)]),
        DataLoader(DATA, 8),
        [(IMAGES, LABELS, torch.arange(8))],
        [(IMAGES, LABELS.int())],
    ):
        assert score(model, "snip", 0.1, data=data) == expected
    shares = nn.functional.one_hot(LABELS, 10).float()
    soft = score(model, "snip", 0.1, data=[(IMAGES, shares)])
    assert list(soft.values()) == pytest.approx(list(expected.values()), abs=1e-3)


def test_a_loss_of_one_s_own():
    def squares(outputs, targets):
        return (outputs - targets).square().mean()

    model = Chain()
    found = score(model, "snip", 0.1, data=[(IMAGES, torch.randn(8, 10))], loss=squares)
    assert found.mean == pytest.approx(0.1, abs=1e-3)
    with pytest.raises(ScoreError, match=r"loss returned a tensor of shape \(8, 10\); expected one number"):
        score(model, "snip", 0.1, data=[(IMAGES, LABELS)], loss=lambda outputs, targets: outputs)
    with pytest.raises(ScoreError, match=r"loss returned .*float"):
        score(model, "snip", 0.1, data=[(IMAGES, LABELS)], loss=lambda outputs, targets: 1.0)
    with pytest.raises(ScoreError, match="gave no weight a score other than zero"):
        score(model, "snip", 0.1, data=[(IMAGES, LABELS)], loss=lambda outputs, targets: torch.tensor(1.0))


def test_weights_of_zero_or_nan():
    model = Chain()
    nn.init.constant_(model.two[0].weight, float("nan"))
    for name in ("magnitude", "snip", "synflow", "grasp"):
        with pytest.raises(ScoreError, match="finite"):
            score(model, name, 0.1, data=[(IMAGES, LABELS)], input_shape=SHAPE)


def test_a_network_without_data():
    with torch.device("meta"):
        model = Chain()
    with pytest.raises(ScoreError, match=r"one\.0\.weight has no data .*meta device.*synexp"):
        score(model, "magnitude", 0.1, input_shape=SHAPE)
    assert score(model, "synexp", 0.1, input_shape=SHAPE)


@pytest.mark.parametrize("batches", [0, -1, 1.5, True])
def test_batches(batches):
    with pytest.raises(PrecropError, match="positive number of batches"):
        score(Chain(), "snip", 0.1, data=[(IMAGES, LABELS)], batches=batches)


def test_several_outputs_and_maps_of_classes():
    model = create_model("torchvision/lraspp_mobilenet_v3_large", num_classes=5)
    images = torch.randn(2, 3, 64, 64)
    found = score(model, "snip", 0.1, data=[(images, torch.randint(0, 5, (2, 64, 64)))])
    assert found.mean == pytest.approx(0.1, abs=1e-3)

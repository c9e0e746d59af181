"""Kind 31: feature extractors of timm, other inputs, no classifier, and the numbers that a model tells of itself."""

import pytest
import timm
import torch

from precrop import precrop

# One of each way in which timm's models keep these numbers.
NAMES = ("resnet18", "mobilenetv3_small_050", "convnext_atto", "regnetx_002")
SIDE = 64


def image(channels=3):
    return torch.randn(2, channels, SIDE, SIDE)


def crop(name, **kwargs):
    model = timm.create_model(name, **kwargs)
    shape = (kwargs.get("in_chans", 3), SIDE, SIDE)
    return model, precrop(model, params=0.5, input_shape=shape)


@pytest.mark.parametrize("name", NAMES)
def test_a_feature_extractor_tells_the_channels_of_its_maps(name):
    model, small = crop(name, features_only=True)
    maps = small.train()(image())
    assert small.feature_info.channels() == [m.shape[1] for m in maps]
    assert small.feature_info.reduction() == model.feature_info.reduction() == [SIDE // m.shape[2] for m in maps]
    assert sum(small.feature_info.channels()) < sum(model.feature_info.channels())
    assert model.feature_info.channels() == [m.shape[1] for m in model.eval()(image())]
    assert not small.crop_plan.fixed
    sum(m.square().mean() for m in maps).backward()
    assert all(p.grad is not None for p in small.parameters())


@pytest.mark.parametrize("indices", [(2, 3), (1,)], ids=str)
def test_some_of_the_maps(indices):
    model, small = crop("resnet18", features_only=True, out_indices=indices)
    maps = small(image())
    assert len(maps) == len(indices)
    assert small.feature_info.channels() == [m.shape[1] for m in maps]
    assert sum(small.feature_info.channels()) < sum(model.feature_info.channels())


@pytest.mark.parametrize("name", NAMES)
def test_a_classifier_tells_its_widths(name):
    model, small = crop(name)
    assert small(image()).shape == (2, 1000)
    assert small.num_classes == 1000
    body = small.forward_features(image())
    assert small.num_features == body.shape[1] < model.num_features
    assert small.head_hidden_size == small.forward_head(body, pre_logits=True).shape[1]
    assert small.get_classifier().in_features == small.head_hidden_size
    channels, before = ([entry["num_chs"] for entry in m.feature_info] for m in (small, model))
    assert sum(channels) < sum(before)


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "regnetx_002"])
def test_feature_info_of_a_classifier_is_that_of_its_maps(name):
    _, small = crop(name)
    modules = dict(small.named_modules())
    seen = {}
    for entry in small.feature_info:

        def record(module, args, output, name=entry["module"]):
            seen[name] = output.shape[1]

        modules[entry["module"]].register_forward_hook(record)
    small(image())
    assert seen == {entry["module"]: entry["num_chs"] for entry in small.feature_info}


@pytest.mark.parametrize("name", NAMES)
def test_a_new_classifier_fits_the_crop(name):
    """`reset_classifier` builds a layer of the width that the model tells."""
    _, small = crop(name)
    small.reset_classifier(7)
    assert small(image()).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "convnext_atto"])
def test_one_input_channel(name):
    model, small = crop(name, in_chans=1)
    assert small(image(1)).shape == (2, 1000)
    assert next(small.parameters()).shape[1] == next(model.parameters()).shape[1] == 1


@pytest.mark.parametrize("name", NAMES)
def test_without_a_classifier_the_features_are_the_output(name):
    model, small = crop(name, num_classes=0)
    assert small(image()).shape == model(image()).shape == (2, model.head_hidden_size)
    assert small.head_hidden_size == model.head_hidden_size
    assert small.num_features == small.forward_features(image()).shape[1]
    assert {f.reason for f in small.crop_plan.fixed} == {"the network's output"}

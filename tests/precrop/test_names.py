import json
import textwrap
import warnings

import pytest
import torch
import torchvision
from torch import nn

import precrop
from precrop.crop_plan import ModelSpec
from precrop.errors import ModelNameError
from precrop.names import create_model
from precrop.origin import identify
from precrop.zoo import ZOO

FILE = """
    from dataclasses import dataclass

    from torch import nn

    import {neighbour}

    WIDTH = 16

    @dataclass
    class Settings:
        depth: int = 1

    class Net(nn.Sequential):
        def __init__(self, num_classes=4, depth=1):
            body = [nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False) for _ in range(depth)]
            stem = nn.Conv2d(3, WIDTH, 3, padding=1)
            head = nn.Linear(WIDTH, num_classes)
            super().__init__(stem, *body, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)

    def tiny(**kwargs):
        import {neighbour}

        return Net({neighbour}.CLASSES, **kwargs)

    def broken():
        raise RuntimeError("no such dataset")

    def text():
        return "resnet18"
"""


@pytest.fixture
def net_file(tmp_path):
    neighbour = f"neighbour_of_{tmp_path.name}"
    (tmp_path / f"{neighbour}.py").write_text("CLASSES = 5\n")
    file = tmp_path / "nets.py"
    file.write_text(textwrap.dedent(FILE).format(neighbour=neighbour))
    return file


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def crop(model, ratio=0.5, side=64, channels=3):
    """A cropped model whose plan does not know where the original came from."""
    small = precrop.precrop(model, ratio, input_shape=(channels, side, side))
    small.crop_plan = small.crop_plan.model_copy(update={"model": None})
    return small


# create_model


def test_torchvision():
    model = create_model("torchvision/resnet18", num_classes=7)
    assert type(model) is torchvision.models.ResNet
    assert model.fc.out_features == 7
    assert [len(model.layer1), len(model.layer4)] == [2, 2]


def test_timm_takes_channels_and_tags():
    model = create_model("timm/resnet18.a1_in1k", num_classes=7, in_chans=1)
    assert type(model).__module__ == "timm.models.resnet"
    assert model.conv1.weight.shape[1] == 1
    assert model.fc.out_features == 7


def test_zoo():
    model = create_model("precrop/resnet20", num_classes=7, in_chans=1)
    assert repr(model) == repr(ZOO["resnet20"](7, 1))


def test_no_weights_are_fetched(monkeypatch):
    def fetch(*_, **__):
        raise AssertionError("asked for weights")

    monkeypatch.setattr("torchvision.models._api.WeightsEnum.get_state_dict", fetch)
    model = create_model("torchvision/lraspp_mobilenet_v3_large")
    assert sum(parameter.numel() for parameter in model.parameters()) > 3e6


def test_googlenet_builds_without_its_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = create_model("torchvision/googlenet")
    assert 0.005 < model.fc.weight.std() < 0.015  # torchvision's own initialization, N(0, 0.01)


def test_explicit_absence_of_weights_is_accepted():
    assert create_model("torchvision/resnet18", weights=None).fc.out_features == 1000
    assert create_model("timm/resnet18", pretrained=False).num_classes == 1000


def test_file_factory_with_arguments_and_neighbours(net_file):
    model = create_model(f"{net_file}:tiny", depth=3)
    assert [type(module).__name__ for module in model].count("Conv2d") == 4
    assert model[-1].out_features == 5
    again = create_model(f"{net_file}:Net", num_classes=3)
    assert type(again) is type(model), "a file is imported once"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet18", ["does not say where", "torchvision/resnet18", "timm/resnet18"]),
        ("resnet20", ["does not say where", "precrop/resnet20"]),
        ("ResNet18", ["unknown model 'ResNet18'", "torchvision/resnet18", "timm/resnet18"]),
        ("torchvision/ShuffleNetV2_x1_0", ["unknown model", "torchvision/shufflenet_v2_x1_0"]),
        ("timm/mobilenet_v2_100", ["unknown model", "timm/mobilenetv2_100"]),
        ("precrop/resnet21", ["unknown model", "precrop/resnet20"]),
        ("keras/resnet18", ["unknown model 'keras/resnet18'", "torchvision/resnet18", "timm/NAME"]),
        ("zzzzzz", ["unknown model 'zzzzzz'", "Expected timm/NAME, torchvision/NAME, precrop/NAME"]),
        ("", ["unknown model ''", "Expected timm/NAME"]),
        ("timm/", ["unknown model 'timm/'"]),
        ("timm/hf-hub:timm/resnet18.a1_in1k", ["unknown model", "timm/resnet18"]),
        ("nowhere/nets.py:tiny", ["no file nowhere/nets.py"]),
        ("nowhere/nets.py", ["no file nowhere/nets.py", "FACTORY"]),
        ("nowhere/small.safetensors", ["no such file", "precrop.save"]),
    ],
)
def test_unknown_names(name, said):
    with pytest.raises(ModelNameError) as caught:
        create_model(name)
    for words in said:
        assert words in str(caught.value)


def test_hopeless_names_suggest_nothing():
    with pytest.raises(ModelNameError) as caught:
        create_model("timm/zzzzzz")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("torchvision/resnet18", {"in_chans": 1}, ["3 channels", "in_chans=1", "timm/"]),
        ("torchvision/resnet18", {"depth": 3}, ["torchvision/resnet18 could not be built", "depth=3"]),
        ("precrop/resnet20", {"classes": 3}, ["precrop/resnet20 could not be built", "classes=3"]),
        ("torchvision/resnet18", {"weights": "DEFAULT"}, ["weights=", "fresh"]),
        ("timm/resnet18", {"pretrained": True}, ["pretrained=", "fresh"]),
        ("small.safetensors", {"num_classes": 3}, ["takes no arguments", "num_classes=3"]),
    ],
)
def test_arguments_that_do_not_fit(name, kwargs, said):
    with pytest.raises(ModelNameError) as caught:
        create_model(name, **kwargs)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (":tinny", ["no 'tinny'", "Did you mean tiny?", "Net", "broken"]),
        ("", ["does not say which function", "nets.py:FACTORY", "tiny"]),
        (":", ["does not say which function"]),
        (":WIDTH", ["'WIDTH'", "cannot be called"]),
        (":broken", ["nets.py:broken could not be built", "RuntimeError: no such dataset"]),
        (":text", ["nets.py:text returned str", "torch.nn.Module"]),
    ],
)
def test_factories_that_do_not_fit(net_file, factory, said):
    with pytest.raises(ModelNameError) as caught:
        create_model(f"{net_file}{factory}")
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [("def f(:", "SyntaxError"), ("import no_such_package", "No module named 'no_such_package'")],
)
def test_a_file_that_cannot_be_imported(tmp_path, text, said):
    file = tmp_path / "bad.py"
    file.write_text(text)
    for _ in range(2):  # the failure leaves nothing behind that would pass for the module
        with pytest.raises(ModelNameError, match=r"importing .*bad\.py failed") as caught:
            create_model(f"{file}:f")
        assert said in str(caught.value)


# identify


@pytest.mark.parametrize(
    ("name", "kwargs", "side"),
    [
        ("torchvision/resnet18", {"num_classes": 7}, 64),
        ("torchvision/shufflenet_v2_x1_5", {"num_classes": 1000}, 64),  # one layout, four widths
        ("torchvision/regnet_y_400mf", {"num_classes": 1000}, 64),  # cannot be built on the meta device
        ("torchvision/googlenet", {"num_classes": 10, "aux_logits": False}, 64),
        ("precrop/mobilenet_v2", {"num_classes": 7, "in_chans": 1}, 32),
        ("timm/mobilenetv3_small_050", {"num_classes": 7, "in_chans": 1}, 64),
    ],
)
def test_identify_finds_the_builder(name, kwargs, side):
    model = create_model(name, **kwargs)
    del model.model_spec  # as if the user had called the builder
    small = crop(model, side=side, channels=kwargs.get("in_chans", 3))
    assert identify(small, small.crop_plan) == ModelSpec(name=name, kwargs=kwargs)


def test_identify_follows_a_tagged_timm_name():
    import timm

    small = crop(timm.create_model("resnet18.a1_in1k", num_classes=5), side=64)
    spec = identify(small, small.crop_plan)
    assert spec.name == "timm/resnet18"
    assert spec.kwargs["num_classes"] == 5


def test_identify_remembers_a_users_factory(net_file):
    small = crop(create_model(f"{net_file}:tiny", depth=2), side=16)
    spec = identify(small, small.crop_plan)
    assert spec == ModelSpec(name=f"{net_file}:tiny", kwargs={"depth": 2})
    assert json.loads(small.crop_plan.model_copy(update={"model": spec}).to_json())["model"]["kwargs"] == {"depth": 2}


def test_identify_reads_the_classes_off_a_replaced_head():
    model = create_model("precrop/resnet20", num_classes=4)
    model.fc = nn.Linear(64, 6)
    small = crop(model, side=32)
    assert identify(small, small.crop_plan).kwargs == {"num_classes": 6, "in_chans": 3}


def test_identify_allocates_no_weights_and_leaves_the_model_alone():
    small = crop(ZOO["resnet20"](), side=32)
    before = {key: value.clone() for key, value in small.state_dict().items()}
    random_state = torch.get_rng_state()
    assert identify(small, small.crop_plan).name == "precrop/resnet20"
    assert torch.equal(random_state, torch.get_rng_state()), "initial values were drawn"
    assert all(torch.equal(value, before[key]) for key, value in small.state_dict().items())


class Mine(torchvision.models.ResNet):
    pass


def users_own():
    return Mine(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=4)


def another_head():
    model = torchvision.models.resnet18(num_classes=4)
    model.fc = nn.Sequential(nn.Dropout(0.1), nn.Linear(512, 4))
    return model


def another_setting_in_repr():
    model = torchvision.models.resnet18(num_classes=4)
    model.bn1.momentum = 0.3
    return model


def another_setting_in_an_attribute():
    model = torchvision.models.googlenet(num_classes=4, aux_logits=False, init_weights=False)
    model.transform_input = True
    return model


def another_buffer():
    model = torchvision.models.resnet18(num_classes=4)
    model.register_buffer("seen", torch.zeros(1))
    return model


def recorded_then_changed():
    model = create_model("precrop/resnet20", num_classes=4)
    model.fc = nn.Linear(64, 6)
    model.bn1.eps = 0.1
    return model


@pytest.mark.parametrize(
    "build",
    [
        users_own,
        another_head,
        another_setting_in_repr,
        another_setting_in_an_attribute,
        another_buffer,
        recorded_then_changed,
    ],
)
def test_identify_does_not_guess(build):
    small = crop(build(), side=64)
    assert identify(small, small.crop_plan) is None

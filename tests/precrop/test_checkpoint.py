import json
import os
import resource
import subprocess
import sys
import textwrap
import warnings

import pytest
import timm
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import precrop
from precrop.checkpoint import load, read_plan, save
from precrop.crop_plan import CropPlan, ModelSpec
from precrop.errors import PlanError, PrecropError
from precrop.names import create_model
from precrop.zoo import ZOO


class Net(nn.Module):
    """A user's own class, which no name leads to."""

    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.body = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.relu(self.body(x)).mean((2, 3)))


def images(side, channels=3):
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(3))


def cropped(model, side, channels=3):
    """A crop at half size whose every tensor has moved from where a fresh one starts."""
    torch.manual_seed(1)
    small = precrop.precrop(model, 0.5, input_shape=(channels, side, side))
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    small.train()(images(side, channels))  # moves the BatchNorm statistics
    return small.eval()


def assert_same_state(one, other):
    assert set(one) == set(other)
    for key, value in one.items():
        assert value.dtype == other[key].dtype, key
        assert torch.equal(value, other[key]), key


def contents(path):
    """The tensors and metadata of a safetensors file, to be tampered with."""
    with safe_open(path, framework="pt") as file:
        return load_file(path), dict(file.metadata())


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return cropped(ZOO["resnet20"](), 16)


@pytest.fixture
def saved(resnet, tmp_path):
    path = tmp_path / "small.safetensors"
    save(resnet, path)
    return path


# In a new process

NETWORKS = ("torchvision", "timm", "zoo", "file")
SIDES = {"torchvision": 64, "timm": 64, "zoo": 16, "file": 64}
CHILD = """
    import sys

    import torch
    from safetensors.torch import load_file, save_file

    import precrop

    torch.set_num_threads(1)
    folder = sys.argv[1]
    images, found = load_file(f"{folder}/images"), {}
    for name in sys.argv[2:]:
        # A file names no code: that of a user's own network is named by the user.
        original = precrop.create_model(f"{folder}/nets.py:tiny", num_classes=5) if name == "file" else None
        model = precrop.load(f"{folder}/{name}.safetensors", model=original)
        assert model.training and model.crop_plan.cropped.params < model.crop_plan.original.params
        found[name] = model.eval()(images[name])
    save_file(found, f"{folder}/logits")
"""


@pytest.fixture(scope="module")
def round_trip(tmp_path_factory):
    """Four networks and their crops, their files, and the logits that a new process got from those."""
    folder = tmp_path_factory.mktemp("round_trip")
    (folder / "nets.py").write_text(
        "import torchvision\n\n\nclass Mine(torchvision.models.SqueezeNet):\n    pass\n\n\n"
        "def tiny(num_classes=10):\n    return Mine('1_1', num_classes)\n"
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dense = {
        "torchvision": torchvision.models.shufflenet_v2_x0_5(num_classes=10),
        "timm": timm.create_model("mobilenetv3_small_050", num_classes=10),
        "zoo": ZOO["mobilenet_v2"](),
        "file": create_model(f"{folder}/nets.py:tiny", num_classes=5),
    }
    inputs = {name: images(SIDES[name]) for name in NETWORKS}
    expected = {}
    for name in NETWORKS:
        small = cropped(dense[name], SIDES[name])
        save(small, folder / f"{name}.safetensors")
        with torch.no_grad():
            expected[name] = small(inputs[name])
    torch.set_num_threads(threads)
    save_file(inputs, folder / "images")
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), *NETWORKS]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert child.returncode == 0, child.stderr
    return folder, dense, expected, load_file(folder / "logits")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_new_process_gets_the_same_network(round_trip, name):
    _, _, expected, found = round_trip
    assert torch.equal(found[name], expected[name])
    assert found[name].std() > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_the_file_is_smaller_than_the_dense_one(round_trip, name):
    folder, dense, _, _ = round_trip
    save_file(dense[name].state_dict(), folder / f"{name}-dense")
    size = (folder / f"{name}.safetensors").stat().st_size
    assert size < 0.6 * (folder / f"{name}-dense").stat().st_size


def test_the_file_says_how_the_original_was_built(round_trip):
    folder = round_trip[0]
    names = {name: read_plan(folder / f"{name}.safetensors").model for name in NETWORKS}
    assert names["torchvision"] == ModelSpec(name="torchvision/shufflenet_v2_x0_5", kwargs={"num_classes": 10})
    assert names["timm"].name == "timm/mobilenetv3_small_050"
    assert names["zoo"] == ModelSpec(name="precrop/mobilenet_v2", kwargs={"num_classes": 10, "in_chans": 3})
    assert names["file"] == ModelSpec(name=f"{folder}/nets.py:tiny", kwargs={"num_classes": 5})


# What is stored


def test_load_gives_back_state_and_plan(resnet, saved):
    model = load(saved)
    assert type(model) is type(resnet)
    assert_same_state(model.state_dict(), resnet.state_dict())
    assert model.crop_plan == resnet.crop_plan == read_plan(saved)
    assert model.crop_plan.model == ModelSpec(name="precrop/resnet20", kwargs={"num_classes": 10, "in_chans": 3})
    assert repr(create_model(str(saved))) == repr(model)


def test_a_users_own_class_needs_its_original(tmp_path):
    small, path = cropped(Net(), 16), tmp_path / "net.safetensors"
    save(small, path)
    assert read_plan(path).model is None
    with pytest.raises(PlanError, match=r"precrop\.load\(path, model=MyNet\(\)\)"):
        load(path)
    fresh = Net()
    before = {key: value.clone() for key, value in fresh.state_dict().items()}
    loaded = load(path, model=fresh)
    assert type(loaded) is Net
    assert_same_state(loaded.state_dict(), small.state_dict())
    assert_same_state(fresh.state_dict(), before)


def test_precision_is_kept(resnet, tmp_path):
    path = tmp_path / "half.safetensors"
    half = load_copy(resnet, tmp_path).to(torch.bfloat16)
    save(half, path)
    loaded = load(path)
    assert loaded.conv1.weight.dtype == torch.bfloat16
    assert loaded.bn1.num_batches_tracked.dtype == torch.int64
    assert_same_state(loaded.state_dict(), half.state_dict())


def load_copy(model, folder):
    save(model, folder / "copy.safetensors")
    return load(folder / "copy.safetensors")


def test_channels_last_tensors(resnet, tmp_path):
    model = load_copy(resnet, tmp_path).to(memory_format=torch.channels_last)
    assert not model.conv1.weight.is_contiguous()
    save(model, tmp_path / "last.safetensors")
    assert_same_state(load(tmp_path / "last.safetensors").state_dict(), resnet.state_dict())


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda model: nn.DataParallel(torch.compile(model))])
def test_wrappers_are_taken_off(resnet, tmp_path, wrap):
    wrapped = wrap(resnet)
    assert list(wrapped.state_dict()) != list(resnet.state_dict())
    save(wrapped, tmp_path / "wrapped.safetensors")
    assert_same_state(load(tmp_path / "wrapped.safetensors").state_dict(), resnet.state_dict())


class Repeats(Net):
    """One convolution used twice, under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(32, 32, 3, padding=1)
        self.second = self.first

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = self.second(torch.relu(self.first(x)))
        return self.head(torch.relu(self.body(x)).mean((2, 3)))


def test_a_shared_tensor_is_stored_once_and_stays_shared(tmp_path):
    small, path = cropped(Repeats(), 16), tmp_path / "repeats.safetensors"
    save(small, path)
    tensors, metadata = contents(path)
    assert len(tensors) == len(small.state_dict()) - 2
    assert json.loads(metadata["shared"]) == {"second.weight": "first.weight", "second.bias": "first.bias"}
    loaded = load(path, model=Repeats())
    assert loaded.second.weight is loaded.first.weight
    assert_same_state(loaded.state_dict(), small.state_dict())


def test_tensors_that_overlap_are_stored_apart(resnet, tmp_path):
    model = load_copy(resnet, tmp_path)
    width = len(model.bn1.weight)
    buffer = torch.randn(width + 1)
    model.bn1.weight.data, model.bn1.bias.data = buffer[:width], buffer[1:]
    save(model, tmp_path / "views.safetensors")
    loaded = load(tmp_path / "views.safetensors")
    assert torch.equal(loaded.bn1.weight, buffer[:width])
    assert torch.equal(loaded.bn1.bias, buffer[1:])


def test_a_trained_original_serves_as_well(resnet, saved):
    original = ZOO["resnet20"]()
    original(images(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that its training is lost is no news here
        loaded = load(saved, model=original)
    assert_same_state(loaded.state_dict(), resnet.state_dict())


def test_read_plan_from_json(resnet, tmp_path):
    resnet.crop_plan.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == resnet.crop_plan


# What cannot be saved


def test_a_model_that_was_not_cropped(tmp_path):
    with pytest.raises(PlanError, match="ResNet: it has no crop_plan"):
        save(ZOO["resnet20"](), tmp_path / "dense.safetensors")
    assert not list(tmp_path.iterdir())


class Remembers(Net):
    def get_extra_state(self):
        return {"any": "thing"}

    def set_extra_state(self, state):
        pass


def test_state_that_is_no_tensor(tmp_path):
    with pytest.raises(PlanError, match=r"_extra_state: .* got dict"):
        save(cropped(Remembers(), 16), tmp_path / "extra.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_model_without_values(resnet, tmp_path):
    model = load_copy(resnet, tmp_path).to("meta")
    with pytest.raises(PlanError, match=r"conv1\.weight: it is on the meta device"):
        save(model, tmp_path / "meta.safetensors")


def test_a_missing_folder(resnet, tmp_path):
    with pytest.raises(PrecropError, match="does not exist"):
        save(resnet, tmp_path / "nowhere" / "small.safetensors")


def test_a_crop_of_a_crop(saved):
    with pytest.warns(precrop.PrecropWarning, match="its training is not carried over"):
        smaller = cropped(load(saved), 16)
    assert smaller.crop_plan.cropped.params < 0.6 * load(saved).crop_plan.cropped.params
    save(smaller, saved)  # over the file that it was cropped from, which it does not need
    loaded = load(saved)
    assert_same_state(loaded.state_dict(), smaller.state_dict())
    assert loaded.crop_plan.model.name == "precrop/resnet20"


def test_a_name_that_does_not_fit_is_not_stored(tmp_path):
    model = create_model("precrop/resnet20")
    model.bn1.eps = 0.1  # would be lost, and no shape would show it
    small, path = cropped(model, 16), tmp_path / "changed.safetensors"
    with pytest.warns(precrop.PrecropWarning, match="precrop/resnet20 does not build the original"):
        save(small, path)
    assert read_plan(path).model is None
    assert load(path, model=model).bn1.eps == 0.1


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_full_disk_leaves_the_old_file(resnet, saved):
    before = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(PrecropError, match=r"cannot write .*small\.safetensors"):
            save(resnet, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_an_interrupt_leaves_the_old_file(resnet, saved, monkeypatch):
    def interrupted(tensors, path, metadata):
        path.write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr("precrop.checkpoint.save_file", interrupted)
    before = saved.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        save(resnet, saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


# What cannot be loaded


def test_a_missing_file(tmp_path):
    for name in ("small.safetensors", "plan.json"):
        with pytest.raises(PlanError, match=f"{name}.*[Nn]o such file"):
            read_plan(tmp_path / name)
    with pytest.raises(PlanError, match="no such file"):
        load(tmp_path)  # a folder


@pytest.mark.parametrize("kept", [0, 1, 8, 100, 0.5, 0.99])
def test_a_truncated_file(saved, kept):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(PlanError, match=r"small\.safetensors is damaged") as caught:
        load(saved)
    assert "precrop.save" in str(caught.value)


def test_a_damaged_header(saved):
    content = bytearray(saved.read_bytes())
    for position in (0, 7, 9, 300):
        damaged = content.copy()
        damaged[position] ^= 0xFF
        saved.write_bytes(damaged)
        with pytest.raises(PlanError, match=r"small\.safetensors"):
            load(saved)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "precrop"}])
def test_a_foreign_file(tmp_path, metadata):
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, path, metadata=metadata)
    with pytest.raises(PlanError, match="precrop did not write"):
        load(path)


def test_a_pickle_is_not_opened(resnet, tmp_path):
    path = tmp_path / "pickled.safetensors"
    torch.save(resnet.state_dict(), path)
    with pytest.raises(PlanError, match="no safetensors file"):
        load(path)


def tampered(saved, **changes):
    tensors, metadata = contents(saved)
    plan = json.loads(metadata["plan"])
    plan.update(changes)
    save_file(tensors, saved, metadata={**metadata, "plan": json.dumps(plan)})


def test_a_plan_of_a_newer_version(resnet, saved, tmp_path):
    tampered(saved, version=99, colour="red")
    with pytest.raises(PlanError, match=r"small\.safetensors has plan version 99.*Upgrade precrop"):
        load(saved)
    (tmp_path / "plan.json").write_text(resnet.crop_plan.to_json().replace('"version": 1', '"version": 2'))
    with pytest.raises(PlanError, match=r"plan\.json has plan version 2"):
        read_plan(tmp_path / "plan.json")


def test_a_damaged_plan(saved):
    tampered(saved, widths="wide")
    with pytest.raises(PlanError, match=r"small\.safetensors is not a precrop plan \(widths"):
        load(saved)
    tensors, metadata = contents(saved)
    save_file(tensors, saved, metadata={**metadata, "plan": metadata["plan"][:50]})
    with pytest.raises(PlanError, match=r"small\.safetensors is not a precrop plan"):
        load(saved)


@pytest.mark.parametrize("shared", ['{"a": "nothing"}', "[1", "[1]", "7"])
def test_damaged_names(saved, shared):
    tensors, metadata = contents(saved)
    save_file(tensors, saved, metadata={**metadata, "shared": shared})
    with pytest.raises(PlanError, match="its tensors cannot be read"):
        load(saved)


def test_tensors_that_do_not_match(saved):
    tensors, metadata = contents(saved)
    kept = tensors["conv1.weight"].shape[0]
    tensors["conv1.weight"] = torch.zeros(99, 3, 3, 3)
    tensors["extra"] = torch.zeros(1)
    del tensors["fc.bias"]
    save_file(tensors, saved, metadata=metadata)
    with pytest.raises(PlanError) as caught:
        load(saved)
    assert f"conv1.weight: (99, 3, 3, 3) in the file, ({kept}, 3, 3, 3) in the network" in str(caught.value)
    assert "fc.bias: absent in the file, (10,) in the network" in str(caught.value)
    assert "extra: (1,) in the file, absent in the network" in str(caught.value)
    assert "more" not in str(caught.value)


def test_many_mismatches_are_counted(saved):
    tensors, metadata = contents(saved)
    save_file({f"renamed.{key}": value for key, value in tensors.items()}, saved, metadata=metadata)
    with pytest.raises(PlanError, match=f"and {2 * len(tensors) - 8} more"):
        load(saved)


@pytest.mark.parametrize("name", ["resnet32", "vgg16_bn"])
def test_another_network(saved, name):
    with pytest.raises(PlanError, match=r"small\.safetensors was not cropped from this (ResNet|VGG)"):
        load(saved, model=ZOO[name]())


def test_an_original_for_other_images(saved):
    with pytest.raises(PlanError, match=r"small\.safetensors was not cropped from this ResNet"):
        load(saved, model=ZOO["resnet20"](in_chans=1))


def test_a_model_that_is_cropped_already(resnet, saved):
    with pytest.raises(PlanError, match=r"was not cropped from this ResNet.*uncropped"):
        load(saved, model=resnet)


def test_an_original_that_cannot_be_built(saved):
    tampered(saved, model={"name": "nowhere/nets.py:tiny", "kwargs": {}})
    with pytest.raises(PlanError, match=r"cannot build the original .* names 'nowhere/nets\.py:tiny'.*model="):
        load(saved)
    assert_same_state(load(saved, model=ZOO["resnet20"]()).state_dict(), contents(saved)[0])


def test_a_checkpoint_named_as_the_original(saved):
    tampered(saved, model={"name": str(saved), "kwargs": {}})
    with pytest.raises(PlanError, match=r"a file may name only a network that precrop can build itself.*uncropped"):
        load(saved)


def test_a_plan_survives_the_file(resnet, saved):
    _, metadata = contents(saved)
    assert CropPlan.from_json(metadata["plan"]) == resnet.crop_plan


def test_a_network_whose_loading_asks_for_its_version(tmp_path):
    """MNASNet reads the version of its state dict, which a file of tensors does not hold."""
    small = precrop.precrop(torchvision.models.mnasnet0_5(), 0.5)
    precrop.save(small, tmp_path / "small.safetensors")
    again = precrop.load(tmp_path / "small.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), again.parameters(), strict=True))

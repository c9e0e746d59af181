"""Files that try: to have something imported, called, opened, fetched or written that precrop would not itself.

Each is read by all that reads its kind, the library and the command line. What a file tries would leave a marker.
docs/FILES.md lists what each kind of file can and cannot do, and names the tests here.
"""

import inspect
import json
import pickle
import textwrap

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support_cli import run
from torch import nn

import precrop
from precrop.allowed import create_named, refusal
from precrop.crop_plan import CropPlan, ModelSpec
from precrop.errors import ModelNameError, PlanError
from precrop.origin import identify
from precrop.zoo import ZOO

SHAPE = (3, 16, 16)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """A test that reaches for the network fails, whatever becomes of the attempt."""
    tried = []

    def refuse(self, address, *_):
        tried.append(address)
        raise OSError(f"a file had precrop connect to {address}")

    monkeypatch.setattr("socket.socket.connect", refuse)
    yield
    assert not tried


@pytest.fixture
def marker(tmp_path):
    """A file that nothing may make."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "something that a file named was run"


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return precrop.precrop(ZOO["resnet20"](), 0.5, input_shape=SHAPE)


@pytest.fixture
def saved(small, tmp_path):
    precrop.save(small, tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def tampered(path, name, kwargs):
    """The checkpoint with another original in its plan, and in the plan's parents."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    plan = json.loads(metadata["plan"])
    plan["model"] = {"name": name, "kwargs": kwargs}
    plan["parent"] = {**plan, "parent": None}
    save_file(load_file(path), path, metadata={**metadata, "plan": json.dumps(plan)})
    return path


@pytest.fixture
def evil(tmp_path, marker):
    """A Python file whose import and whose factory both leave the marker, beside others that it might be taken for."""
    text = f"""
        from pathlib import Path

        Path({str(marker)!r}).write_text("imported")

        def net(**kwargs):
            Path({str(marker)!r}).write_text("called")
    """
    for name in ("evil.py", "resnet20.py", "timm.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path / "evil.py"


# Checkpoints: what is called and imported

COMMANDS = ("inspect", "score", "crop", "export", "bench")


def command(name, checkpoint, folder):
    more = {"crop": ["--ratio", "0.5"], "export": ["-o", str(folder / "out.onnx")], "bench": ["--rounds", "1"]}
    return [name, str(checkpoint), *more.get(name, [])]


def test_a_checkpoint_runs_no_command(saved, marker, capsys):
    """The plan names the function of Python's own library that runs a command, by the file it lies in."""
    tampered(saved, f"{inspect.getsourcefile(__import__('os'))}:system", {"command": f"touch {marker}"})
    with pytest.raises(
        PlanError, match=r"names .*os\.py:system'\. Build it yourself.*precrop\.load\(path, model=\.\.\.\)"
    ):
        precrop.load(saved)
    with pytest.raises(PlanError, match="a file may name only"):
        precrop.create_model(str(saved))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_what_a_checkpoint_names(saved, evil, tmp_path, name, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for original in (
        f"{evil}:net",
        "evil.py:net",
        "evil.py",
        "./evil.py:net",
        "timm/../evil.py:net",
        "precrop/evil.py:net",
    ):
        tampered(saved, original, {})
        status, _, err = run(capsys, *command(name, saved, tmp_path))
        assert status == 1, original
        assert "a file may name only a network that precrop can build itself" in err
        assert "--original" in err
    assert not (tmp_path / "out.onnx").exists()


def test_a_recipe_on_a_checkpoint_runs_nothing_that_the_checkpoint_names(saved, evil, tmp_path, capsys):
    tampered(saved, f"{evil}:net", {})
    recipe = {"name": "r", "model": {"name": str(saved)}, "data": {"name": "digits"}, "train": {"epochs": 1}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    status, _, err = run(capsys, "train", tmp_path / "recipe.yaml", "--runs", tmp_path / "runs")
    assert status == 1
    assert "a file may name only" in err


@pytest.mark.parametrize(
    "name",
    [
        "",
        "small.safetensors",
        "/etc/passwd",
        "resnet20",
        "os:system",
        "os.system",
        "torch/load",
        "timm/hf-hub:timm/resnet18.a1_in1k",
        "timm/local-dir:/tmp",
        "timm/resnet18.hf-hub:x/y",
        "hf-hub:timm/resnet18",
        "timm//etc/passwd",
        "timm/resnet18/../resnet18",
        "timm/",
        "torchvision/resnet18:x",
        "torchvision/get_model",
        "precrop/zoo.ZOO",
        "precrop/resnet20\n",
        "Timm/resnet18",
        "timm/resnet18 ",
        "https://example.org/net.py:net",
        "\u0000",
    ],
)
def test_a_file_names_only_what_the_library_can_build(name):
    with pytest.raises((ModelNameError, ValueError)):
        create_named(ModelSpec(name=name))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("timm/resnet18", {"checkpoint_path": "{}/weights.pth"}),
        ("timm/resnet18", {"pretrained": True}),
        ("timm/resnet18", {"pretrained": 1}),
        ("timm/resnet18", {"pretrained": False}),
        ("timm/resnet18", {"pretrained_cfg": {"file": "{}/weights.pth"}}),
        ("timm/resnet18", {"pretrained_cfg": "a1_in1k"}),
        ("timm/resnet18", {"pretrained_cfg_overlay": {"file": "{}/weights.pth"}}),
        ("timm/resnet18", {"pretrained_strict": False}),
        ("timm/resnet18", {"pretrained_filter_fn": "os.system"}),
        ("timm/resnet18", {"pretrained_model_args": {}}),
        ("timm/resnet18", {"cache_dir": "{}"}),
        ("timm/resnet18", {"scriptable": True}),
        ("timm/resnet18", {"exportable": True}),
        ("timm/resnet18", {"no_jit": True}),
        ("timm/resnet18", {"model_cfg": {}}),
        ("timm/resnet18", {"feature_cfg": {"feature_cls": "x"}}),
        ("timm/resnet18", {"kwargs_filter": []}),
        ("timm/resnet18", {"model_name": "hf-hub:x/y"}),
        ("timm/resnet18", {"variant": "hf-hub:x/y"}),
        ("timm/resnet18", {"device": "cuda:0"}),
        ("timm/resnet18", {"self": 1}),
        ("timm/resnet18", {"kwargs": {"pretrained": True}}),
        ("timm/resnet18", {"act_layer": "os:system"}),
        ("timm/resnet18", {"act_layer": "../evil"}),
        ("timm/resnet18", {"block": "/evil.py"}),
        ("timm/resnet18", {"block_args": {"weights_path": "x"}}),
        ("timm/resnet18", {"norm_layer": ["a", {"file": "x"}]}),
        ("timm/resnet18", {"drop_rate": float("nan")}),
        ("timm/resnet18", {"num_classes": 10**40}),
        ("timm/fastvit_t8", {"pretrained": True}),
        ("timm/dla34", {"checkpoint_path": "x"}),
        ("torchvision/resnet18", {"weights": "DEFAULT"}),
        ("torchvision/resnet18", {"weights": "ResNet18_Weights.IMAGENET1K_V1"}),
        ("torchvision/resnet18", {"pretrained": True}),
        ("torchvision/fasterrcnn_resnet50_fpn", {"weights_backbone": "DEFAULT"}),
        ("torchvision/fasterrcnn_resnet50_fpn", {"pretrained_backbone": True}),
        ("torchvision/lraspp_mobilenet_v3_large", {"weights_backbone": "IMAGENET1K_V1"}),
        ("torchvision/quantized_resnet18", {"weights": "DEFAULT"}),
        ("torchvision/resnet18", {"progress": True}),
        ("torchvision/resnet18", {"model_dir": "{}"}),
        ("precrop/resnet20", {"num_classes": "os.system('x')"}),
        ("precrop/resnet20", {"name": "evil.py:net"}),
    ],
)
def test_a_file_reaches_no_argument_that_fetches_opens_or_runs(saved, tmp_path, marker, monkeypatch, name, kwargs):
    class Harm:
        def __reduce__(self):
            return exec, (f"open({str(marker)!r}, 'w')",)

    (tmp_path / "weights.pth").write_bytes(pickle.dumps(Harm()))
    told = json.loads(json.dumps(kwargs).replace("{}/", f"{tmp_path}/"))

    def called(*_, **__):
        raise AssertionError("the builder was called")

    monkeypatch.setattr("precrop.allowed.create_model", called)
    with pytest.raises(ModelNameError, match="a file may not pass"):
        create_named(ModelSpec(name=name, kwargs=told))
    tampered(saved, name, told)
    with pytest.raises(PlanError):
        precrop.load(saved)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("timm/resnet18.a1_in1k", {"num_classes": 3, "in_chans": 1, "global_pool": "max", "drop_path_rate": 0.1}),
        ("timm/resnet18", {"features_only": True, "out_indices": [1, 2], "output_stride": 16}),
        ("timm/resnet18", {"act_layer": "silu", "norm_layer": "batchnorm2d", "global_pool": ""}),
        ("timm/mobilenetv3_small_050", {"num_classes": 3, "bn_eps": 0.01}),
        ("timm/fastvit_t8", {"num_classes": 3, "in_chans": 1}),
        ("timm/efficientvit_b0", {"num_classes": 3}),
        ("torchvision/googlenet", {"num_classes": 3, "aux_logits": False, "init_weights": False}),
        ("torchvision/mobilenet_v2", {"num_classes": 3, "width_mult": 0.5, "in_chans": 3}),
        ("torchvision/resnet50", {"replace_stride_with_dilation": [False, True, False], "zero_init_residual": True}),
        ("torchvision/fasterrcnn_mobilenet_v3_large_320_fpn", {"num_classes": 3, "box_score_thresh": 0.1}),
        ("precrop/vgg16_bn", {"num_classes": 3, "in_chans": 1}),
    ],
)
def test_plain_arguments_of_the_networks_own_are_taken(name, kwargs):
    assert not refusal(ModelSpec(name=name, kwargs=kwargs))
    assert isinstance(create_named(ModelSpec(name=name, kwargs=kwargs)), nn.Module)


def test_every_listed_network_may_be_named_with_classes():
    """The allow list is read off the builders: none of them has lost the arguments that `save` writes."""
    import timm
    from torchvision.models import list_models

    names = (*(f"timm/{m}" for m in timm.list_models()), *(f"torchvision/{m}" for m in list_models()))
    refused = [name for name in names if refusal(ModelSpec(name=name, kwargs={"num_classes": 3}))]
    # Flow networks and encoders of language models have none.
    assert [name for name in refused if "raft" not in name and not name.endswith("_enc")] == []


# What loading hands on to saving


def test_saving_again_does_not_call_what_a_loaded_plan_named(saved, evil, tmp_path):
    """`save` looks for the builder of the original; a plan from a file may not send it to a file."""
    tampered(saved, f"{evil}:net", {})
    loaded = precrop.load(saved, model=ZOO["resnet20"]())
    assert identify(loaded, loaded.crop_plan).name == "precrop/resnet20"
    precrop.save(loaded, tmp_path / "again.safetensors")
    assert precrop.load(tmp_path / "again.safetensors").crop_plan.model.name == "precrop/resnet20"


def test_applying_a_plan_and_saving_does_not_call_what_the_plan_named(small, evil, tmp_path):
    plan = small.crop_plan.model_copy(update={"model": ModelSpec(name=f"{evil}:net")})
    plan.save(tmp_path / "plan.json")
    crop = precrop.apply(ZOO["resnet20"](), CropPlan.load(tmp_path / "plan.json"))
    precrop.save(crop, tmp_path / "crop.safetensors")


def test_a_network_of_the_users_own_is_saved_under_its_name_and_loaded_with_it(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from precrop.zoo import ZOO\n\n\nclass Mine(type(ZOO['resnet20']())):\n    pass\n\n\n"
        "def net(classes=4):\n    found = ZOO['resnet20'](classes)\n    found.__class__ = Mine\n    return found\n"
    )
    name, path = f"{tmp_path}/mine.py:net", tmp_path / "small.safetensors"
    precrop.save(precrop.precrop(precrop.create_model(name, classes=3), 0.5, input_shape=SHAPE), path)
    with pytest.raises(PlanError, match=r"names .*mine\.py:net.*model=\.\.\."):
        precrop.load(path)
    loaded = precrop.load(path, model=precrop.create_model(name, classes=3))
    assert loaded.crop_plan.model == ModelSpec(name=name, kwargs={"classes": 3})
    options = ("--original", name, "--model-arg", "classes=3")
    status, out, _ = run(capsys, "inspect", path, *options)
    assert status == 0
    assert "input 3x16x16" in out
    status, out, _ = run(capsys, "bench", "precrop/resnet20", path, *options[:2], "--backend", "torch", "--rounds", "2")
    assert status == 1  # its own original has four classes
    status, _, err = run(capsys, "inspect", "precrop/resnet20", *options[:2])
    assert status == 1
    assert "precrop/resnet20 is no checkpoint" in err


# Checkpoints: what is read


def test_a_checkpoint_of_pickle_is_not_opened_as_one(marker, tmp_path):
    class Harm:
        def __reduce__(self):
            return exec, (f"open({str(marker)!r}, 'w')",)

    for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        path = tmp_path / "harm.safetensors"
        write({"a": Harm()}, path)
        with pytest.raises(PlanError, match="no safetensors file"):
            precrop.load(path)


def test_names_of_tensors_reach_nothing_but_tensors(saved):
    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    state = load_file(saved)
    for shared in ({"__class__": "fc.weight"}, {"forward": "fc.weight"}, {"fc.weight": ["fc.bias"]}, {"fc.bias": None}):
        save_file(state, saved, metadata={**metadata, "shared": json.dumps(shared)})
        with pytest.raises(PlanError):
            precrop.load(saved)
    save_file(state, saved, metadata={**metadata, "shared": "[" * 100_000})
    with pytest.raises(PlanError, match="cannot be read"):
        precrop.load(saved)

"""Data sets, run folders and engines' files that try: what they name is not imported, called, opened or written."""

import builtins
import gzip
import io
import json
import pickle
import sys
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image
from safetensors.torch import save_file
from support_cli import run
from support_images import cifar10, fashion_mnist, image_folder, jpeg, shards
from torch import nn

import precrop
from precrop.errors import ExportError, PrecropError, RecipeError, ScoreError
from precrop.export.backends import tensorrt
from precrop.recipes import masks
from precrop.recipes.data import load_data, readers
from precrop.recipes.data.cifar import _ArraysOnly
from precrop.recipes.loading import load_recipe
from precrop.recipes.results import Training
from precrop.recipes.sections import Data
from precrop.recipes.training.checkpoints import FORMAT, _digest, read_checkpoint
from precrop.scoring import Densities


def loaded(name, root, **settings):
    return load_data(Data(name=name, root=str(root), **settings))


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "something that a file named was run"


@pytest.fixture
def opened(monkeypatch):
    """The files that are opened while a test runs."""
    found, before = [], builtins.open

    def noting(file, *args, **kwargs):
        found.append(str(file))
        return before(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", noting)
    return found


# CIFAR's pickles


class Calls:
    def __init__(self, function, *arguments, state=None):
        self.made = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.made


def batch_of(data, labels=(0,)):
    return {b"data": data, b"labels": list(labels)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda marker: pickle.dumps(batch_of(Calls(exec, f"open({str(marker)!r}, 'w')"))), r"names builtins\.exec"),
        (lambda marker: f"cos\nsystem\n(S'touch {marker}'\ntR.".encode(), r"names os\.system"),
        (lambda marker: b"cnumpy\nload\n.", r"names numpy\.load"),
        (lambda marker: b"cnumpy.core.multiarray\nscalar\n.", r"names numpy\.core\.multiarray\.scalar"),
        (lambda marker: b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.", r"names numpy\.core\.multiarray\._rec"),
        (lambda marker: b"c_codecs\nencode\n(S'x'\nS'zlib_codec'\ntR.", r"it encodes"),
        (lambda marker: b"cnumpy\nndarray\n(I1000000\ntR.", r"callable"),
        (lambda marker: b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", r"is not a file of"),
        (lambda marker: b"]" * 9 + b"(" * 100_000, r"is not a file of"),
        (lambda marker: pickle.dumps(batch_of(np.array([[{}]], dtype=object)), 2), r"of type 'O8'"),
        (lambda marker: pickle.dumps(batch_of(np.zeros((1, 3072), np.int64)), 2), r"of type 'i8'"),
        (lambda marker: pickle.dumps(batch_of(np.zeros((1, 9), np.uint8)), 2), r"images \(1, 9\) and 1 labels"),
        (lambda marker: pickle.dumps(batch_of(np.zeros((1, 3072), np.uint8), ["0"]), 2), r"no list of whole numbers"),
        (lambda marker: pickle.dumps(batch_of(np.zeros((1, 3072), np.uint8), [True]), 2), r"no list of whole numbers"),
        (lambda marker: pickle.dumps([1]), r"is not a file of"),
    ],
)
def test_a_pickle_imports_and_calls_nothing(tmp_path, marker, content, said):
    cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(content(marker))
    with pytest.raises(RecipeError, match=said):
        loaded("cifar10", tmp_path)


def test_a_pickle_does_not_choose_how_memory_is_read(tmp_path):
    """With NumPy's own functions an array may be given more than its bytes, or bytes that are taken for objects."""
    cifar10(tmp_path)
    made, arguments, _ = np.zeros(1).__reduce__()
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    for shape, kind, raw, said in (
        ((1, 3073), np.dtype("u1"), bytes(3072), r"images \(1, 3073\) of type 'u1' in 3,072 bytes"),
        ((1, 384), np.dtype("O"), bytes(3072), r"of type 'O8'"),
        ((1, 3072), np.dtype("u1"), [0] * 3072, r"is not a file of"),
        ((2**62, 4), np.dtype("u1"), b"1", r"in 1 bytes"),
        ((-1, -3072), np.dtype("u1"), bytes(3072), r"is not a file of"),
    ):
        array = Calls(made, *arguments, state=(1, shape, kind, False, raw))
        path.write_bytes(pickle.dumps(batch_of(array), 2))
        with pytest.raises(RecipeError, match=said):
            loaded("cifar10", tmp_path)
    whole = pickle.dumps(batch_of(np.zeros((1, 3072), np.uint8)), 2)
    assert not isinstance(_ArraysOnly(io.BytesIO(whole), encoding="bytes").load()[b"data"], np.ndarray)


def test_a_pickle_leaves_nothing_behind_in_what_it_names(tmp_path):
    cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    whole = path.read_bytes()
    # BUILD with a state for attributes, on the stand-in itself.
    path.write_bytes(b"cnumpy\ndtype\n(N}S'made'\nI1\nstb.")
    with pytest.raises(RecipeError):
        loaded("cifar10", tmp_path)
    path.write_bytes(whole)
    assert loaded("cifar10", tmp_path).val_images == 16


def test_a_download_unpickles_nothing(tmp_path, monkeypatch):
    """torchvision's own classes read the files with pickle, or what lies beside them with torch.load."""
    fetched = []
    monkeypatch.setattr("torchvision.datasets.utils.download_url", lambda url, *_, **__: fetched.append(url))
    monkeypatch.setattr(
        "torchvision.datasets.utils.download_and_extract_archive", lambda url, *_, **__: fetched.append(url)
    )
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("unpickled"))
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("unpickled"))
    cifar10(tmp_path / "c")
    assert loaded("cifar10", tmp_path / "c", download=True).val_images == 16
    processed, raw = (tmp_path / "f" / "FashionMNIST" / name for name in ("processed", "raw"))
    processed.mkdir(parents=True)
    raw.mkdir()
    for name in ("training.pt", "test.pt"):
        (processed / name).write_bytes(b"a pickle")
    fashion_mnist(raw)
    assert loaded("fashion_mnist", tmp_path / "f", download=True).val_images == 40
    assert [url.rpartition("/")[2][:5] for url in fetched] == ["cifar", "train", "train", "t10k-", "t10k-"]


# Pictures


def postscript(marker):
    """What Pillow hands to Ghostscript."""
    return f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n({marker}) (w) file closefile showpage\n".encode()


@pytest.fixture
def no_ghostscript(monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("PostScript was run"))


def test_a_picture_that_is_postscript_is_not_run(tmp_path, marker, no_ghostscript):
    image_folder(tmp_path / "folder", classes=1)
    (tmp_path / "folder" / "val" / "class0000" / "0.jpg").write_bytes(postscript(marker))
    with pytest.raises(RecipeError, match=r"0\.jpg is no picture of the formats JPEG, PNG"):
        loaded("folder", tmp_path / "folder").val[0]
    shards(tmp_path / "shards")
    with tarfile.open(tmp_path / "shards" / "val-000000.tar", "w") as tar:
        for name, content in (("a.jpg", postscript(marker)), ("a.cls", b"0")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(RecipeError, match="an image is no picture"):
        loaded("webdataset", tmp_path / "shards").val[0]


def test_pictures_of_other_formats_than_their_names_say_are_read(tmp_path):
    image_folder(tmp_path, classes=1, count=1)
    picture = Image.fromarray(np.zeros((9, 9, 3), np.uint8))
    for kind in ("png", "bmp", "gif", "tiff", "ppm", "webp"):
        picture.save(tmp_path / "val" / "class0000" / "0.jpg", kind)
        assert loaded("folder", tmp_path, image_size=8).val[0][0].shape == (3, 8, 8), kind


# Shards


def test_members_of_a_shard_are_written_nowhere_and_lead_nowhere(tmp_path, marker, opened):
    shards(tmp_path / "shards")
    with tarfile.open(tmp_path / "shards" / "train-000000.tar", "w") as tar:
        for name, content in ((f"../../{marker.name}.jpg", jpeg(0)), (f"{marker}.jpg", jpeg(1))):
            for member_name, data in ((name, content), (name.replace(".jpg", ".cls"), b"0")):
                member = tarfile.TarInfo(member_name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        for kind, name in ((tarfile.SYMTYPE, "s.jpg"), (tarfile.LNKTYPE, "l.jpg"), (tarfile.FIFOTYPE, "f.jpg")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    before = sorted(tmp_path.rglob("*"))
    assert len(loaded("webdataset", tmp_path / "shards").train) == 1 + 6  # a name that begins with a dot is no image's
    assert sorted(tmp_path.rglob("*")) == before
    assert not any("passwd" in name for name in opened)


def test_a_label_without_end_is_not_read(tmp_path):
    shards(tmp_path)
    with tarfile.open(tmp_path / "train-000000.tar", "w") as tar:
        for name, content in (("a.jpg", jpeg(0)), ("a.cls", b"0" * 5_000_000)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(RecipeError, match="a label of more than 7 digits"):
        loaded("webdataset", tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../secret.tar", "/etc/passwd", "a/../../secret.tar", "", "pipe:touch marker\0", 7, None, ["a.tar"]],
)
def test_an_info_file_opens_no_shard_elsewhere(tmp_path, monkeypatch, opened, name):
    inner = tmp_path / "data"
    shards(inner)
    (tmp_path / "secret.tar").write_bytes((inner / "train-000000.tar").read_bytes())
    reader = SimpleNamespace(split_info=SimpleNamespace(filenames=(name,)))
    monkeypatch.setattr(readers, "require", lambda *_: None)
    monkeypatch.setattr(readers, "_dataset", lambda *_: SimpleNamespace(reader=reader))
    with pytest.raises(RecipeError, match=r"names the shard .*It is not opened"):
        loaded("wds/here", inner)
    assert not any("secret" in file or "passwd" in file for file in opened)


def test_an_info_file_runs_no_pipe(tmp_path, monkeypatch, marker):
    """WebDataset runs the command in a name that begins so; here a name is a file's in the folder."""
    shards(tmp_path / "data")
    reader = SimpleNamespace(split_info=SimpleNamespace(filenames=(f"pipe:touch {marker.name}",)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(readers, "require", lambda *_: None)
    monkeypatch.setattr(readers, "_dataset", lambda *_: SimpleNamespace(reader=reader))
    with pytest.raises(RecipeError, match="is not a shard"):
        loaded("wds/here", tmp_path / "data")


def test_a_table_of_images_opens_no_file_elsewhere(tmp_path, monkeypatch, opened):
    inner = tmp_path / "data"
    image_folder(inner, classes=1, count=1)
    jpg = inner / "val" / "class0000" / "0.jpg"
    (tmp_path / "secret.jpg").write_bytes(jpg.read_bytes())
    rows = [{"image": {"bytes": jpg.read_bytes(), "path": "/etc/passwd"}, "label": 1}]
    for path in (
        jpg,
        tmp_path / "secret.jpg",
        inner / ".." / "secret.jpg",
        "/etc/passwd",
        None,
        "pipe:ls",
        "https://x/y",
    ):
        rows.append({"image": {"bytes": None, "path": None if path is None else str(path)}, "label": 0})
    reader = SimpleNamespace(dataset=rows, image_key="image", label_key="label")
    pictures = readers.Pictures(reader, [inner])
    assert pictures[0][1] == 1
    assert pictures[1][0].size == (44, 40)
    opened.clear()
    monkeypatch.chdir(tmp_path)
    for index in range(2, len(rows)):
        with pytest.raises(RecipeError, match="It is not opened"):
            pictures[index]
    assert opened == []


# IDX


def test_an_idx_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("precrop.recipes.data.idx.MOST_BYTES", 2**20)
    fashion_mnist(tmp_path, count=10)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + bytes(2**22)))
    with pytest.raises(RecipeError, match="holds more than"):
        loaded("fashion_mnist", tmp_path)


# Recipes: what their YAML makes, and the folders of their runs


@pytest.mark.parametrize(
    "text",
    [
        "name: !!python/object/apply:os.system ['touch {marker}']",
        "name: !!python/name:os.system",
        "name: !!python/module:os",
        "name: !!python/object/new:os.system [x]",
        "name: &a [*a]",
    ],
)
def test_yaml_makes_no_object(tmp_path, marker, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text.format(marker=marker))
    with pytest.raises(RecipeError):
        load_recipe(path)
    with pytest.raises(RecipeError):
        load_recipe("digits", [text.format(marker=marker).replace(": ", "=", 1)])


def test_arguments_on_the_command_line_make_no_object(capsys, marker):
    argument = f"num_classes=!!python/object/apply:os.system ['touch {marker}']"
    status, _, err = run(capsys, "inspect", "precrop/resnet20", "--model-arg", argument)
    assert status == 1
    assert "no YAML value" in err


def test_a_result_with_other_values_than_a_training_has_is_refused(tmp_path):
    made = Training("it", "dense", 0, 1, 1, 0.5, 1.0, ({"epoch": 1, "accuracy": 0.5},))
    made.save(tmp_path)
    assert Training.load(tmp_path, "it").history[0]["epoch"] == 1
    record = json.loads((tmp_path / "result.json").read_text())
    for key, value in (
        ("accuracy", "<script>"),
        ("params", "1"),
        ("history", [{"accuracy": "{0.__class__}"}]),
        ("variant", ["../../marker"]),
        ("environment", {"a": {}}),
    ):
        (tmp_path / "result.json").write_text(json.dumps({**record, key: value}))
        with pytest.raises(RecipeError, match=rf"result\.json is damaged \('{key}'"):
            Training.load(tmp_path, "it")
    (tmp_path / "result.json").write_text("[" * 100_000)
    with pytest.raises(RecipeError, match="is damaged"):
        Training.load(tmp_path, "it")


def test_masks_of_another_network_are_refused(tmp_path):
    network, path = nn.Linear(2, 3), tmp_path / "mask.safetensors"
    for found in (
        {"weight": torch.ones(3, 3, dtype=torch.bool)},
        {"weight": torch.full((3, 2), 7.0)},
        {"__class__": torch.ones(1, dtype=torch.bool)},
        {},
    ):
        save_file(found, path)
        with pytest.raises(RecipeError, match="holds no masks of this network"):
            masks.load(path, network)
    path.write_bytes(pickle.dumps(1))
    with pytest.raises(RecipeError, match="no safetensors file"):
        masks.load(path, network)
    save_file({"weight": torch.ones(3, 2, dtype=torch.bool)}, path)
    assert masks.load(path, network)["weight"].all()


@pytest.mark.parametrize(
    "tree",
    [
        '{"os": ["system"]}',
        '{"object": []}',
        '{"tensor": "absent", "channels_last": false}',
        '{"dict": [[["unhashable"], 1]]}',
        '{"dict": 7}',
        "7",
        "[",
        "[" * 100_000,
    ],
)
def test_the_tree_of_a_training_holds_plain_values_alone(tmp_path, tree):
    path = tmp_path / "step-00000001.safetensors"
    tensors = {"a": torch.zeros(1)}
    save_file(
        tensors, path, metadata={"format": FORMAT, "of": "it", "tree": tree, "sha256": _digest("it", tree, tensors)}
    )
    with pytest.raises(RecipeError, match="holds no training"):
        read_checkpoint(path, "it")


# Densities


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("densities", {"conv1": float("nan")}),
        ("densities", {"conv1": 0}),
        ("densities", {"conv1": 7.5}),
        ("densities", {"conv1": "__import__('os')"}),
        ("weights", {"conv1": 0}),
        ("weights", {"other": 3}),
        ("weights", {}),
        ("input_shape", [3, -8, 8]),
        ("input_shape", []),
        ("density", float("inf")),
    ],
)
def test_densities_are_numbers_that_a_scorer_gives(tmp_path, key, value):
    path = tmp_path / "densities.json"
    record = {
        "scorer": "snip",
        "density": 0.5,
        "input_shape": [3, 8, 8],
        "weights": {"conv1": 9},
        "densities": {"conv1": 0.5},
    }
    path.write_text(json.dumps(record))
    assert Densities.load(path)["conv1"] == 0.5
    path.write_text(json.dumps({**record, key: value}))
    with pytest.raises(ScoreError, match="holds no densities"):
        Densities.load(path)


# Engines' files


def test_a_sidecar_imports_no_package(tmp_path, monkeypatch, marker):
    (tmp_path / "evil_package.py").write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    engine = tmp_path / "net.plan"
    engine.write_bytes(b"engine")
    for name in ("evil_package", "os", "tensorrt.evil", "", 7, ["tensorrt"]):
        (tmp_path / "net.plan.json").write_text(json.dumps({"build": {"package": name}}))
        with pytest.raises(PrecropError):
            tensorrt.load(engine)
    assert "evil_package" not in sys.modules
    (tmp_path / "net.plan.json").write_text(json.dumps({"build": {"package": "evil_package"}}))
    with pytest.raises(ExportError, match=r"net\.plan\.json says .*'evil_package'; expected one of tensorrt"):
        tensorrt.load(engine)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "link.bin"])
def test_an_onnx_file_reads_no_file_elsewhere(tmp_path, capsys, location):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(4 * 4 * 3))
    (inner / "link.bin").symlink_to(tmp_path / "secret.bin")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3, 1, 1], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    image = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 8, 8])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 4, 8, 8])
    graph = helper.make_graph([helper.make_node("Conv", ["input", "w"], ["output"])], "g", [image], [output], [weight])
    path = inner / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    status, _, err = run(capsys, "bench", path, path, "--rounds", "1")
    assert status == 1
    assert "is not an ONNX file" in err
    assert onnx.load(path, load_external_data=False).graph.initializer[0].name == "w"


def test_what_an_onnx_file_notes_of_its_nodes_is_not_evaluated(marker):
    from precrop.export.graph import _noted

    for text in (f"open({str(marker)!r}, 'w')", "[" * 5000, "-" * 200_000 + "1", "[1]", "{}"):
        node = SimpleNamespace(metadata_props=[SimpleNamespace(key="pkg.torch.onnx.name_scopes", value=text)])
        assert _noted(node) == ""


def test_the_words_of_a_plan_are_printed_as_they_are():
    made = precrop.plan(precrop.create_model("precrop/resnet20"), 0.5, input_shape=(3, 16, 16))
    record = json.loads(made.to_json())
    record |= {"scorer": "{0.__class__} $(ls)", "notes": ["[red]${x}[/blue] {0} %s :boom:"]}
    plan = precrop.CropPlan.from_json(json.dumps(record))
    assert "note: [red]${x}[/blue] {0} %s :boom:" in str(plan)
    assert "scorer {0.__class__} $(ls)" in str(plan)

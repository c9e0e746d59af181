import json
import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from support_export import CONVOLUTIONS, SHAPE, SmallNet, images, needs_openvino, small_net, warmed, with_a_full_disk
from torch.utils.data import DataLoader, TensorDataset

import precrop
from precrop.errors import ExportError, MissingExtraError, PrecropError
from precrop.export import front
from precrop.export.backends import BACKENDS, RunSettings, backend_for_format, backend_named

# The largest error on standard normal images as a share of the largest output: about twice what is seen.
ALLOWED = {"fp32": 1e-6, "fp16": 1e-3, "bf16": 1e-2, "int8": 3e-2}


@pytest.fixture
def net():
    return small_net()


def calibration():
    return [images(8, seed=5), images(8, seed=6)]


def export(net, path, precision="fp32", **settings):
    data = calibration() if precision == "int8" else None
    return precrop.export(net, path, precision=precision, input_shape=SHAPE, calibration=data, **settings)


def run(path, batch, precision="fp32"):
    backend = backend_for_format(None, path.suffix)
    with backend.runner(path, batch.numpy(), RunSettings(1, "cpu", precision)) as runner:
        runner.run()
        return runner.output()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("suffix", [".onnx", pytest.param(".xml", marks=needs_openvino)])
def test_a_file_gives_pytorchs_outputs(net, tmp_path, suffix, precision):
    path = tmp_path / f"net{suffix}"
    done = export(net, path, precision)
    assert (done.path, done.precision, done.input_shape) == (path, precision, SHAPE)
    assert done.max_abs_error <= ALLOWED[precision] * done.largest_output
    # Rounding to a narrow type leaves a trace: without one the file would not be of that type.
    assert precision == "fp32" or done.max_abs_error > 1e-6 * done.largest_output
    if (suffix, precision) == (".onnx", "bf16"):
        return  # ONNX Runtime does not run it on a CPU
    for size in (1, 5):
        batch = images(size, seed=size)
        expected = net(batch).detach().numpy()
        got = run(path, batch, precision)
        assert got.dtype == np.float32
        assert np.abs(got - expected).max() <= ALLOWED[precision] * np.abs(expected).max()


def test_precision_is_in_the_graph(net, tmp_path):
    weights = {}
    for precision in ("fp32", "fp16", "bf16", "int8"):
        graph = onnx.load(export(net, tmp_path / f"{precision}.onnx", precision).path).graph
        assert [entry.type.tensor_type.elem_type for entry in (*graph.input, *graph.output)] == [
            onnx.TensorProto.FLOAT
        ] * 2
        taken = {node.input[1] for node in graph.node if node.op_type in ("Conv", "Gemm")}
        taken |= {
            node.input[0] for node in graph.node if node.op_type == "DequantizeLinear" and node.output[0] in taken
        }
        weights[precision] = {entry.data_type for entry in graph.initializer if entry.name in taken}
    kinds = onnx.TensorProto
    assert weights == {"fp32": {kinds.FLOAT}, "fp16": {kinds.FLOAT16}, "bf16": {kinds.BFLOAT16}, "int8": {kinds.INT8}}


@needs_openvino
def test_the_error_told_is_the_error_of_the_file(net, tmp_path):
    done = export(net, tmp_path / "net.xml", "fp16", batch=(1, 4), seed=3)
    seen, largest = 0.0, 0.0
    for batch in front.parity_images(SHAPE, 3, (1, 3)):
        expected = net(torch.from_numpy(batch)).detach().numpy()
        seen = max(seen, np.abs(run(done.path, torch.from_numpy(batch), "fp16") - expected).max())
        largest = max(largest, np.abs(expected).max())
    assert done.max_abs_error == pytest.approx(seen, rel=1e-3)
    assert done.largest_output == pytest.approx(largest, rel=1e-6)
    assert done.checked_in == "OpenVINO"


@needs_openvino
def test_the_sidecar_says_what_the_file_is(tmp_path):
    torch.manual_seed(0)
    small = precrop.precrop(SmallNet(), params=0.5, input_shape=SHAPE)
    done = export(warmed(small), tmp_path / "small.xml", "int8", batch=[8, 1, 8])
    assert done.sidecar == tmp_path / "small.xml.json"
    facts = json.loads(done.sidecar.read_text())
    assert (facts["file"], facts["format"], facts["precision"]) == ("small.xml", "openvino", "int8")
    assert facts["network"] == "SmallNet"
    assert facts["params"] == sum(weight.numel() for weight in small.parameters())
    assert facts["widths"] == {"head": 5} | {name: getattr(small, name).out_channels for name in CONVOLUTIONS}
    assert facts["crop"]["budget"]["params"] == 0.5
    assert facts["crop"]["params_ratio"] == small.crop_plan.params_ratio < 0.5
    assert facts["input"] == {"name": "input", "dtype": "float32", "image": list(SHAPE), "batch": [1, 8]}
    assert facts["parity"]["max_abs_error"] == done.max_abs_error
    assert facts["parity"]["on"] == "calibration images"
    assert facts["size_bytes"] == done.size_bytes
    assert done.size_bytes == sum((tmp_path / name).stat().st_size for name in ("small.xml", "small.bin"))
    assert facts["versions"]["torch"].startswith(torch.__version__.partition("+")[0])
    assert {"openvino", "onnx", "precrop", "python"} <= set(facts["versions"])
    assert facts["gpu"] is None or torch.cuda.is_available()
    assert set(CONVOLUTIONS) <= set(facts["modules"].values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.bin", "small.xml", "small.xml.json"]


def test_an_uncropped_network_has_no_crop_in_its_sidecar(net, tmp_path):
    facts = json.loads(export(net, tmp_path / "net.onnx").sidecar.read_text())
    assert facts["crop"] is None
    assert facts["parity"]["on"] == "standard normal images"


def test_the_network_stays_as_it_was(net, tmp_path):
    net.train()
    net.norm.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    export(net, tmp_path / "net.onnx", "fp16")
    assert net.training and not net.norm.training
    for name, value in net.state_dict().items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name]), name


def test_precrop_export_is_the_function_and_the_package(net, tmp_path):
    assert precrop.export(net, str(tmp_path / "a.onnx"), input_shape=SHAPE).path == tmp_path / "a.onnx"
    assert precrop.export.front.export is front.export
    assert "Raises:" in precrop.export.__call__.__doc__


def test_calibration_takes_a_loader_and_its_labels(net, tmp_path):
    pairs = TensorDataset(images(16, seed=5), torch.zeros(16))
    done = precrop.export(
        net, tmp_path / "a.onnx", precision="int8", calibration=DataLoader(pairs, batch_size=8), input_shape=SHAPE
    )
    halves = images(16, seed=5).split(8)
    again = precrop.export(net, tmp_path / "b.onnx", precision="int8", calibration=halves, input_shape=SHAPE)
    assert done.path.read_bytes() == again.path.read_bytes()


def test_int8_is_checked_on_as_many_images_as_are_built_for():
    assert front._within(np.arange(8.0)[:, None], (2, 4)).ravel().tolist() == [0, 1, 2, 3]
    assert front._within(np.arange(2.0)[:, None], (3, 8)).ravel().tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"path": "net.pt"},
            r"cannot tell the format from the suffix '\.pt'; expected one of onnx \(\.onnx\), openvino",
        ),
        ({"to": "tflite"}, r"unknown format 'tflite'; expected one of onnx .*tensorrt \(\.plan, \.engine\)"),
        ({"to": "openvino"}, r"a file of openvino ends in \.xml, got '\.onnx'"),
        (
            {"precision": "fp8"},
            r"unknown precision 'fp8': the format onnx has no fp8; expected one of fp32, fp16, bf16",
        ),
        ({"precision": "int8"}, r"int8 needs data.*Pass calibration="),
        ({"calibration": [images(2)]}, "calibration is for int8, and the precision is fp32"),
        ({"batch": 0}, r"batch is 0; expected positive whole numbers such as \(1, 8, 32\)"),
        ({"batch": (1, 2.5)}, r"batch is \(1, 2\.5\)"),
        ({"batch": ()}, r"batch is \(\)"),
        ({"batch": True}, r"batch is True"),
        ({"path": "none/net.onnx"}, "none does not exist. Create it first"),
        ({"input_shape": (4, 8, 8)}, r"SmallNet does not run on a batch of images \(4x8x8: .*Pass input_shape="),
        ({"tolerance": 0.0}, r"the fp32 ONNX file of SmallNet differs from PyTorch by .*expected at most 0 of that"),
    ],
)
def test_bad_input(net, tmp_path, settings, message):
    settings = {"path": "net.onnx", "input_shape": SHAPE} | settings
    path = tmp_path / settings.pop("path")
    with pytest.raises(PrecropError, match=message):
        precrop.export(net, path, **settings)
    assert list(tmp_path.iterdir()) == []


def test_not_a_network(tmp_path):
    with pytest.raises(PrecropError, match=r"torch\.nn\.Module was expected"):
        precrop.export("resnet18", tmp_path / "net.onnx")


@pytest.mark.parametrize("name", ["net.onnx", pytest.param("net.xml", marks=needs_openvino)])
def test_a_failing_export_leaves_the_older_files(net, tmp_path, name):
    export(net, tmp_path / name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ExportError, match="Nothing was written"):
        export(small_net(8), tmp_path / name, tolerance=0.0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["net.onnx", pytest.param("net.xml", marks=needs_openvino)])
def test_a_full_disk_leaves_the_older_files(net, tmp_path, monkeypatch, name):
    export(net, tmp_path / name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(front, "backend_for_format", lambda *args: with_a_full_disk(backend_for_format(*args)))
    with pytest.raises(PrecropError, match=r"File too large|OpenVINO refuses the network: .*(write|stream|file)"):
        export(small_net(8), tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


KILLED = """
import os, shutil, signal, sys
sys.path.insert(0, sys.argv[2])
import precrop
from precrop.export.backends import onnxruntime
from support_export import SHAPE, small_net

def half(source, path):
    content = open(source, "rb").read()
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

onnxruntime.shutil.copyfile = half
precrop.export(small_net(8), sys.argv[1], input_shape=SHAPE)
"""


def test_a_killed_export_leaves_the_older_file(net, tmp_path):
    export(net, tmp_path / "net.onnx")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    support = os.path.dirname(sys.modules["support_export"].__file__)
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "net.onnx", support], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (part,) = set(after) - set(before)
    assert part.startswith(".net.onnx.") and part.endswith(".part")
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(("suffix", "module"), [(".onnx", "onnxscript"), (".xml", "openvino")])
def test_without_an_engine_the_error_names_the_extra(net, tmp_path, monkeypatch, suffix, module):
    monkeypatch.setitem(sys.modules, module, None)
    extra = "onnx" if suffix == ".onnx" else "openvino"
    with pytest.raises(MissingExtraError, match=rf"{module}.*pip install 'precrop\[{extra}\]'"):
        export(net, tmp_path / f"net{suffix}")


def test_rows_of_backends_hold_together():
    for name, row in BACKENDS.items():
        assert backend_named(name) is row
        assert (row.format is None) == (row.build is None) == (not row.suffixes) == (not row.writes)
        assert set(row.devices) <= {"cpu", "cuda"}
        for suffix in row.suffixes:
            assert backend_for_format(None, suffix) is backend_for_format(row.format, suffix) is row
    with pytest.raises(ExportError, match="unknown backend 'onnx'; expected one of onnxruntime, openvino, torch"):
        backend_named("onnx")

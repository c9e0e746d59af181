"""TensorRT: real engines by TensorRT for RTX, which builds without a GPU."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
import torchvision
from support_export import CONVOLUTIONS, SHAPE, Rounded, images, small_net, warmed, with_a_full_disk

import precrop
from precrop.errors import ExportError, MissingExtraError, PrecropError
from precrop.export import export_onnx, front
from precrop.export.backends import BACKENDS, BuildSettings, RunSettings, backend_for_format, tensorrt
from precrop.export.calibration import quantize

try:
    import tensorrt_rtx as rtx
except ImportError as missing:
    rtx, why = None, f"TensorRT for RTX cannot be imported ({missing}); see docs/EXPORT.md"
else:
    why = ""
MAGIC = b"vtrt"  # what TensorRT's engines begin with

needs_rtx = pytest.mark.skipif(rtx is None, reason=why)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture
def rtx_alone(monkeypatch):
    """As if the main package were not installed."""
    monkeypatch.setitem(sys.modules, "tensorrt", None)


def export(net, path, precision="fp32", **settings):
    data = [images(8, seed=5)] if precision == "int8" else None
    return precrop.export(net, path, precision=precision, input_shape=SHAPE, calibration=data, **settings)


@needs_rtx
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x1_0"])
def test_dense_and_cropped_networks_build_in_every_precision(tmp_path, rtx_alone, name):
    shape = (3, 64, 64)
    dense = getattr(torchvision.models, name)()
    networks = {"dense": dense, "small": precrop.precrop(dense, 0.5, input_shape=shape)}
    params, sizes = {}, {}
    for kind, network in networks.items():
        params[kind] = sum(weight.numel() for weight in network.parameters())
        network = warmed(network, shape, batch=8)
        paths = {precision: tmp_path / f"{kind}-{precision}.onnx" for precision in ("fp32", "fp16", "int8")}
        export_onnx(network, paths["fp32"], shape)
        export_onnx(network, paths["fp16"], shape, precision="fp16")
        quantize(paths["fp32"], paths["int8"], [images(8, shape).numpy()])
        for precision, path in paths.items():
            engine = path.with_suffix(".plan")
            facts = tensorrt.build(path, engine, BuildSettings(shape, (1, 2, 8), precision))
            assert facts["package"] == "tensorrt_rtx" and facts["package_version"] == rtx.__version__
            assert facts["profile"] == {"min": 1, "opt": 2, "max": 8}
            content = engine.read_bytes()
            assert content[:4] == MAGIC
            sizes[kind, precision] = len(content)
    # An engine holds its weights and its kernels: what the crop takes away are weights, of 4, 2 and 1 bytes.
    saved = params["dense"] - params["small"]
    for precision, width_bytes, rel in (("fp32", 4, 0.03), ("fp16", 2, 0.03), ("int8", 1, 0.25)):
        assert (sizes["dense", precision] - sizes["small", precision]) / saved == pytest.approx(width_bytes, rel=rel)
    halved = sizes["dense", "fp32"] - sizes["dense", "fp16"]
    assert halved / params["dense"] == pytest.approx(2, rel=0.03)


@needs_rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_an_engine_and_its_sidecar(tmp_path, rtx_alone, precision):
    done = export(small_net(), tmp_path / "net.plan", precision, batch=(4, 1, 16))
    assert (done.format, done.precision, done.batch) == ("tensorrt", precision, (1, 4, 16))
    assert done.path.read_bytes()[:4] == MAGIC
    facts = json.loads(done.sidecar.read_text())
    built = facts["build"]
    assert built["package"] == "tensorrt_rtx" and built["package_version"] == rtx.__version__
    assert built["profile"] == {"min": 1, "opt": 4, "max": 16}
    assert built["timing_cache"] is None
    assert set(CONVOLUTIONS) <= set(facts["modules"].values())
    assert facts["versions"]["tensorrt-rtx-cu13"] == rtx.__version__
    if not torch.cuda.is_available():
        assert done.checked_in == "ONNX Runtime, on the graph that it was built from: no GPU here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.plan", "net.plan.json"]


@needs_rtx
def test_an_operator_that_the_parser_refuses(tmp_path, rtx_alone):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Identity(), warmed(Rounded()))
    (tmp_path / "net.plan").write_bytes(b"the one before")
    with pytest.raises(
        ExportError, match=r"operator BitwiseAnd \(node \S+ of layer 1\): UNSUPPORTED_NODE: .*ONNX Runtime"
    ):
        export(net, tmp_path / "net.plan")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the one before"]
    export(net, tmp_path / "net.onnx")  # which runs there, as the message says


@needs_rtx
def test_a_constant_that_the_parser_refuses_is_told_by_the_operator_that_takes_it(tmp_path, rtx_alone):
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net()

        def forward(self, batch):
            return self.net(torch.bitwise_left_shift(batch.to(torch.int32), 1).float())

    with pytest.raises(
        ExportError, match=r"operator BitShift \(node .*unsupported|operator BitShift .*import initializer"
    ):
        export(Shifted().eval(), tmp_path / "net.plan")


@needs_rtx
def test_what_the_builder_refuses(tmp_path, rtx_alone, monkeypatch):
    path = export_onnx(small_net(), tmp_path / "net.onnx", SHAPE).path
    with pytest.raises(ExportError, match=r"TensorRT cannot build the engine: .*\binput\b"):
        tensorrt.build(path, tmp_path / "net.plan", BuildSettings((4, 16, 16), (1,)))
    assert not (tmp_path / "net.plan").exists()


@needs_rtx
def test_a_full_disk_leaves_the_older_engine(tmp_path, rtx_alone, monkeypatch):
    export(small_net(), tmp_path / "net.plan")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(front, "backend_for_format", lambda *args: with_a_full_disk(backend_for_format(*args)))
    with pytest.raises(PrecropError, match=r"cannot write .*net\.plan: File too large"):
        export(small_net(8), tmp_path / "net.plan")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


KILLED = """
import os, pathlib, signal, sys
sys.modules["tensorrt"] = None
sys.path.insert(0, sys.argv[2])
import precrop
from support_export import SHAPE, small_net
write = pathlib.Path.write_bytes

def half(path, content):
    if not path.name.startswith(".net.plan."):
        return write(path, content)
    write(path, content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

pathlib.Path.write_bytes = half
precrop.export(small_net(8), sys.argv[1], input_shape=SHAPE)
"""


@needs_rtx
def test_a_killed_build_leaves_the_older_engine(tmp_path, rtx_alone):
    export(small_net(), tmp_path / "net.plan")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    support = os.path.dirname(sys.modules["support_export"].__file__)
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "net.plan", support], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (part,) = set(after) - set(before)
    assert part.startswith(".net.plan.") and part.endswith(".part")
    assert {name: after[name] for name in before} == before


def run(path, batch=1):
    with BACKENDS["tensorrt"].runner(path, images(batch).numpy(), RunSettings(device="cuda")) as runner:
        runner.run()
        return runner.output()


@needs_rtx
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no NVIDIA GPU: engines are built here, and none can be loaded"
)
def test_an_engine_gives_pytorchs_outputs(tmp_path, rtx_alone):
    net = small_net()
    path = export(net, tmp_path / "net.plan", batch=(1, 4)).path
    assert abs(run(path, 3) - net(images(3)).detach().numpy()).max() < 1e-3
    with pytest.raises(ExportError, match=r"does not take images \(5, 3, 16, 16\); it was built for \(1, 3, 16, 16\)"):
        run(path, 5)


@needs_rtx
@without_gpu
def test_loading_without_a_gpu_is_said(tmp_path, rtx_alone):
    path = export(small_net(), tmp_path / "net.plan").path
    with pytest.raises(ExportError, match=r"cannot load the engine .*net\.plan: PyTorch finds no NVIDIA GPU here"):
        run(path)


@needs_rtx
def test_files_that_are_no_engines(tmp_path, rtx_alone):
    with pytest.raises(ExportError, match=r"none\.plan: no such file"):
        run(tmp_path / "none.plan")
    path = tmp_path / "net.plan"
    path.write_bytes(b"no engine" * 100)
    for sidecar in ("", "{", "[]", "{}"):
        path.with_name("net.plan.json").write_text(sidecar)
        with pytest.raises(ExportError, match=r"cannot load the engine .*magic.*It is damaged, or of another version"):
            run(path)


@needs_rtx
def test_an_engine_of_another_version_is_said(tmp_path, rtx_alone):
    done = export(small_net(), tmp_path / "net.plan")
    facts = json.loads(done.sidecar.read_text())
    facts["build"]["package_version"] = "1.2.3.4"
    done.sidecar.write_text(json.dumps(facts))
    with pytest.raises(
        ExportError,
        match=rf"built by tensorrt_rtx 1\.2\.3\.4, and this is version {rtx.__version__}.*Export the network",
    ):
        run(done.path)


@needs_rtx
def test_an_engine_of_another_gpu_is_said(tmp_path, rtx_alone, monkeypatch):
    done = export(small_net(), tmp_path / "net.plan")
    facts = json.loads(done.sidecar.read_text())
    facts["gpu"] = {"name": "NVIDIA L4"}
    done.sidecar.write_text(json.dumps(facts))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(rtx.Runtime, "deserialize_cuda_engine", lambda self, content: None)
    with pytest.raises(ExportError, match=r"on NVIDIA L4, and this is NVIDIA H200.*Export the network again here"):
        run(done.path)


@needs_rtx
def test_an_engine_of_a_package_that_is_not_installed(tmp_path, rtx_alone):
    done = export(small_net(), tmp_path / "net.plan")
    done.sidecar.write_text(done.sidecar.read_text().replace('"tensorrt_rtx"', '"tensorrt"'))
    with pytest.raises(MissingExtraError, match=r"cannot import tensorrt .*pip install 'precrop\[tensorrt\]'"):
        run(done.path)


def test_without_tensorrt_the_error_names_the_extras(tmp_path, monkeypatch):
    for name in tensorrt.PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MissingExtraError, match=r"tensorrt .*tensorrt_rtx .*'precrop\[tensorrt\]'.*'precrop\[tensorrt-rtx\]'"
    ):
        export(small_net(), tmp_path / "net.plan")

import csv
import io
import json

import numpy as np
import onnx
import pytest
import torch
from support_export import CONVOLUTIONS, SHAPE, SmallNet, images, needs_openvino, small_net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import precrop
from precrop.errors import ExportError, MissingExtraError
from precrop.export import bench as module
from precrop.export import export_onnx
from precrop.export.backends import BACKENDS, RunSettings
from precrop.export.bench import bench

QUICK = {"rounds": 3, "warmup": 1, "input_shape": SHAPE}
OPENVINO = pytest.param("openvino", marks=needs_openvino)
HERE = ["onnxruntime", OPENVINO, "torch", "torch-compile"]


@pytest.fixture
def pair():
    """A network and its crop."""
    net = small_net()
    torch.manual_seed(1)
    return {"dense": net, "small": precrop.precrop(SmallNet(), 0.5, input_shape=SHAPE)}


@pytest.mark.parametrize("backend", HERE)
def test_a_row_for_each_network_and_batch_size(pair, backend):
    threads, training = torch.get_num_threads(), pair["dense"].train().training
    result = bench(pair, backend, batch=(4, 1), threads=2, **QUICK)
    assert [(row.name, row.batch) for row in result.rows] == [("dense", 1), ("small", 1), ("dense", 4), ("small", 4)]
    plan = pair["small"].crop_plan
    assert {row.macs for row in result.rows if row.name == "small"} == {plan.cropped.macs}
    for row in result.rows:
        assert row.macs_ratio == (1 if row.name == "dense" else plan.macs_ratio)
        assert 0 < row.median_ms <= row.p99_ms
        assert row.images_per_s == pytest.approx(1e3 * row.batch / row.median_ms)
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.realised_share == pytest.approx(row.speedup * row.macs_ratio)
        assert row.name == "small" or row.speedup == 1
    assert (result.backend, result.threads, result.device, result.rounds) == (backend, 2, "cpu", 3)
    assert result.machine["processor"] and result.machine["gpu"] is None
    assert torch.get_num_threads() == threads
    assert pair["dense"].training == training


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_every_precision_that_a_backend_has_gives_pytorchs_outputs(tmp_path, backend, precision):
    row, net, batch = BACKENDS[backend], small_net(), images(3)
    settings = {"precision": precision, "calibration": [images(8, seed=5)] if precision == "int8" else None}
    if precision not in row.runs:
        with pytest.raises(ExportError, match=rf"the backend {backend} has no {precision}; expected one of fp32, fp16"):
            bench({"net": net}, backend, **settings, **QUICK)
        return
    source = net
    if row.build is not None:
        source = export_onnx(net, tmp_path / "net.onnx", SHAPE, **settings).path
    expected = net(batch).detach().numpy()
    with row.runner(source, batch.numpy(), RunSettings(1, "cpu", precision)) as runner:
        runner.run()
        got = runner.output()
        assert runner.time_ms() > 0
    assert got.dtype == np.float32
    allowed = {"fp32": 1e-6, "fp16": 1e-3, "bf16": 1e-2, "int8": 3e-2}[precision]
    assert np.abs(got - expected).max() <= allowed * np.abs(expected).max()


def test_figures_are_those_of_the_times(pair, monkeypatch):
    taken = np.array([[4.0, 1.0], [6.0, 3.0], [8.0, 2.0], [8.0, 8.0]])
    monkeypatch.setattr(module, "interleaved_ms", lambda *_: taken)
    dense, small = bench(pair, batch=2, **QUICK).rows
    assert (dense.median_ms, small.median_ms) == (7.0, 2.5)
    assert small.p99_ms == pytest.approx(3 + 0.97 * 5)
    assert small.images_per_s == 800
    assert small.speedup == 3.0  # of 4, 2, 4 and 1
    assert (small.speedup_low, small.speedup_high) == pytest.approx((1.15, 4))
    assert small.realised_share == pytest.approx(3 * pair["small"].crop_plan.macs_ratio)
    assert (dense.speedup, dense.realised_share) == (1, 1)


@pytest.mark.parametrize("backend", ["onnxruntime", OPENVINO])
def test_an_onnx_file_is_measured_beside_a_network(pair, tmp_path, backend):
    path = export_onnx(pair["small"], tmp_path / "small.onnx", SHAPE).path
    rows = bench({"dense": pair["dense"], "file": path}, backend, **QUICK).rows
    assert rows[1].macs == pair["small"].crop_plan.cropped.macs
    assert 0 < rows[1].macs_ratio < 0.6


@needs_openvino
def test_openvino_computes_a_float32_file_in_what_it_is_asked_to(pair, tmp_path):
    path = export_onnx(pair["small"], tmp_path / "small.onnx", SHAPE).path
    for precision in ("fp16", "bf16"):
        assert bench({"file": path}, "openvino", precision=precision, **QUICK).precision == precision
    with pytest.raises(ExportError, match=r"small\.onnx computes in fp32, and the precision is int8"):
        bench({"file": path}, "openvino", precision="int8", calibration=[images(4)], **QUICK)


@pytest.mark.parametrize("backend", ["onnxruntime", OPENVINO, "torch"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_layers_are_those_of_the_network(pair, backend, precision):
    if precision not in BACKENDS[backend].runs:
        pytest.skip("has no int8")
    data = [images(4)] if precision == "int8" else None
    result = bench(pair, backend, layers=True, precision=precision, calibration=data, **QUICK)
    assert list(result.layers) == list(pair)
    for found in result.layers.values():
        assert sum(layer.ms for layer in found) > 0
        named = {layer.layer for layer in found}
        assert set(CONVOLUTIONS) <= named
        assert named <= {"", *dict(SmallNet().named_modules())} | {"relu", "mean"}


def test_csv_and_json_hold_the_table(pair):
    result = bench(pair, batch=(1, 2), layers=True, **QUICK)
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    record = json.loads(result.to_json())
    assert len(lines) == len(record["rows"]) == 4
    for line, entry, row in zip(lines, record["rows"], result.rows, strict=True):
        for key in ("name", "batch", "macs", "median_ms", "speedup", "realised_share"):
            assert entry[key] == getattr(row, key)
            assert type(getattr(row, key))(line[key]) == getattr(row, key)
    assert record["backend"] == "onnxruntime"
    assert record["machine"]["versions"]["torch"] == result.machine["versions"]["torch"]
    assert record["layers"]["small"][0]["ms"] == result.layers["small"][0].ms


def test_calibration_is_read_once(monkeypatch, pair):
    asked = []
    monkeypatch.setattr(module, "export_onnx", lambda *args, calibration, **_: asked.append(calibration))
    shuffled = DataLoader(TensorDataset(images(16)), batch_size=8, shuffle=True)
    with pytest.raises(ExportError, match="cannot load"):  # nothing was exported
        bench(pair, precision="int8", calibration=shuffled, **QUICK)
    assert len(asked) == 2 and asked[0] is asked[1]


def test_a_network_is_compiled_however_many_came_before():
    """The compiler gives up on the ninth network of a class, and would run it uncompiled."""
    from torch._dynamo.utils import counters

    networks = [nn.Sequential(nn.Linear(4, width)) for width in (2, 3, 5)]
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=1):
        for network in networks:
            with BACKENDS["torch-compile"].runner(network, np.ones((2, 4), np.float32)) as runner:
                for _ in range(3):
                    runner.run()
                np.testing.assert_allclose(runner.output(), network(torch.ones(2, 4)).detach(), rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == 3


def test_progress_is_told(pair):
    lines = []
    bench(pair, progress=lines.append, **QUICK)
    assert lines == ["preparing dense", "preparing small", "loading at batch 1"] + [
        f"batch 1: round {done} of 4" for done in range(1, 5)
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"backend": "tflite"},
            "unknown backend 'tflite'; expected one of onnxruntime, openvino, torch, torch-compile",
        ),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"precision": "bf16"}, "the backend onnxruntime has no bf16; expected one of fp32, fp16, int8"),
        ({"precision": "int8"}, "int8 needs data"),
        ({"calibration": [1]}, "calibration is for int8, and the precision is fp32"),
        ({"batch": 0}, "batch is 0"),
        ({"threads": 0}, "threads=0; expected at least 1"),
        ({"rounds": 0}, "rounds=0; expected at least 1"),
        ({"warmup": -1}, "warmup=-1; expected at least 0"),
        ({"device": "cuda"}, "the backend onnxruntime runs on cpu, got 'cuda'"),
        ({"networks": {}}, "there is nothing to measure"),
        ({"backend": "torch-compile", "layers": True}, "bear no names; ask for the layers of torch"),
        ({"networks": {"a": "none.onnx"}}, "none.onnx: no such file"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ExportError, match=message):
        bench(**({"networks": {"net": small_net()}} | QUICK | settings))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(("backend", "device"), [("tensorrt", None), ("torch", "cuda"), ("torch-compile", "cuda")])
def test_a_gpu_that_is_not_there_is_said(backend, device):
    with pytest.raises(ExportError, match=rf"the backend {backend} is to run on an NVIDIA GPU, and PyTorch finds none"):
        bench({"net": small_net()}, backend, device=device, **QUICK)


def test_networks_of_different_shapes_are_refused(tmp_path):
    path = export_onnx(small_net(), tmp_path / "net.onnx", SHAPE).path
    with pytest.raises(ExportError, match=r"different shapes \(a 3x16x16, b 3x8x8\); expected one shape"):
        bench({"a": path, "b": small_net()}, rounds=1, warmup=0, input_shape=(3, 8, 8))


def test_files_that_a_backend_cannot_run_are_refused(tmp_path):
    path = export_onnx(small_net(), tmp_path / "half.onnx", SHAPE, precision="fp16").path
    with pytest.raises(
        ExportError, match=r"half\.onnx computes in fp16, and the precision is fp32. Pass precision='fp16'"
    ):
        bench({"net": path}, **QUICK)
    assert bench({"net": path}, precision="fp16", **QUICK).rows[0].median_ms > 0
    for backend in ("torch", "torch-compile"):
        with pytest.raises(
            ExportError, match=r"half\.onnx is an ONNX file, which .* does not run. Pass its checkpoint"
        ):
            bench({"net": path}, backend, **QUICK)
    graph = onnx.load(path)
    graph.graph.node[-1].domain = "com.microsoft"
    graph.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(graph, path)
    with pytest.raises(ExportError, match=r"ONNX Runtime cannot load .*half\.onnx: .*com\.microsoft:Cast"):
        bench({"net": path}, precision="fp16", **QUICK)


def test_without_an_engine_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r"openvino.*pip install 'precrop\[openvino\]'"):
        bench({"net": small_net()}, "openvino", **QUICK)

import io
import struct

import pytest
from rich.console import Console

from precrop.errors import MissingExtraError, PrecropError
from precrop.export.backends import LayerTime
from precrop.export.bench import BenchResult, BenchRow
from precrop.export.report import bench_table, compared_table, layers_table, machine_line, plot_bench

MACHINE = {"processor": "a CPU", "gpu": None, "versions": {"torch": "2.9", "onnxruntime": "1.20", "openvino": "2026.4"}}


def result(**settings):
    rows = (
        BenchRow("torchvision/resnet18", 8, 1_000_000, 1.0, 4.0, 5.0, 2000.0, 1.0, 1.0, 1.0, 1.0),
        BenchRow("small.safetensors", 8, 400_000, 0.4, 2.0, 3.0, 4000.0, 2.0, 1.9, 2.1, 0.8),
    )
    fields = dict(
        rows=rows,
        backend="onnxruntime",
        precision="fp32",
        threads=2,
        device="cpu",
        rounds=50,
        warmup=5,
        machine=MACHINE,
    )
    return BenchResult(**fields | {"layers": {}} | settings)


def printed(table):
    text = io.StringIO()
    Console(width=140, file=text).print(table)
    return [line.split() for line in text.getvalue().splitlines()]


def test_the_table_has_the_figures():
    lines = printed(bench_table(result()))
    assert lines[4][:2] == ["small.safetensors", "8"]
    assert lines[4][3:] == ["0.400", "2.000", "3.000", "4,000.0", "2.00×", "1.90-2.10", "0.80"]


def test_the_line_says_what_was_measured_on():
    assert machine_line(result()) == "onnxruntime, fp32, 50 rounds; a CPU, 2 threads; torch 2.9, onnxruntime 1.20"
    gpu = {"name": "H200", "driver": "570", "clocks.sm": "1980 MHz", "clocks.max.sm": "1980 MHz"}
    assert "; H200, driver 570, SM clock 1980 MHz of 1980 MHz;" in machine_line(result(machine=MACHINE | {"gpu": gpu}))


def test_layers_slowest_first_with_their_share():
    layers = [LayerTime("a", "Conv", 1.0, "stem"), LayerTime("b", "Gemm", 3.0, "head")]
    lines = printed(layers_table(layers))
    assert lines[3] == ["b", "head", "Gemm", "3.0000", "75.0%"]
    assert lines[4] == ["a", "stem", "Conv", "1.0000", "25.0%"]


def test_layers_of_two_networks_meet_by_module():
    dense = [LayerTime("a", "", 1.0, "stem"), LayerTime("b", "", 2.0, "stem"), LayerTime("c", "", 4.0)]
    lines = printed(compared_table({"dense": dense, "small": [LayerTime("x", "", 0.5, "stem")]}))
    assert lines[3] == ["stem", "3.0000", "0.5000"]
    assert lines[4] == ["other", "4.0000", "-"]


def test_the_chart_names_networks_and_what_the_macs_promise(tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    plot_bench(result(), tmp_path / "chart.svg")
    svg = (tmp_path / "chart.svg").read_text()
    for text in (
        "resnet18",
        "small",
        "batch 8",
        "speed-up over resnet18",
        "what the MACs promise",
        "onnxruntime, fp32",
    ):
        assert text in svg
    plot_bench(result(), tmp_path / "chart.png")
    header = (tmp_path / "chart.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n" and min(struct.unpack(">II", header[16:])) > 400


def test_a_chart_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(PrecropError, match=r"cannot write .*none/chart\.png: No such file"):
        plot_bench(result(), tmp_path / "none" / "chart.png")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'precrop\[plot\]'"):
        plot_bench(result(), tmp_path / "chart.png")

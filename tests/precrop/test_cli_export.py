import csv
import json

import pytest
import torch
from support_cli import run
from support_export import SmallNet, images, needs_openvino, small_net

import precrop
from precrop.export import export_onnx

SMALL = ["--input-shape", "3,16,16"]
QUICK = ["--rounds", "3", "--warmup", "1"]
DIGITS = ["--model-arg", "in_chans=1", "--model-arg", "num_classes=10", "--input-shape", "1,8,8"]


@pytest.fixture
def factory(tmp_path):
    """A MODEL of one's own."""
    (tmp_path / "net.py").write_text("from support_export import SmallNet\n")
    return f"{tmp_path / 'net.py'}:SmallNet"


@pytest.fixture
def small(tmp_path):
    """A crop of it, in ONNX."""
    torch.manual_seed(0)
    crop = precrop.precrop(SmallNet(), 0.5, input_shape=(3, 16, 16))
    return export_onnx(crop.eval(), tmp_path / "small.onnx", (3, 16, 16)).path


@pytest.mark.parametrize("command", ["export", "bench"])
def test_help_tells_every_choice(capsys, command):
    status, out, _ = run(capsys, command, "--help")
    assert not status
    words = {
        "export": ["onnx, tensorrt or openvino", "--output", "--precision", "--batch", "--calibration", "1,8,32"],
        "bench": ["onnxruntime, openvino, torch, torch-compile or tensorrt", "--threads", "--csv", "--json", "--plot"],
    }
    for word in (*words[command], "fp32, fp16, bf16 or int8", "--layers", "--input-shape"):
        assert word in " ".join(out.replace("│", " ").split())


@pytest.mark.parametrize("suffix", [".onnx", pytest.param(".xml", marks=needs_openvino)])
def test_export_writes_the_file_and_says_how_far_it_is_off(capsys, tmp_path, factory, suffix):
    path = tmp_path / f"net{suffix}"
    status, out, _ = run(capsys, "export", factory, "-o", path, *SMALL, "--precision", "fp16", "--batch", "1,4")
    assert not status
    facts = json.loads((tmp_path / f"net{suffix}.json").read_text())
    assert f"{facts['size_bytes']:,} bytes), {facts['format']} fp16, described in net{suffix}.json" in " ".join(
        out.split()
    )
    assert f"largest error against PyTorch: {facts['parity']['max_abs_error']:.2e}, outputs up to" in out
    assert facts["input"]["batch"] == [1, 4]
    assert facts["precision"] == "fp16"


def test_export_takes_its_calibration_from_a_data_set(capsys, tmp_path):
    path = tmp_path / "net.onnx"
    args = ["export", "precrop/resnet20", "-o", path, "--precision", "int8", "--calibration", "digits", *DIGITS]
    status, out, _ = run(capsys, *args, "--layers")
    assert not status
    facts = json.loads((tmp_path / "net.onnx.json").read_text())
    assert facts["parity"]["on"] == "calibration images"
    assert facts["input"]["image"] == [1, 8, 8]
    assert "layers at batch 1, one thread, in ONNX Runtime" in out
    assert "stage3.2.conv2" in out


def test_layers_of_an_engine_that_cannot_run_here_are_explained(capsys, tmp_path, factory):
    path = tmp_path / "net.onnx"
    status, out, _ = run(capsys, "export", factory, "-o", path, *SMALL, "--precision", "bf16", "--layers")
    assert not status
    assert "no times by layer: ONNX Runtime has no bf16" in out
    assert path.exists()


def test_bench_prints_and_writes_the_same_figures(capsys, tmp_path, factory, small):
    files = {kind: tmp_path / f"bench.{kind}" for kind in ("csv", "json", "png")}
    written = ["--csv", files["csv"], "--json", files["json"], "--plot", files["png"]]
    status, out, _ = run(capsys, "bench", factory, small, *SMALL, *QUICK, "--batch", "2,1", *written)
    assert not status
    rows = list(csv.DictReader(files["csv"].open()))
    record = json.loads(files["json"].read_text())
    assert [(row["name"], row["batch"]) for row in rows] == [(n, b) for b in "12" for n in (factory, str(small))]
    assert [row["median_ms"] for row in record["rows"]] == [float(row["median_ms"]) for row in rows]
    for row in record["rows"]:
        for shown in (f"{row['median_ms']:.3f}", f"{row['macs_ratio']:.3f}", f"{row['speedup']:.2f}×"):
            assert shown in out
    assert f"{record['machine']['processor']}, 1 thread;" in out
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    for path in files.values():
        assert f"saved {path}" in out.replace("\n", "")


def test_bench_compares_layers_by_module(capsys, factory, small):
    status, out, _ = run(capsys, "bench", factory, small, *SMALL, *QUICK, "--layers")
    assert not status
    (line,) = (line for line in out.splitlines() if line.strip().startswith("depthwise"))
    assert len(line.split()) == 3 and all(float(ms) > 0 for ms in line.split()[1:])


def test_bench_tells_a_network_from_itself(capsys, factory):
    status, out, _ = run(capsys, "bench", factory, factory, *SMALL, *QUICK, "--backend", "torch")
    assert not status
    assert ":SmallNet #2" in out.replace("\n", "")


def test_bench_runs_a_checkpoint_in_int8(capsys, tmp_path):
    dense = precrop.create_model("precrop/resnet20", num_classes=10, in_chans=1)
    precrop.save(precrop.precrop(dense, 0.25, input_shape=(1, 8, 8)), tmp_path / "small.safetensors")
    args = ["--precision", "int8", "--calibration", "digits", "--input-shape", "1,8,8", *QUICK]
    status, out, _ = run(capsys, "bench", tmp_path / "small.safetensors", *args)
    assert not status
    assert "onnxruntime, int8, 3 rounds" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["export", "NET", "-o", "net.pt"], "cannot tell the format from the suffix '.pt'"),
        (["export", "NET", "-o", "net.onnx", "--to", "tflite"], "unknown format 'tflite'"),
        (["export", "NET", "-o", "net.onnx", "--to", "tensorrt"], "a file of tensorrt ends in .plan or .engine"),
        (["export", "NET", "-o", "none/net.onnx"], "does not exist. Create it first"),
        (["export", "NET", "-o", "net.onnx", "--precision", "fp8"], "unknown precision 'fp8'"),
        (["export", "NET", "-o", "net.onnx", "--precision", "int8"], "on the command line --calibration"),
        (["export", "NET", "-o", "net.onnx", "--calibration", "digits"], "calibration is for int8"),
        (
            ["export", "NET", "-o", "net.onnx", "--precision", "int8", "--calibration", "digist"],
            "--calibration name: Value error, expected one of 'digits'",
        ),
        (
            ["export", "NET", "-o", "net.onnx", "--precision", "int8", "--calibration", "cifar10"],
            "--data-root",
        ),
        (["export", "NET", "-o", "net.onnx", "--batch", "1;8"], "--batch is '1;8'; expected numbers such as 1,8,32"),
        (["export", "NET", "-o", "net.onnx", "--batch", "0"], "batch is (0,)"),
        (["export", "precrop/resnet21", "-o", "net.onnx"], "precrop/resnet20"),
        (["bench", "NET", "--backend", "tflite"], "unknown backend 'tflite'"),
        (["bench", "NET", "--precision", "bf16"], "the backend onnxruntime has no bf16"),
        (["bench", "NET", "--precision", "int8"], "int8 needs data"),
        (["bench", "NET", "--threads", "0"], "threads=0; expected at least 1"),
        (["bench", "NET", "--device", "cuda"], "runs on cpu, got 'cuda'"),
        (["bench", "NET", "--batch", "a"], "--batch is 'a'"),
        (["bench", "NET", "--csv", "bench.txt"], "expected a name ending in .csv"),
        (["bench", "NET", "--plot", "bench.pdf"], "expected a name ending in .png or .svg"),
        (["bench", "none.onnx"], "none.onnx: no such file"),
        (["bench", "none.safetensors"], "none.safetensors"),
        (["bench", "net.plan"], "net.plan is an engine"),
    ],
)
def test_errors_are_one_message(capsys, tmp_path, monkeypatch, factory, args, message):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *(factory if arg == "NET" else arg for arg in args), *SMALL)
    assert status == 1
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["net.py"]


def test_a_network_alone_is_its_own_reference(capsys, tmp_path):
    path = export_onnx(small_net(), tmp_path / "net.onnx", images(1).shape[1:]).path
    status, out, _ = run(capsys, "bench", path, *QUICK)
    assert not status
    assert out.count("1.00×") == 1

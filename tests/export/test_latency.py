import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from precrop.errors import MissingExtraError, PrecropError
from precrop.export import export_onnx, latency, measure_latency


class FakeClock:
    def __init__(self):
        self.now_s = 0.0

    def perf_counter(self):
        return self.now_s


class FakeSession:
    """Takes the time it is told to, by the fake clock, and notes that it ran."""

    def __init__(self, name, clock, times_ms, ran):
        self.name, self.clock, self.times_ms, self.ran = name, clock, iter(times_ms), ran

    def get_inputs(self):
        return [SimpleNamespace(name="input", shape=["batch", 3, 4, 4])]

    def run(self, outputs, feed):
        assert feed["input"].shape == (2, 3, 4, 4)
        self.ran.append(self.name)
        self.clock.now_s += next(self.times_ms) / 1e3


def test_networks_run_in_turns_and_the_warm_up_is_not_counted(monkeypatch):
    clock, ran = FakeClock(), []
    times_ms = {"dense": [900, 10, 20, 90], "cropped": [900, 5, 6, 4], "uniform": [900, 7, 7, 7]}
    monkeypatch.setattr(latency, "time", clock)
    monkeypatch.setattr(latency, "_session", lambda path, threads: FakeSession(path, clock, times_ms[path], ran))
    timed = measure_latency({name: name for name in times_ms}, batch=2, warmup=1, repeats=3)

    assert list(timed) == list(times_ms)
    assert timed["dense"].median_ms == pytest.approx(20)
    assert timed["dense"].p99_ms == pytest.approx(20 + 0.98 * 70)
    assert timed["cropped"].median_ms == pytest.approx(5)
    assert timed["uniform"].median_ms == pytest.approx(7)
    rounds = [ran[start : start + 3] for start in range(0, 12, 3)]
    assert all(sorted(names) == sorted(times_ms) for names in rounds)
    assert [names[0] for names in rounds[1:]] == ["dense", "cropped", "uniform"]


def test_record_of_a_real_file(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    path = export_onnx(net, tmp_path / "net.onnx", (1, 8, 8)).path
    record = measure_latency({"net": path}, batch=3, threads=2, warmup=1, repeats=5)["net"]
    assert (record.batch, record.threads, record.repeats) == (3, 2, 5)
    assert 0 < record.median_ms <= record.p99_ms


def test_bad_input_is_named(tmp_path, monkeypatch):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a network")
    with pytest.raises(PrecropError, match=r"ONNX Runtime cannot load .*broken\.onnx"):
        measure_latency({"net": broken})
    with pytest.raises(PrecropError, match="repeats=0; expected at least 1"):
        measure_latency({"net": broken}, repeats=0)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'precrop\[onnx\]'"):
        measure_latency({"net": broken})

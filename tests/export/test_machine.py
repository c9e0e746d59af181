import platform
import subprocess

import pytest
import torch

from precrop.export import machine


def test_versions_are_of_what_is_installed():
    found = machine.versions()
    assert found["python"] == platform.python_version()
    assert torch.__version__.startswith(found["torch"].partition("+")[0])
    assert all(found.values())
    assert machine.processor()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_there_is_none():
    assert machine.gpu() is None


def test_a_gpu_is_described_with_driver_and_clocks(monkeypatch):
    line = "NVIDIA H200, 570.86, 1980 MHz, 3201 MHz, 1980 MHz, 700.00 W, 9.0\n"
    asked = []

    def smi(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, line, "")

    monkeypatch.setattr(machine.subprocess, "run", smi)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    found = machine.gpu()
    assert (found["name"], found["compute_capability"], found["driver"]) == ("NVIDIA H200", "9.0", "570.86")
    assert "clocks.sm" not in found
    assert machine.gpu(clocks=True)["clocks.max.sm"] == "1980 MHz"
    assert asked[0] == ["nvidia-smi", f"--query-gpu={','.join(machine.QUERY)}", "--format=csv,noheader"]


def test_without_nvidia_smi_only_the_driver_is_unknown(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(machine.subprocess, "run", absent)
    assert machine.nvidia_smi() == {}

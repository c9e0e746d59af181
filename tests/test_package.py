"""The package as it is installed: what a wheel holds, and what imports without extras."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
for name in ("lightning", "sklearn", "onnx", "onnxscript", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx"):
    sys.modules[name] = None
import precrop
# Where Lightning's classes are subclassed; loaded when a training starts.
needs_lightning = {"precrop.recipes.training", "precrop.recipes.progress"}
seen = 0
for stage in ("", ".scoring", ".cropping", ".recipes", ".recipes.data", ".export", ".export.backends"):
    package = importlib.import_module("precrop" + stage)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name in needs_lightning or module.name.split(".")[1] in ("setup", "tests", "benchmarks", "__main__"):
            continue
        importlib.import_module(module.name)
        seen += 1
print(seen)
"""


def test_every_module_imports_without_extras():
    result = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, cwd=ROOT.parent)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30


def test_importing_precrop_is_light():
    code = "import sys, precrop; print([m for m in ('timm', 'scipy', 'lightning', 'onnx', 'rich') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_wheel_holds_one_package(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"precrop"}
    for name in ("precrop/py.typed", "precrop/cropping/trace.py", "precrop/recipes/configs/digits.yaml"):
        assert name in names

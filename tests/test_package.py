"""The package as it is installed: what a wheel holds, and what imports without extras."""

import os
import pickle
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
        if module.name in needs_lightning or module.name == "precrop.__main__":
            continue
        importlib.import_module(module.name)
        seen += 1
print(seen)
"""


def test_every_module_imports_without_extras():
    result = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, cwd=ROOT.parent)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30


# Every module of the package, however it is found, and the files that were imported under more than one name.
UNDER_ONE_NAME = """
import importlib, pkgutil, sys
from collections import defaultdict
from pathlib import Path
import precrop
names = set()
for stage in ("", ".scoring", ".cropping", ".recipes", ".export"):
    package = importlib.import_module("precrop" + stage)
    names |= {m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")}
for name in names - {"precrop.__main__"}:
    importlib.import_module(name)
root = Path(precrop.__file__).parents[1]
found = defaultdict(set)
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    # A virtual environment may lie in the checkout, and is none of it.
    if file and Path(file).resolve().is_relative_to(root) and "site-packages" not in file:
        found[str(Path(file).resolve())].add(name)
assert len(found) > 100, len(found)
print([twice for twice in found.values() if len(twice) > 1])
"""


def in_checkout(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, which finds the package by the working directory alone."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **settings}
    )


def test_every_file_is_imported_under_one_name():
    pytest.importorskip("lightning")
    result = in_checkout(UNDER_ONE_NAME)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


# Names that are none, and what is said of each.
NAMES_THAT_ARE_NONE = """
import importlib
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error)
    else:
        print(name, "was imported")
"""


def test_what_lies_beside_the_package_is_not_in_it():
    names = [f"precrop.{name}" for name in ("precrop", "setup", "tests", "benchmarks", "docs", "recipes.precrop")]
    result = in_checkout(NAMES_THAT_ARE_NONE.format(names=names))
    assert result.stdout.splitlines() == [f"No module named {name!r}" for name in names]


def test_a_stage_has_no_name_of_its_own():
    names = ["scoring", "cropping", "recipes", "export", "cropping.trace", "export.backends"]
    result = in_checkout(NAMES_THAT_ARE_NONE.format(names=names))
    stages = [name.partition(".")[0] for name in names]
    assert result.stdout.splitlines() == [f"{stage} is a part of precrop: import precrop.{stage}" for stage in stages]


def test_a_checkout_finds_its_own_stages():
    """Whatever else is installed; also in a process that starts anew, and unpickles."""
    code = f"""
import pickle, precrop, precrop.cropping.trace, precrop.recipes, precrop.export.bench, precrop.scoring.run
rows = pickle.loads({pickle.dumps(_a_scorer())!r})
assert rows is precrop.scoring.SCORERS["synexp"].layers
for module in (precrop, precrop.cropping.trace, precrop.recipes, precrop.export.bench, precrop.scoring.run):
    print(module.__file__)
"""
    result = in_checkout(code)
    assert result.returncode == 0, result.stderr
    assert {Path(line).is_relative_to(ROOT) for line in result.stdout.split()} == {True}


def _a_scorer():
    from precrop.scoring import SCORERS

    return SCORERS["synexp"].layers


def test_the_command_runs_in_a_checkout():
    result = subprocess.run([sys.executable, "-m", "precrop", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert "inspect" in result.stdout


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

"""TensorRT's main package: what is asked of it, by a package that records, and its interface, by its own bindings."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from support_export import SHAPE

from precrop.export.backends import BuildSettings, tensorrt


@pytest.mark.parametrize(
    ("batch", "profile"),
    [((8,), (8, 8, 8)), ((32, 1), (1, 32, 32)), ((1, 8, 32), (1, 8, 32)), ((4, 1, 2, 8), (1, 4, 8))],
)
def test_profiles_cover_the_batch_sizes(batch, profile):
    assert tensorrt.batch_range(batch) == profile


class Recorder:
    """A package with TensorRT's interface that notes what is asked of it, and builds engines of one word."""

    def __init__(self, version, accepts=True):
        self.calls, self.accepts = [], accepts
        self.module = ModuleType("tensorrt")
        flags = {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1} if version < "11" else {"STRONGLY_TYPED": 0}
        self.module.__dict__.update(
            __version__=version,
            ILogger=type("ILogger", (), {"ERROR": 1, "INTERNAL_ERROR": 0, "__init__": lambda self: None}),
            Builder=lambda logger: self,
            OnnxParser=lambda network, logger: SimpleNamespace(parse=lambda content: bool(content)),
            NetworkDefinitionCreationFlag=SimpleNamespace(**flags),
            ProfilingVerbosity=SimpleNamespace(DETAILED=2),
            BuilderFlag=SimpleNamespace(TF32=7),
        )

    def create_network(self, flags):
        self.calls.append(("create_network", flags))

    def create_builder_config(self):
        return self

    create_optimization_profile = get_timing_cache = create_builder_config

    def set_shape(self, name, low, best, high):
        self.calls.append(("set_shape", name, low, best, high))

    def add_optimization_profile(self, profile):
        self.calls.append(("add_optimization_profile",))

    def create_timing_cache(self, content):
        self.calls.append(("create_timing_cache", content))
        return content

    def set_timing_cache(self, cache, ignore_mismatch):
        self.calls.append(("set_timing_cache", cache, ignore_mismatch))
        return self.accepts or not cache

    def build_serialized_network(self, network, config):
        return b"engine"

    def serialize(self):
        return b"times"

    def get_flag(self, flag):
        return flag == 7


@pytest.fixture
def graph(tmp_path):
    """An ONNX file that only the recorder reads."""
    (tmp_path / "net.onnx").write_bytes(b"graph")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(("version", "flags"), [("10.9.0", 1 << 1), ("11.4.0", 1 << 0)])
def test_the_main_package_builds_strongly_typed_with_a_timing_cache(monkeypatch, graph, tmp_path, version, flags):
    fake = Recorder(version)
    monkeypatch.setitem(sys.modules, "tensorrt", fake.module)
    facts = tensorrt.build(graph, tmp_path / "net.plan", BuildSettings(SHAPE, (1, 2, 8)))
    assert (tmp_path / "net.plan").read_bytes() == b"engine"
    assert facts["package"] == "tensorrt" and facts["package_version"] == version and facts["tf32"] is True
    assert fake.calls[:3] == [
        ("create_network", flags),
        ("set_shape", "input", (1, *SHAPE), (2, *SHAPE), (8, *SHAPE)),
        ("add_optimization_profile",),
    ]
    cache = tmp_path / f"tensorrt-{version}.timing"
    assert facts["timing_cache"] == cache.name
    assert cache.read_bytes() == b"times"
    assert fake.calls[3:] == [("create_timing_cache", b""), ("set_timing_cache", b"", False)]
    # The next build is given what this one found; one of another GPU is refused, and an empty one begun.
    tensorrt.build(graph, tmp_path / "net.plan", BuildSettings(SHAPE, (1,)))
    assert fake.calls[-2:] == [("create_timing_cache", b"times"), ("set_timing_cache", b"times", False)]
    fake.accepts = False
    tensorrt.build(graph, tmp_path / "net.plan", BuildSettings(SHAPE, (1,)))
    assert fake.calls[-1] == ("set_timing_cache", b"", False)


def test_the_main_package_is_preferred(monkeypatch):
    fake = Recorder("10.9.0").module
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    assert tensorrt.package() is fake
    assert tensorrt.package("tensorrt") is fake


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], ""),
        (["Error Code 4: no kernel."], "Error Code 4: no kernel"),
        (["[checkMacros.cpp::95] echo", "While parsing node number 1", "the reason"], "the reason"),
        (["ModelImporter.cpp:1: only this"], "ModelImporter.cpp:1: only this"),
    ],
)
def test_of_many_messages_the_telling_one_is_told(messages, told):
    assert tensorrt.telling(messages) == told


# The bindings of the main package are on the package index, its libraries are not. With libraries that hold the eight
# functions that the bindings ask for, and return nothing, they can be imported: all of their interface, and no engine.
STAND_INS = "".join(
    f"void *{name}(void) {{ return 0; }}\n"
    for name in (
        *(f"create{kind}_INTERNAL" for kind in ("InferBuilder", "InferRefitter", "InferRuntime")),
        *(f"createNvOnnxParser{kind}_INTERNAL" for kind in ("", "Refitter")),
        *("getBuilderPluginRegistry", "getPluginRegistry", "getNvOnnxParserVersion", "initLibNvInferPlugins"),
    )
)
INTERFACE = """
import sys
import tensorrt as trt
asked = {
    "Builder": "create_network create_builder_config create_optimization_profile build_serialized_network",
    "IBuilderConfig": "add_optimization_profile profiling_verbosity create_timing_cache set_timing_cache "
    "get_timing_cache get_flag",
    "IOptimizationProfile": "set_shape",
    "ITimingCache": "serialize",
    "OnnxParser": "parse num_errors get_error",
    "ParserError": "node_name node_operator node desc code",
    "Runtime": "deserialize_cuda_engine",
    "ICudaEngine": "create_execution_context num_io_tensors get_tensor_name get_tensor_mode get_tensor_profile_shape",
    "IExecutionContext": "set_input_shape get_tensor_shape set_tensor_address execute_async_v3 profiler",
    "IProfiler": "report_layer_time",
    "ILogger": "log ERROR INTERNAL_ERROR",
    "NetworkDefinitionCreationFlag": "STRONGLY_TYPED",
    "ProfilingVerbosity": "DETAILED",
    "BuilderFlag": "TF32",
    "TensorIOMode": "INPUT OUTPUT",
}
for owner, names in asked.items():
    for name in names.split():
        assert hasattr(getattr(trt, owner), name), f"{owner}.{name}"
for flag in ("FP16", "INT8", "BF16"):  # which a network of types of its own has no use for
    assert not hasattr(trt.BuilderFlag, flag), flag
sys.path.insert(0, sys.argv[1])
import precrop
from precrop.errors import ExportError
from support_export import SHAPE, small_net
try:
    precrop.export(small_net(8), sys.argv[2] + "/net.plan", input_shape=SHAPE)
except ExportError as error:
    print(error)
"""


def test_the_interface_of_the_main_package(tmp_path):
    if find_spec("tensorrt_bindings") is None:
        pytest.skip("the bindings of TensorRT (tensorrt-cu13-bindings) are not installed; see docs/EXPORT.md")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make the libraries of TensorRT's bindings with")
    (origin,) = find_spec("tensorrt_bindings").submodule_search_locations
    needed = [f"lib{name}.so.11" for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser")]
    if not all(name.encode() in (Path(origin) / "tensorrt.so").read_bytes() for name in needed):
        pytest.skip("the bindings of TensorRT that are installed are not of version 11")
    (tmp_path / "libraries.c").write_text(STAND_INS)
    for name in needed:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / name, tmp_path / "libraries.c"], check=True)
    package = tmp_path / "packages" / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n")
    (tmp_path / "out").mkdir()
    paths = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(package.parent)}
    support = os.path.dirname(sys.modules["support_export"].__file__)
    done = subprocess.run(
        [sys.executable, "-c", INTERFACE, support, tmp_path / "out"],
        capture_output=True,
        text=True,
        env=os.environ | paths,
    )
    assert done.returncode == 0, done.stderr
    assert "TensorRT cannot make a builder" in done.stdout and "precrop[tensorrt-rtx]" in done.stdout
    assert list((tmp_path / "out").iterdir()) == []

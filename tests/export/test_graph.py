import onnx
import pytest
import torch
from support_export import CONVOLUTIONS, SHAPE, SmallNet, images, small_net, warmed
from torch import nn

import precrop
from precrop.errors import ExportError
from precrop.export import export_onnx
from precrop.export.graph import computes_in, input_of, module_names, module_of, read_graph
from precrop.export.macs import count_macs

PRECISIONS = ("fp32", "fp16", "bf16", "int8")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """The small network in each precision."""
    found = {}
    for precision in PRECISIONS:
        path = tmp_path_factory.mktemp("graphs") / "net.onnx"
        data = [images(4)] if precision == "int8" else None
        export_onnx(small_net(), path, SHAPE, precision=precision, calibration=data)
        found[precision] = onnx.load(path)
    return found


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("precrop/resnet20", (3, 32, 32)),
        ("precrop/vgg16_bn", (3, 32, 32)),
        ("precrop/shufflenet_v2", (3, 32, 32)),
        ("torchvision/squeezenet1_1", (3, 64, 64)),
        ("torchvision/mobilenet_v3_small", (3, 64, 64)),
    ],
)
def test_macs_are_those_that_precrop_counts(tmp_path, name, shape):
    small = precrop.precrop(precrop.create_model(name), 0.25, input_shape=shape).eval()
    path = export_onnx(small, tmp_path / "net.onnx", shape).path
    assert count_macs(onnx.load(path)) == small.crop_plan.cropped.macs


@pytest.mark.parametrize("precision", PRECISIONS)
def test_macs_and_shape_do_not_depend_on_the_precision(graphs, precision):
    stem, depthwise, pointwise, head = 16 * 3 * 9, 16 * 9, 16 * 16, 16 * 5
    assert count_macs(graphs[precision]) == (stem + depthwise + pointwise) * 16 * 16 + head
    assert input_of(graphs[precision], "net.onnx") == SHAPE
    assert computes_in(graphs[precision]) == precision


def test_macs_of_matrix_products(tmp_path):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 7, bias=False)

        def forward(self, images):  # (N, 4, 5, 6)
            features = self.inner(images.flatten(1, 2))  # (N, 20, 7)
            return (features @ features.mT).flatten(1)  # (N, 20 · 20)

    path = export_onnx(Attention().eval(), tmp_path / "net.onnx", (4, 5, 6)).path
    assert count_macs(onnx.load(path)) == 20 * 6 * 7 + 20 * 20 * 7


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_convolution_is_told_by_its_module(graphs, precision):
    names = module_names(graphs[precision])
    convolutions = [node.name for node in graphs[precision].graph.node if node.op_type == "Conv"]
    assert [names[name] for name in convolutions] == list(CONVOLUTIONS)
    assert set(CONVOLUTIONS) | {"head"} <= set(names.values())


@pytest.mark.parametrize(
    ("kernel", "module"),
    [
        ("conv", "stem"),
        ("conv_nchwc", "stem"),
        ("conv_token_3", "stem"),
        ("conv/duplicated_0", "stem"),
        ("conv/WithoutBiases/DequantizationMultiply", "stem"),
        ("conv_QuantizeLinear_1", "stem"),
        ("out + conv", "stem"),
        ("[relu] [conv]", "stem"),
        ("convolution", ""),
        ("", ""),
    ],
)
def test_kernels_are_told_by_what_engines_make_of_a_name(kernel, module):
    assert module_of(kernel, {"conv": "stem"}) == module


@pytest.mark.parametrize("content", [None, b"", b"not a network", b"\x08\x07"])
def test_what_is_no_onnx_file(tmp_path, content):
    path = tmp_path / "net.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExportError, match=r"net\.onnx.*([Ee]xpected an ONNX file|Expected one that precrop)"):
        read_graph(path)


def test_a_graph_of_two_inputs_or_a_free_size_is_refused(tmp_path):
    class Pair(nn.Module):
        def forward(self, a, b):
            return a + b

    one = torch.zeros(2, 3)
    torch.onnx.export(
        Pair().eval(), (one, one), tmp_path / "pair.onnx", dynamo=True, external_data=False, verbose=False
    )
    with pytest.raises(ExportError, match=r"pair\.onnx takes 2 inputs.*expected one input \(N, C, H, W\)"):
        input_of(read_graph(tmp_path / "pair.onnx"), "pair.onnx")
    graph = onnx.load(export_onnx(warmed(SmallNet()), tmp_path / "net.onnx", SHAPE).path)
    graph.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    with pytest.raises(ExportError, match=r"takes 1 inputs, the first of them \(3, 0, 16\)"):
        input_of(graph, "net.onnx")

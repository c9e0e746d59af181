"""Multiply-adds of ONNX graphs: operator by operator beside hand arithmetic, and of exports beside the trace."""

import numpy as np
import onnx
import pytest
import torch
from nets_products import (
    PRODUCTS,
    SHAPE,
    Around,
    DataAsWeight,
    Deformable,
    GroupsOfImages,
    ImageByImage,
    MixedExperts,
    Recurrent,
)
from onnx import TensorProto, helper, numpy_helper
from support_macs import counted_macs
from torch import nn

from precrop import inspect
from precrop.errors import ExportError
from precrop.export import export_onnx
from precrop.export.macs import count_macs

MS = "com.microsoft"
IMAGE = (3, 8, 8)


def model(nodes, weights=None, shape=IMAGE, batch="N", functions=(), dtypes=None):
    """A model of these nodes from ``x``, images of ``shape``, to ``y``; weights are name to shape."""
    dtypes = dtypes or {}
    kept = [
        numpy_helper.from_array(np.ones(size, dtypes.get(name, np.float32)) if isinstance(size, tuple) else size, name)
        for name, size in (weights or {}).items()
    ]
    kind = TensorProto.UINT8 if dtypes.get("x") == np.uint8 else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, (batch, *shape))],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        kept,
    )
    domains = [("", 21), (MS, 1), ("own", 1)]
    opsets = [helper.make_opsetid(*domain) for domain in domains]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def node(kind, inputs, output="y", domain="", **attributes):
    return helper.make_node(kind, inputs, [output], domain=domain, **attributes)


CONVOLUTION = 6 * 6 * 4 * 3 * 9  # of 3 to 4 channels with a kernel of 3 on 8×8 images
QUANTIZED = ["x", "s", "z", "w", "s", "z", "s", "z"]
SCALES = {"s": (), "z": ()}
BYTES = dict.fromkeys(("x", "w", "z"), np.uint8)


@pytest.mark.parametrize(
    ("net", "macs"),
    [
        (model([node("Conv", ["x", "w"])], {"w": (4, 3, 3, 3)}), CONVOLUTION),
        (model([node("Conv", ["x", "w"], group=3)], {"w": (6, 1, 3, 3)}), 6 * 6 * 6 * 9),
        (model([node("ConvTranspose", ["x", "w"], strides=[2, 2])], {"w": (3, 5, 3, 3)}), 64 * 3 * 5 * 9),
        (model([node("ConvTranspose", ["x", "w"], group=3)], {"w": (3, 2, 3, 3)}), 64 * 3 * 2 * 9),
        (model([node("ConvTranspose", ["x", "w"], output_shape=[17, 17], strides=[2, 2])], {"w": (3, 5, 3, 3)}), 8640),
        (model([node("ConvInteger", ["x", "w"])], {"w": (4, 3, 3, 3)}, dtypes=BYTES), CONVOLUTION),
        (model([node("QLinearConv", QUANTIZED)], {"w": (4, 3, 3, 3), **SCALES}, dtypes=BYTES), CONVOLUTION),
        (model([node("FusedConv", ["x", "w"], domain=MS, activation="Relu")], {"w": (4, 3, 3, 3)}), CONVOLUTION),
        (
            model(
                [node("FusedConv", ["x", "w"], "z", MS), node("Conv", ["z", "v"])],
                {"w": (4, 3, 3, 3), "v": (1, 4, 6, 6)},
            ),
            CONVOLUTION + 4 * 36,
        ),
        (model([node("MatMul", ["x", "w"])], {"w": (8, 5)}), 3 * 8 * 8 * 5),
        (model([node("MatMul", ["w", "x"])], {"w": (5, 8)}), 3 * 5 * 8 * 8),
        (model([node("MatMul", ["x", "w"])], {"w": (8,)}), 3 * 8 * 8),
        (model([node("MatMul", ["w", "x"])], {"w": (8,)}), 3 * 8 * 8),
        (model([node("MatMul", ["x", "w"])], {"w": (7, 1, 8, 5)}, shape=(6, 8)), 7 * 6 * 8 * 5),
        (model([node("MatMul", ["a", "b"], "c"), node("MatMul", ["x", "c"])], {"a": (8, 2), "b": (2, 8)}), 1664),
        (model([node("MatMul", ["v", "v"], "c"), node("Mul", ["x", "c"])], {"v": (9,)}), 9),
        (model([node("MatMulInteger", ["x", "w"])], {"w": (8, 5)}, dtypes=BYTES), 3 * 8 * 8 * 5),
        (model([node("QLinearMatMul", QUANTIZED)], {"w": (8, 5), **SCALES}, dtypes=BYTES), 3 * 8 * 8 * 5),
        (model([node("FusedMatMul", ["x", "w"], domain=MS, transB=1)], {"w": (5, 8)}), 3 * 8 * 8 * 5),
        (model([node("FusedMatMul", ["x", "x"], domain=MS, transA=1)], shape=(3, 8, 7)), 3 * 7 * 8 * 7),
        (model([node("Gemm", ["x", "w", "b"], transB=1)], {"w": (5, 7), "b": (5,)}, shape=(7,)), 35),
        (model([node("Gemm", ["w", "x"], transA=1, transB=1)], {"w": (7, 5)}, shape=(7,)), 35),
        (
            model(
                [node("FusedGemm", ["x", "w", "b"], domain=MS, transB=1, activation="Relu")],
                {"w": (5, 7), "b": (5,)},
                shape=(7,),
            ),
            35,
        ),
        (model([node("Einsum", ["x", "w"], equation="nchw,oc->nohw")], {"w": (5, 3)}), 64 * 3 * 5),
        (model([node("Einsum", ["x", "w"], equation="...w,wv->...v")], {"w": (8, 5)}), 3 * 8 * 8 * 5),
        (model([node("Einsum", ["x", "w"], equation="nchw,c->nchw")], {"w": (3,)}), 0),
        (model([node("Einsum", ["x", "w"], equation="nchw,wv->ncv")], {"w": (8, 5)}), 3 * 8 * 5),
        (model([node("Einsum", ["x", "w", "v"], equation="nchw,oc,po")], {"w": (5, 3), "v": (2, 5)}), 64 * 25),
        (model([node("Einsum", ["x"], equation="nchw->n")]), 0),
        (
            model([node("LSTM", ["x", "w", "r"], hidden_size=4, layout=1)], {"w": (1, 16, 8), "r": (1, 16, 4)}, (3, 8)),
            3 * 16 * (8 + 4),
        ),
        (
            model(
                [node("Transpose", ["x"], "t", perm=[1, 0, 2]), node("GRU", ["t", "w", "r"], hidden_size=4)],
                {"w": (1, 12, 8), "r": (1, 12, 4)},
                (3, 8),
            ),
            3 * 12 * (8 + 4),
        ),
        (model([node("Attention", ["x", "w", "b"], domain=MS, num_heads=2)], {"w": (8, 24), "b": (24,)}, (3, 8)), 720),
        (model([node("MultiHeadAttention", ["x", "x", "x"], domain=MS, num_heads=2)], shape=(3, 8)), 2 * 9 * 8),
        (model([node("Relu", ["x"])]), 0),
        (model([node("BiasGelu", ["x", "b"], domain=MS)], {"b": (8,)}), 0),
    ],
    ids=lambda value: f"{value.graph.node[-1].op_type}" if isinstance(value, onnx.ModelProto) else "",
)
def test_macs_of_an_operator(net, macs):
    assert count_macs(net) == macs


def test_quantized_weights_are_those_of_the_layer():
    nodes = [node("DequantizeLinear", ["w", "s", "z"], "v", axis=0), node("ConvTranspose", ["x", "v"])]
    weights = {"w": (3, 5, 3, 3), "s": (3,), "z": (3,)}
    assert count_macs(model(nodes, weights, dtypes={"w": np.int8, "z": np.int8})) == 64 * 3 * 5 * 9


def test_a_graph_for_a_fixed_batch_is_counted_for_one_image():
    nodes = [
        node("MatMul", ["a", "b"], "c"),
        node("MatMul", ["x", "c"], "m"),
        node("Reshape", ["m", "size"], "r"),
        node("MatMul", ["r", "d"]),
    ]
    weights = {"a": (8, 2), "b": (2, 8), "size": np.array([4, 192]), "d": (192, 10)}
    expected = 8 * 2 * 8 + 3 * 8 * 8 * 8 + 192 * 10
    assert count_macs(model(nodes, weights, batch=4)) == expected
    weights["size"] = np.array([1, 192])
    assert count_macs(model(nodes, weights, batch=1)) == expected


def test_a_shape_that_inference_does_not_follow_is_seen_by_running():
    nodes = [
        node("NonZero", ["ones"], "found"),
        node("Shape", ["found"], "size"),
        node("Slice", ["size", "one", "two"], "rows"),
        node("Concat", ["rows", "width"], "shape", axis=0),
        node("ConstantOfShape", ["shape"], "w"),
        node("MatMul", ["x", "w"]),
    ]
    weights = {"ones": (8,), "one": np.array([1]), "two": np.array([2]), "width": np.array([5])}
    assert count_macs(model(nodes, weights)) == 3 * 8 * 8 * 5


def branch(name, width):
    weight = numpy_helper.from_array(np.ones((8, width), np.float32), "w")
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([node("MatMul", ["x", "w"], name)], name, [], [made], [weight])


def test_branches_of_one_cost_are_counted_and_others_refused():
    def branching(width):
        parts = {"then_branch": branch("a", 5), "else_branch": branch("b", width)}
        return model([node("If", ["yes"], **parts)], {"yes": np.array(True)})

    assert count_macs(branching(5)) == 3 * 8 * 8 * 5
    with pytest.raises(ExportError, match=r"If that makes 'y' depend on the branch .*960"):
        count_macs(branching(6))


def scan(width):
    row, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("row", "made"))
    weight = numpy_helper.from_array(np.ones((8, width), np.float32), "w")
    return helper.make_graph([node("MatMul", ["row", "w"], "made")], "body", [row], [made], [weight])


def test_a_scan_counts_its_body_for_each_step():
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, (1, 8, 8))
    body = scan(5)
    body.input[0].CopyFrom(row)
    net = model([node("Scan", ["x"], body=body, num_scan_inputs=1, scan_input_axes=[1])])
    assert count_macs(net) == 3 * 8 * 8 * 5


def test_a_function_of_the_file_is_looked_into():
    inner = [node("MatMul", ["a", "b"], "c"), node("Relu", ["c"], "d")]
    function = helper.make_function("own", "Dense", ["a", "b"], ["d"], inner, [helper.make_opsetid("", 21)])
    assert count_macs(model([node("Dense", ["x", "w"], domain="own")], {"w": (8, 5)}, functions=[function])) == 960


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (model([node("Mystery", ["x"], domain="own", name="it")]), "no formula for Mystery 'it' of the domain own"),
        (model([node("LongformerAttention", ["x"], domain=MS)]), "no formula for LongformerAttention that makes 'y'"),
        (
            model([node("FusedMatMul", ["x", "x"], domain=MS, transBatchA=1)]),
            "no formula for FusedMatMul that makes 'y' of the domain com.microsoft",
        ),
        (
            model([node("BiasGelu", ["x", "w"], "z", MS), node("MatMul", ["z", "w"])], {"w": (8, 5)}),
            r"the shape of 'z' is not known before it runs|the shape of 'y' is not known",
        ),
    ],
)
def test_what_cannot_be_counted_is_said(net, message):
    with pytest.raises(ExportError, match=f"the multiply-adds of the graph cannot be counted: .*({message})"):
        count_macs(net)


class Upsampled(Around):
    """Transposed convolutions, with groups and without, beside a bilinear upsampling."""

    def make(self):
        self.first, self.second = nn.ConvTranspose2d(16, 12, 3, 2), nn.ConvTranspose2d(12, 16, 4, 2, 1, groups=4)

    def middle(self, x):
        return self.second(self.first(x))


# What the exporter refuses (deformable convolutions; as many groups as images), loops over images and groups of them,
# which it freezes, and recurrent layers, which it takes half a minute for.
NOT_EXPORTED = (DataAsWeight, Deformable, GroupsOfImages, ImageByImage, MixedExperts, Recurrent)
EXPORTED = [net for net in (*PRODUCTS, Upsampled) if net not in NOT_EXPORTED]


@pytest.mark.parametrize("net", EXPORTED, ids=lambda net: net.__name__)
def test_macs_of_an_export_are_those_of_the_trace_and_of_torch(tmp_path, net):
    network = net().eval()
    path = export_onnx(network, tmp_path / "net.onnx", SHAPE).path
    graph = inspect(network, input_shape=SHAPE)
    found = count_macs(onnx.load(path)) + net.constant
    assert found == graph.size(graph.original).macs == counted_macs(network, SHAPE)


def test_macs_of_an_int8_export_are_those_of_the_network(tmp_path):
    network = Upsampled().eval()
    data = [torch.randn(4, *SHAPE).numpy()]
    path = export_onnx(network, tmp_path / "net.onnx", SHAPE, precision="int8", calibration=data).path
    assert count_macs(onnx.load(path)) == counted_macs(network, SHAPE)

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from support_export import SHAPE, images, small_net
from torch.utils.data import DataLoader, TensorDataset

from precrop.errors import ExportError
from precrop.export import export_onnx
from precrop.export.calibration import IMAGES, calibration_batches


@pytest.mark.parametrize(
    "data",
    [
        images(6),
        images(6).numpy(),
        list(images(6).split(2)),
        iter(images(6).split(4)),
        [(batch, torch.zeros(2)) for batch in images(6).split(2)],
        DataLoader(TensorDataset(images(6), torch.zeros(6)), batch_size=4),
        [images(6).double()],
    ],
    ids=["tensor", "array", "list", "iterator", "pairs", "loader", "float64"],
)
def test_batches_of_every_kind_give_the_same_images(data):
    batches = calibration_batches(data, SHAPE)
    assert {batch.dtype for batch in batches} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(np.concatenate(batches), images(6).numpy())


def test_no_more_images_are_read_than_asked():
    read = []

    def endless():
        while True:
            read.append(1)
            yield torch.zeros(100, 1, 2, 2)

    assert sum(map(len, calibration_batches(endless(), (1, 2, 2)))) == IMAGES == 512
    assert len(read) == 6
    assert [len(batch) for batch in calibration_batches([images(4), images(4)], SHAPE, most=5)] == [4, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "int8 needs data to find the range of every activation"),
        ("digits", "calibration is a str. Expected a DataLoader"),
        ({"images": images(2)}, "calibration is a dict"),
        (TensorDataset(images(2)), "calibration is a TensorDataset.*Wrap a data set in a DataLoader"),
        (3, "calibration is a int"),
        ([], "calibration is empty: the list gave no image"),
        ([torch.zeros(0, *SHAPE)], "calibration is empty"),
        ([images(2, shape=(1, 16, 16))], r"of shape \(2, 1, 16, 16\); expected \(N, 3, 16, 16\), the network's input"),
        ([images(1)[0]], r"of shape \(3, 16, 16\); expected \(N, 3, 16, 16\)"),
        (["a"], "a batch of calibration images is a str"),
        ([images(2) / 0], "not finite"),
    ],
)
def test_what_is_no_calibration_data(data, message):
    with pytest.raises(ExportError, match=message):
        calibration_batches(data, SHAPE)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """A quantized network, the network, and its calibration images."""
    data = [images(8, seed=5), 1.5 * images(8, seed=6)]
    path = tmp_path_factory.mktemp("int8") / "net.onnx"
    net = small_net()
    export_onnx(net, path, SHAPE, precision="int8", calibration=data)
    return onnx.load(path), net, torch.cat(data)


def test_ranges_are_the_largest_magnitudes_seen(quantized):
    graph, net, data = quantized
    values = {entry.name: numpy_helper.to_array(entry) for entry in graph.graph.initializer}
    scales = {n.input[0]: values[n.input[1]] for n in graph.graph.node if n.op_type == "QuantizeLinear"}
    assert scales["input"] == pytest.approx(data.abs().max().item() / 127, rel=1e-3)
    with torch.no_grad():
        features = net.norm(net.stem(data)).relu()
    (after_stem,) = (n.output[0] for n in graph.graph.node if n.op_type == "Relu" and "stem" in _maker(graph, n))
    assert scales[after_stem] == pytest.approx(features.max().item() / 127, rel=1e-3)


def _maker(graph, node):
    """The weight of the convolution before a node."""
    makers = {entry.output[0]: entry for entry in graph.graph.node}
    while node.op_type != "Conv":
        node = makers[node.input[0]]
    return makers[node.input[1]].input[0]


def test_nodes_are_symmetric_weights_per_channel_and_biases_float(quantized):
    graph, net, _ = quantized
    values = {entry.name: numpy_helper.to_array(entry) for entry in graph.graph.initializer}
    makers = {node.output[0]: node for node in graph.graph.node}
    for node in graph.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zeros = values[node.input[2]]
            assert zeros.dtype == np.int8 and not zeros.any()
    layers = [node for node in graph.graph.node if node.op_type in ("Conv", "Gemm")]
    assert len(layers) == 4
    for node in layers:
        weight, scale = (values[name] for name in makers[node.input[1]].input[:2])
        assert weight.dtype == np.int8 and np.abs(weight).max() == 127
        assert scale.size in ((16,) if node.op_type == "Conv" else (1, 5))
        assert values[node.input[2]].dtype == np.float32
        assert makers[node.input[0]].op_type == "DequantizeLinear"
    depthwise = next(n for n in layers if "depthwise" in makers[n.input[1]].input[0])
    scale = values[makers[depthwise.input[1]].input[1]]
    np.testing.assert_allclose(scale, net.depthwise.weight.detach().abs().amax((1, 2, 3)) / 127, rtol=1e-3)


def test_the_advice_of_the_quantizer_stays_away_and_the_log_level_comes_back(tmp_path, capfd):
    import logging

    before = logging.getLogger().level
    export_onnx(small_net(8), tmp_path / "net.onnx", SHAPE, precision="int8", calibration=[images(4)])
    assert logging.getLogger().level == before
    assert capfd.readouterr() == ("", "")

import json
import math

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import numpy_helper
from support_export import SHAPE, images, needs_openvino, small_net, warmed

import precrop
from precrop.errors import ExportError
from precrop.export import export_onnx
from precrop.export.parity import check_parity, compare, int8_faults, judged_on, parity, parity_text

PRECISIONS = ("fp32", "fp16", "bf16", "int8")


def scores(size=1.0, number=32, classes=10, bias=0.0):
    """What a classifier puts out, and the same with the rounding of int8: 26 dB."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((number, classes)) + bias
    y = x + 0.05 * np.sqrt((x**2).mean()) * draw.standard_normal(x.shape)
    return (size * x).astype(np.float32), (size * y).astype(np.float32)


def check(x, y, precision, tolerance=None):
    check_parity("Net", "file", precision, compare(x, y), tolerance)


def test_the_measures_by_hand():
    x = np.array([[3.0, 0.0], [0.0, 4.0]])
    y = np.array([[3.0, 1.0], [0.0, 2.0]])
    found = compare(x, y)
    assert (found.max_abs_error, found.largest_output) == (2.0, 4.0)
    assert found.snr_db == pytest.approx(10 * math.log10(25 / 5))
    assert found.gain == pytest.approx((9 + 8) / 25)
    assert found.channel_snr_db == pytest.approx(10 * math.log10((25 / 4) / (5 / 2)))
    # Less their means: x has (1.5, -2), (-1.5, 2), y has (1.5, -0.5), (-1.5, 0.5).
    assert found.changed == pytest.approx(math.sqrt(12.5 / 25))
    assert found.change_snr_db == pytest.approx(10 * math.log10(12.5 / 4.5))
    assert found.top_class == 1.0
    assert compare(x, x).told()["snr_db"] is None and compare(x, x).snr_db == math.inf
    assert compare(x[:1], y[:1]).change_snr_db is None


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1e-3, 1.0, 1e4])
def test_int8_rounding_passes_at_any_size(size):
    check(*scores(size), "int8")
    check(*scores(size, bias=3.0), "int8")


WRONG = {
    "halved": lambda y: 0.5 * y,
    "doubled": lambda y: 2 * y,
    "too small by a quarter": lambda y: 0.75 * y,
    "one class zeroed": lambda y: np.where(np.arange(y.shape[1]) == 3, 0, y),
    "one class scaled": lambda y: np.where(np.arange(y.shape[1]) == 3, 3 * y, y),
    "classes permuted": lambda y: np.roll(y, 1, axis=1),
    "images permuted": lambda y: np.roll(y, 1, axis=0),
    "zero": lambda y: 0 * y,
    "negated": lambda y: -y,
    "one image lost": lambda y: np.where(np.arange(len(y))[:, None] % 4 == 0, 0, y),
    "no number": lambda y: np.where(np.arange(len(y))[:, None] == 0, np.nan, y),
    "infinite": lambda y: np.where(np.arange(len(y))[:, None] == 0, np.inf, y),
}


# The least step of float16 is 6e-8.
SIZES = [
    (precision, size) for precision in PRECISIONS for size in (1e-8, 1e-4, 1.0) if precision != "fp16" or size > 1e-8
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("precision", "size"), SIZES)
def test_what_is_wrong_is_refused(precision, wrong, size):
    x, y = scores(size)
    with pytest.raises(ExportError, match=f"the {precision} file of Net differs from PyTorch by .*Nothing was written"):
        check(x, WRONG[wrong](y if precision == "int8" else x), precision)


def test_what_biases_put_out_does_not_hide_a_wrong_network():
    x, y = scores(bias=0.0)
    bias = 2.0 * np.sign(np.random.default_rng(1).standard_normal(10)).astype(np.float32)
    check(x + bias, y + bias, "int8")
    with pytest.raises(
        ExportError, match=r"what differs between images is .* dB above the noise, expected at least 7 dB"
    ):
        check(x + bias, 0.5 * x + bias, "int8")
    check(1e-3 * x + bias, bias + 0 * x, "int8")  # int8 has no step as fine
    assert "images change 0.0005 of the outputs" in parity_text(compare(1e-3 * x + bias, bias + 0 * x), "int8")


def test_each_fault_is_told_with_what_was_expected():
    x, _ = scores()
    told = "; ".join(int8_faults(compare(x, -x)))
    assert "the signal is -6.0 dB above the noise, expected at least 10 dB" in told
    assert "the outputs are -1 times what they should be, expected 0.9 to 1.1" in told
    assert "the worst channel's noise is" in told
    assert "the top class is the same on 0% of the images that are decided, expected at least 90%" in told


def test_a_tolerance_that_is_given_is_held_in_int8_too():
    x, y = scores()
    with pytest.raises(ExportError, match=r"expected at most 0\.001 of that"):
        check(x, y, "int8", tolerance=1e-3)
    check(x, 0.5 * y, "int8", tolerance=0.9)


def test_all_zero_outputs_must_stay_zero():
    nothing, small = np.zeros((4, 5), np.float32), np.full((4, 5), 1e-9, np.float32)
    for precision in PRECISIONS:
        check(nothing, nothing, precision)
    for precision in ("fp32", "bf16", "int8"):
        with pytest.raises(ExportError):
            check(nothing, small, precision)


def test_maps_are_judged_by_channel():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((4, 64, 5, 6))
    y = x + 0.05 * draw.standard_normal(x.shape)
    check(x, y, "int8")
    y[:, 7] = 0
    with pytest.raises(ExportError, match="the worst channel's noise is"):
        check(x, y, "int8")


@pytest.mark.parametrize(("batch", "sizes"), [(32, [20]), (8, [8, 8, 4]), (1, [1] * 8), (3, [3] * 6 + [2])])
def test_as_many_images_are_judged_as_tell_networks_apart(batch, sizes):
    batches = [np.arange(8.0)[:, None], np.arange(8.0, 20.0)[:, None]]
    found = judged_on(batches, batch)
    assert [len(part) for part in found] == sizes
    assert np.concatenate(found).ravel().tolist() == list(range(sum(sizes)))
    assert judged_on([]) == []


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "shufflenet_v2_x1_0"])
def test_int8_files_of_networks_pass(tmp_path, name):
    """Fresh, with outputs down to 1e-9, and cropped, with norms that have seen images."""
    shape = (3, 64, 64)
    dense = getattr(torchvision.models, name)().eval()
    for network in (dense, warmed(precrop.precrop(dense, 0.5, input_shape=shape), shape, batch=8)):
        data = [images(8, shape, seed=seed) for seed in (1, 2)]
        done = export_onnx(network, tmp_path / "net.onnx", shape, precision="int8", calibration=data)
        assert done.deviation.snr_db > 20


@pytest.mark.parametrize("suffix", [".onnx", pytest.param(".xml", marks=needs_openvino)])
def test_the_sidecar_tells_every_measure(tmp_path, suffix):
    data = [images(8, seed=5), images(8, seed=6)]
    done = precrop.export(small_net(), tmp_path / f"net{suffix}", precision="int8", input_shape=SHAPE, calibration=data)
    told = json.loads(done.sidecar.read_text())["parity"]
    for name, value in done.deviation.told().items():
        assert told[name] == value
    assert told["snr_db"] > 30 and told["gain"] == pytest.approx(1, abs=0.02)


def scaled(graph, name, factor, channel=slice(None)):
    for entry in graph.graph.initializer:
        if entry.name == name:
            values = numpy_helper.to_array(entry).copy()
            values.reshape(-1)[channel] *= factor
            entry.CopyFrom(numpy_helper.from_array(values, name))


@pytest.mark.parametrize(("factor", "channel"), [(0.5, slice(None)), (2.0, slice(None)), (0.0, slice(None)), (0.0, 2)])
def test_a_file_of_a_broken_scale_is_refused(tmp_path, factor, channel):
    """The scale of the last layer's weights, by which their integers are multiplied."""
    net = small_net()
    net.head.bias.data.zero_()
    data = [images(16, seed=5)]
    path = export_onnx(net, tmp_path / "net.onnx", SHAPE, precision="int8", calibration=data).path
    graph = onnx.load(path)
    makers = {node.output[0]: node for node in graph.graph.node}
    (last,) = (node for node in graph.graph.node if node.op_type == "Gemm")
    scaled(graph, makers[last.input[1]].input[1], factor, channel)
    onnx.save(graph, path)
    found = parity(net, path, SHAPE, images=[data[0].numpy()])
    with pytest.raises(ExportError, match="the int8 file of SmallNet differs"):
        check_parity("SmallNet", "file", "int8", found, None)


def test_a_batch_of_images_that_cannot_be_judged_alone_is_judged_with_others(tmp_path):
    data = [images(1, seed=seed) for seed in range(12)]
    done = export_onnx(small_net(), tmp_path / "net.onnx", SHAPE, precision="int8", calibration=data)
    assert done.deviation.change_snr_db is not None
    assert torch.isfinite(torch.tensor(done.deviation.change_snr_db))

import sys

import numpy as np
import pytest
import torch
from torch import nn

from precrop.errors import MissingExtraError, PrecropError
from precrop.export import export_onnx
from precrop.export.onnx import parity

SHAPE = (3, 8, 8)


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        return self.head(self.norm(self.conv(images)).relu().mean((2, 3)))


class Noisy(SmallNet):
    def forward(self, images):
        return super().forward(images) + torch.rand(images.shape[0], 5)


class Branching(SmallNet):
    def forward(self, images):
        scores = super().forward(images)
        return scores if scores.sum() > 0 else -scores


class TwoOutputs(SmallNet):
    def forward(self, images):
        scores = super().forward(images)
        return scores, scores + 1


@pytest.fixture
def net():
    torch.manual_seed(0)
    net = SmallNet()
    net(torch.randn(16, *SHAPE))  # moves the batch statistics off their initial values
    return net


def test_exported_file_gives_pytorchs_outputs_at_any_batch(net, tmp_path):
    import onnxruntime

    exported = export_onnx(net, tmp_path / "net.onnx", SHAPE)
    assert exported.path == tmp_path / "net.onnx"
    assert exported.size_bytes == exported.path.stat().st_size
    assert exported.opset >= 18
    assert exported.max_abs_error < 1e-5

    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    net.eval()
    for batch in (1, 2, 7):
        images = torch.randn(batch, *SHAPE, generator=torch.Generator().manual_seed(batch))
        (got,) = session.run(["output"], {"input": images.numpy()})
        np.testing.assert_allclose(got, net(images).detach().numpy(), atol=1e-5)


def test_export_leaves_the_model_as_it_was(net, tmp_path):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    net.norm.eval()
    export_onnx(net, tmp_path / "net.onnx", SHAPE)
    assert net.training
    assert not net.norm.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_parity_measures_the_largest_error(net, tmp_path):
    exported = export_onnx(net, tmp_path / "net.onnx", SHAPE)
    with torch.no_grad():
        net.eval().head.bias[2] += 0.25
    found = parity(net, exported.path, SHAPE)
    assert found.max_abs_error == pytest.approx(0.25, abs=1e-5)
    assert found.largest_output > 0.25


def test_a_file_that_differs_is_refused_and_the_old_one_kept(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "net.onnx"
    path.write_bytes(b"the one before")
    with pytest.raises(PrecropError, match=r"Noisy differs from PyTorch by .* on random input"):
        export_onnx(Noisy(), path, SHAPE)
    assert path.read_bytes() == b"the one before"
    assert list(tmp_path.iterdir()) == [path]


def test_small_outputs_are_held_to_their_own_size(tmp_path):
    class Faint(Noisy):
        def forward(self, images):
            return 1e-8 * super().forward(images)

    with pytest.raises(PrecropError, match=r"Faint differs from PyTorch by .*e-09 on random input"):
        export_onnx(Faint(), tmp_path / "net.onnx", SHAPE)


@pytest.mark.parametrize(
    ("network", "message"),
    [(Branching, "cannot export Branching to ONNX for images"), (TwoOutputs, "expected one tensor")],
)
def test_a_network_that_cannot_be_exported_leaves_no_file(network, message, tmp_path):
    with pytest.raises(PrecropError, match=message):
        export_onnx(network(), tmp_path / "net.onnx", SHAPE)
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_the_error_names_the_extra(net, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"onnxscript.*pip install 'precrop\[onnx\]'"):
        export_onnx(net, tmp_path / "net.onnx", SHAPE)

"""A crop that would not run is an error and never a returned model; what forward never runs is counted apart."""

import dataclasses

import pytest
import torch
from nets import Chain, Head, Residual, cbr
from torch import nn

from precrop import inspect, plan, precrop
from precrop.cropping import shrink as shrinking
from precrop.cropping.shrink import shrink
from precrop.cropping.verify import verify
from precrop.errors import TraceError

SHAPE = (3, 8, 8)


def halved(graph):
    return {w.name: max(w.minimum, w.size // 2 // w.multiple * w.multiple) for w in graph.widths}


@pytest.mark.parametrize("net", [Chain, Residual])
def test_a_stale_size_is_found_and_its_module_named(net):
    model = net()
    graph = inspect(model, input_shape=SHAPE)
    small = shrink(model, graph, halved(graph))
    verify(small, graph)
    layer = next(name for name, m in small.named_modules() if isinstance(m, nn.Conv2d) and m.in_channels != 3)
    conv = small.get_submodule(layer)
    conv.weight = nn.Parameter(torch.empty(conv.out_channels, conv.in_channels + 1, 3, 3))
    with pytest.raises(TraceError, match=rf"does not run in eval mode, in {layer} \(Conv2d\)"):
        verify(small, graph)


def test_other_outputs_are_found():
    model = Chain()
    graph = inspect(model, input_shape=SHAPE)
    small = shrink(model, graph, halved(graph))
    small.head.fc = nn.Linear(small.head.fc.in_features, 9)
    with pytest.raises(TraceError, match="outputs of the shapes"):
        verify(small, graph)


def test_precrop_verifies_what_it_returns(monkeypatch):
    original = shrinking.copy_structure

    def stale(model, memo):
        small = original(model, memo)
        small.two[0].weight = nn.Parameter(torch.empty(5, 7, 3, 3))
        return small

    monkeypatch.setattr(shrinking, "copy_structure", stale)
    with pytest.raises(TraceError, match="does not run"):
        precrop(Chain(), 0.5, input_shape=SHAPE)


class Auxiliary(nn.Module):
    """A head that runs in training alone, after which the forward needs labels."""

    def __init__(self, a=16, b=32):
        super().__init__()
        self.one, self.two, self.head = cbr(3, a), cbr(a, b), Head(b)
        self.aux = Head(a)

    def forward(self, x, labels=None):
        x = self.one(x)
        if self.training:
            loss = nn.functional.cross_entropy(self.aux(x), labels)
        out = self.head(self.two(x))
        return (out, loss) if self.training else out


class NeedsFirst(Auxiliary):
    """The same, with what the labels are needed for before the head."""

    def forward(self, x, targets=None):
        x = self.one(x)
        aux = self.aux(x[targets["picked"]]) if self.training else None
        out = self.head(self.two(x))
        return out if aux is None else (out, aux)


def test_a_head_that_trains_on_labels_follows():
    small = precrop(Auxiliary(), 0.5, input_shape=SHAPE)
    assert small.one[0].out_channels < 16
    assert small.aux.fc.in_features == small.one[0].out_channels
    small.train()(torch.randn(4, *SHAPE), torch.zeros(4, dtype=torch.long))[1].backward()


def test_a_head_that_no_run_reaches_keeps_what_may_feed_it():
    graph = inspect(NeedsFirst(), input_shape=SHAPE)
    assert [f.reason for f in graph.fixed if f.layer == "one.0"] == [
        "aux.fc, which only a training run that takes more than images reaches"
    ]
    small = precrop(NeedsFirst(), params=0.6, input_shape=SHAPE)
    small.train()(torch.randn(4, *SHAPE), {"picked": torch.tensor([0, 1])})


class Unused(nn.Module):
    """An encoder's last stage that nobody runs, most of the parameters."""

    def __init__(self, a=16, b=32):
        super().__init__()
        self.one, self.two, self.head = cbr(3, a), cbr(a, b), Head(b)
        self.last = cbr(b, 256)

    def forward(self, x):
        return self.head(self.two(self.one(x)))


def test_what_never_runs_is_counted_apart():
    model = Unused()
    unused = sum(p.numel() for p in model.last.parameters())
    graph = inspect(model, input_shape=SHAPE)
    assert graph.unused_params == unused
    assert graph.unused == ("last.0", "last.1")
    found = plan(model, params=0.25, input_shape=SHAPE)
    assert found.original.params == sum(p.numel() for p in model.parameters()) - unused
    assert 0.2 < found.params_ratio <= 0.25
    assert any("last.0" in note and f"{unused:,}" in note for note in found.notes)
    small = precrop(model, params=0.25, input_shape=SHAPE)
    assert small.last[0].weight.shape == model.last[0].weight.shape


def test_graphs_keep_what_they_put_out():
    graph = inspect(Chain(), input_shape=SHAPE)
    assert graph.outputs == ((2, 10),)
    assert not graph.trains_apart
    assert dataclasses.replace(graph, outputs=()).outputs == ()

"""Who asked? What is free does not depend on how a network's layers are held together."""

import pytest
import torch
import torch.nn.functional as F
from nets import Head, cbr
from torch import fx, nn
from torch.nn.utils import parametrizations, prune

from precrop import inspect, precrop

SHAPE = (3, 16, 16)


class Held(nn.Module):
    """Layers in a class of one's own."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _layers(middle):
    return [nn.Conv2d(3, 32, 3), *middle(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 7)]


MIDDLES = {
    "GroupNorm": lambda: [nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.GroupNorm(4, 48)],
    "BatchNorm": lambda: [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 3)],
    "InstanceNorm": lambda: [nn.InstanceNorm2d(32, affine=True), nn.Conv2d(32, 48, 3)],
    "LocalResponseNorm": lambda: [nn.LocalResponseNorm(3), nn.Conv2d(32, 48, 3)],
    "PReLU": lambda: [nn.PReLU(32), nn.Conv2d(32, 48, 3)],
    "Softmax2d": lambda: [nn.Softmax2d(), nn.Conv2d(32, 48, 3)],
    "Dropout2d": lambda: [nn.Dropout2d(), nn.Conv2d(32, 48, 3)],
    "MaxPool": lambda: [nn.MaxPool2d(2), nn.Conv2d(32, 48, 3)],
    "LPPool": lambda: [nn.LPPool2d(2, 2), nn.Conv2d(32, 48, 3)],
    "Upsample": lambda: [nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(32, 48, 3)],
    "pads": lambda: [nn.ReflectionPad2d(1), nn.ZeroPad2d(1), nn.Conv2d(32, 48, 3)],
    "ConvTranspose": lambda: [nn.ConvTranspose2d(32, 48, 2, 2)],
    "grouped": lambda: [nn.Conv2d(32, 48, 3, groups=4)],
    "PixelUnshuffle": lambda: [nn.PixelUnshuffle(2), nn.Conv2d(128, 48, 3)],
    "ChannelShuffle": lambda: [nn.ChannelShuffle(4), nn.Conv2d(32, 48, 3)],
    "spectral norm": lambda: [nn.ReLU(), parametrizations.spectral_norm(nn.Conv2d(32, 48, 3))],
    "weight norm": lambda: [nn.ReLU(), parametrizations.weight_norm(nn.Conv2d(32, 48, 3))],
    "pruned": lambda: [nn.ReLU(), prune.l1_unstructured(nn.Conv2d(32, 48, 3), "weight", 0.5)],
}


def _freedom(model):
    graph = inspect(model, input_shape=SHAPE)
    return sorted((w.size, w.multiple, w.minimum) for w in graph.widths), sorted(f.size for f in graph.fixed)


@pytest.mark.parametrize("middle", MIDDLES.values(), ids=MIDDLES)
def test_a_bare_container_is_as_free_as_a_class(middle):
    free, fixed = _freedom(Held(_layers(middle)))
    assert [size for size, _, _ in free] == [32, 48]
    assert fixed == [7]
    assert _freedom(nn.Sequential(*_layers(middle))) == (free, fixed)
    if middle is not MIDDLES["pruned"]:  # torch copies no module that torch's pruning masked
        assert _freedom(fx.symbolic_trace(Held(_layers(middle)))) == (free, fixed)
    precrop(nn.Sequential(*_layers(middle)), 0.5, input_shape=SHAPE)(torch.randn(2, *SHAPE)).sum().backward()


class Functional(nn.Module):
    """A norm that a graph spells out: its statistics are buffers of a plain module."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.two, self.head = cbr(3, a), cbr(a, b), Head(b)

    def forward(self, x):
        norm = self.one[1]
        x = F.batch_norm(self.one[0](x), norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return self.head(self.two(x))


def test_a_graph_that_spells_out_its_norms_is_free():
    traced = fx.symbolic_trace(Functional().eval())
    assert {f.reason for f in inspect(traced, input_shape=SHAPE).fixed} == {"the network's output"}


def test_a_reason_names_the_module_or_the_graph_where_no_line_is_the_networks():
    unfold = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(2), nn.Unflatten(1, (4, 4)), nn.Flatten(1), nn.LazyLinear(5))
    unfold(torch.zeros(1, *SHAPE))
    assert {f.layer: f.reason for f in inspect(unfold, input_shape=SHAPE).fixed}["0"] == "2: Unflatten"

    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.fc = nn.Conv2d(3, 16, 3), nn.Linear(16, 5)

        def forward(self, x):
            return self.fc(self.one(x).mean((2, 3)).view(-1, 4, 4).flatten(1))

    reason = {f.layer: f.reason for f in inspect(fx.symbolic_trace(Viewed()), input_shape=SHAPE).fixed}["one"]
    assert reason.startswith("the graph (view = mean.view(-1, 4, 4)")


class Wider(nn.Module):
    """The wider of two branches decides, by torch's own functions."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.two, self.three, self.head = cbr(3, a), cbr(3, b), cbr(b, 8), Head(8)

    def forward(self, x):
        one, two = self.one(x), self.two(x)
        missing = torch.sym_max(one.shape[1], two.shape[1]) - one.shape[1]
        one = F.pad(one, (0, 0, 0, 0, 0, missing))
        return self.head(self.three(one + two)[:, : torch.sym_min(8, self.one[0].out_channels)])


class Halves(nn.Module):
    """The two halves of a map, counted from its end."""

    def __init__(self, half=8, b=12):
        super().__init__()
        self.one, self.two, self.head = cbr(3, 2 * half), cbr(half, b), Head(b)

    def forward(self, x):
        x = self.one(x)
        half = x.shape[1] // 2
        return self.head(self.two(x[:, -half:] * x[:, :-half]))


class InPlace(nn.Module):
    """Shapes that operators change in place, of tensors that have other names too."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.one, self.two, self.fc = cbr(3, a), cbr(a, b), nn.Linear(b, 10)

    def forward(self, x):
        x = self.one(x)
        y = x + 1
        y.unsqueeze_(1)
        y.transpose_(1, 2).swapaxes_(1, 2)
        y.squeeze_(1)
        y = self.two(x + y).mean((2, 3), keepdim=True)
        return self.fc(y.squeeze_(-1).squeeze_(-1))


class Copied(nn.Module):
    """Two maps copied into one that was made for them."""

    def __init__(self, a=16, b=8):
        super().__init__()
        self.one, self.two, self.head = cbr(3, a), cbr(3, b), Head(a + b)

    def forward(self, x):
        one, two = self.one(x), self.two(x)
        whole = one.new_zeros(len(x), one.shape[1] + two.shape[1], *one.shape[2:])
        whole[:, : one.shape[1]].copy_(one)
        whole[:, one.shape[1] :] = two
        return self.head(whole)


@pytest.mark.parametrize("net", [Wider, Halves, InPlace, Copied], ids=lambda n: n.__name__)
@pytest.mark.parametrize("ratio", [0.7, 0.4, 0.25])
def test_the_crop_runs_and_only_the_output_is_fixed(net, ratio):
    small = precrop(net(), params=ratio, input_shape=SHAPE)
    assert {f.reason for f in small.crop_plan.fixed} == {"the network's output"}
    small(torch.randn(2, *SHAPE)).sum().backward()

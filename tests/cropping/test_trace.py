import copy
import sys

import pytest
import torch
from nets import HAND_BUILT, Auxiliary, Chain, Grouped, Head, Pixels, Residual, Splits, cbr
from support_macs import counted_macs
from torch import nn

from precrop import PrecropError, inspect, precrop
from precrop.errors import ModelNameError, TraceError

SHAPE = (3, 8, 8)


def shapes(model):
    return {name: tuple(t.shape) for name, t in model.state_dict().items()}


def step(model):
    model.train()
    output = model(torch.randn(4, *SHAPE))
    sum(o.sum() for o in (output if isinstance(output, tuple) else (output,))).backward()
    return output


@pytest.mark.parametrize("net", HAND_BUILT, ids=lambda net: net.__name__)
def test_crop_equals_the_network_built_by_hand(net):
    model = net()
    before = copy.deepcopy(model.state_dict())
    small = precrop(model, params=0.5, input_shape=SHAPE)
    rows = {row.name: row for row in small.crop_plan.layers}
    kept = {argument: rows[layer].out_kept for argument, layer in HAND_BUILT[net].items()}
    if net is Pixels:
        kept["quarter"] //= 4

    by_hand = net(**kept)
    assert shapes(small) == shapes(by_hand)
    assert repr(small) == repr(by_hand)
    assert type(small) is net
    assert small.crop_plan.params_ratio <= 0.5
    step(small)
    assert small.eval()(torch.randn(2, *SHAPE)).shape == (2, 10)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize("net", HAND_BUILT, ids=lambda net: net.__name__)
def test_every_width_that_can_vary_does(net):
    graph = inspect(net(), input_shape=SHAPE)
    assert [f.layer for f in graph.fixed] == [
        name for name in ("head.fc", "mlp.3", "aux.fc") if name in dict(net().named_modules())
    ]
    assert all(f.reason == "the network's output" for f in graph.fixed)


@pytest.mark.parametrize("net", HAND_BUILT, ids=lambda net: net.__name__)
def test_costs_are_those_of_the_network(net):
    """Parameters by counting, MACs by torch's own flop counter, before and after a crop."""
    model = net()
    small = precrop(model, params=0.4, input_shape=SHAPE)
    plan = small.crop_plan
    for network, size in ((model, plan.original), (small, plan.cropped)):
        assert size.macs == counted_macs(network, SHAPE)
        assert size.params == sum(p.numel() for p in network.parameters())


def test_activations_count_the_outputs_of_convolutions_and_linear_layers():
    graph = inspect(Chain(a=16, b=32), input_shape=SHAPE)
    assert graph.size(graph.original).activations == 16 * 64 + 32 * 64 + 10


def test_tied_layers_share_one_width():
    (stream, inner) = inspect(Residual(), input_shape=SHAPE).widths
    assert stream.layers == ("stem.0", "down.0")
    assert inner.layers == ("up.0",)


def test_groups_set_the_unit():
    stem, grouped = inspect(Grouped(), input_shape=SHAPE).widths
    assert (stem.multiple, grouped.multiple) == (4, 4)


def test_a_head_that_runs_in_training_only_follows_and_costs_nothing():
    graph = inspect(Auxiliary(), input_shape=SHAPE)
    plain = inspect(Chain(a=16, b=24), input_shape=SHAPE)
    assert graph.size(graph.original).macs == plain.size(plain.original).macs
    assert graph.shapes["aux.fc.weight"][1] == graph.shapes["one.0.weight"][0]


def test_a_size_written_in_the_forward_is_fixed_by_its_line():
    graph = inspect(Splits(), input_shape=SHAPE)
    fixed = {f.layer: f for f in graph.fixed}
    assert fixed["stem.0"].size == 16
    assert "nets.py:" in fixed["stem.0"].reason
    assert "torch.split(self.stem(x), [4, 12], 1)" in fixed["stem.0"].reason
    assert [w.name for w in graph.widths] == ["conv.0", "last.0"]


class Slice(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.next, self.head = cbr(3, 24), cbr(8, 16), Head(16)

    def forward(self, x):
        return self.head(self.next(self.stem(x)[:, :8]))


def test_a_slice_of_fixed_length_bounds_the_width_below():
    graph = inspect(Slice(), input_shape=SHAPE)
    assert {w.name: w.minimum for w in graph.widths} == {"stem.0": 8, "next.0": 1}
    small = precrop(Slice(), params=0.3, input_shape=SHAPE)
    step(small)
    assert small.stem[0].out_channels >= 8


def test_ignored_layers_keep_their_width():
    small = precrop(Chain(), 0.5, input_shape=SHAPE, ignore=["one"])
    assert small.one[0].out_channels == 16
    assert small.two[0].out_channels < 32
    assert {f.layer: f.reason for f in small.crop_plan.fixed}["one.0"] == "asked to ignore"


def test_unknown_ignored_layer_is_an_error_with_the_near_name():
    with pytest.raises(ModelNameError, match=r"'one\.1'.*one\.0"):
        precrop(Chain(), 0.5, input_shape=SHAPE, ignore=["one.1"])


def test_failing_forward_names_the_line_and_suggests_input_shape():
    model = nn.Sequential(cbr(3, 8), nn.Flatten(), nn.Linear(8 * 64, 10))
    with pytest.raises(TraceError, match=r"\(3, 224, 224\).*input_shape="):
        precrop(model, 0.5)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = cbr(3, 16), Head(16)

    def forward(self, x):
        x = self.stem(x)
        if x.mean() > 0:
            x = -x
        return self.head(x)


def test_branch_on_data_names_the_line():
    with pytest.raises(TraceError, match=r"branches on the data .*test_trace\.py:\d+ \(if x\.mean\(\) > 0:\)"):
        precrop(Branches(), 0.5, input_shape=SHAPE)


def test_nothing_to_crop():
    with pytest.raises(PrecropError, match="no layer that can be cropped"):
        precrop(nn.Sequential(nn.Conv2d(3, 1, 3), nn.Flatten()), 0.5, input_shape=SHAPE)


def test_a_model_without_weights_has_nothing_to_crop():
    with pytest.raises(PrecropError, match="no layer that can be cropped"):
        precrop(nn.Sequential(nn.ReLU(), nn.Flatten()), 0.5)


def test_python_that_counts_channels_pins_them():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = cbr(3, 16), Head(16)

        def forward(self, x):
            x = self.stem(x)
            return self.head(torch.stack([x[:, i] for i in range(x.shape[1])], 1))

    graph = inspect(Counts(), input_shape=SHAPE)
    assert "range(x.shape[1])" in {f.layer: f.reason for f in graph.fixed}["stem.0"]


def test_factory_calls_take_symbolic_sizes():
    class Zeros(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = cbr(3, 16), Head(16)

        def forward(self, x):
            x = self.stem(x)
            return self.head(x + torch.zeros(x.shape[1]).view(-1, 1, 1))

    assert [w.name for w in inspect(Zeros(), input_shape=SHAPE).widths] == ["stem.0"]
    step(precrop(Zeros(), 0.5, input_shape=SHAPE))


def test_cropping_twice():
    once = precrop(Chain(a=32, b=64), 0.5, input_shape=SHAPE)
    twice = precrop(once, 0.5)
    assert twice.crop_plan.original == once.crop_plan.cropped
    assert twice.crop_plan.params_ratio <= 0.5
    step(twice)


def test_tracing_leaves_the_model_and_the_random_state_alone():
    model = Residual()
    modes = [m.training for m in model.modules()]
    state = torch.get_rng_state()
    inspect(model, input_shape=SHAPE)
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [m.training for m in model.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_origins_stop_at_the_forward():
    """A pin that the network's code did not cause is not blamed on the caller."""
    graph = inspect(Chain(), input_shape=SHAPE)
    assert sys._getframe().f_code.co_filename not in " ".join(f.reason for f in graph.fixed)

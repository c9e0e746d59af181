"""What cropping a network whose widths are arguments has to give: the network built by hand at the new widths."""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass

import torch
from support_macs import counted_macs
from torch import nn
from torch.utils._pytree import tree_leaves

from precrop import inspect, plan, precrop
from precrop.cropping.layers import INPUT_NAMES, OUTPUT_NAMES, settled
from precrop.cropping.shrink import shrink

OUTPUT = "^the network's output$"


def line(source):
    """The reason that names a line of one of these files."""
    return rf"^kinds\w*\.py:\d+ \(.*{re.escape(source)}"


@dataclass(frozen=True)
class Kind:
    """A network and the crop that is expected of it.

    ``widths`` maps each argument of the class to the layer whose output it is; ``("stem.0", 4)`` says
    that the layer's output is four times the argument. ``fixed`` maps each layer that is rightly fixed
    to a pattern of the reason. ``shape`` is one image's.
    """

    title: str
    net: Callable[..., nn.Module]
    widths: dict[str, str | tuple[str, int]]
    fixed: dict[str, str] = field(default_factory=lambda: {"head.fc": OUTPUT})
    shape: tuple[int, ...] = (3, 8, 8)


def arguments(kind, channels):
    """The class's arguments at the channels that each layer puts out."""
    kept = {}
    for argument, layer in kind.widths.items():
        name, times = (layer, 1) if isinstance(layer, str) else layer
        kept[argument], rest = divmod(channels(name), times)
        assert rest == 0, f"{name} has {channels(name)} channels, no multiple of {times}"
    return kept


def layer_outputs(graph, widths):
    values = graph.values(widths).__getitem__
    return {layer.name: settled(layer.outgoing, values) for layer in graph.layers}.__getitem__


def assert_report(kind, graph):
    """Every width that can vary does; whatever cannot is named with its reason."""
    reasons = {f.layer: f.reason for f in graph.fixed}
    assert set(reasons) == set(kind.fixed)
    for layer, pattern in kind.fixed.items():
        assert re.search(pattern, reasons[layer]), f"{layer}: {reasons[layer]}"
    layers = {layer if isinstance(layer, str) else layer[0] for layer in kind.widths.values()}
    free = {width.name for width in graph.widths}
    assert len(free) == len(layers), f"free: {sorted(free)}"
    now = layer_outputs(graph, graph.original)
    for width in graph.widths:
        if not width.name.endswith("[part]"):  # what one layer puts out beyond another width
            assert width.size == now(width.name)
        assert width.minimum < width.size, f"{width.name} cannot vary"
        least = layer_outputs(graph, {**graph.original, width.name: width.minimum})
        assert any(least(name) < now(name) for name in layers), f"{width.name} is no argument's"


def assert_built_by_hand(kind, small, kept):
    """The crop is the network of its class with the arguments ``kept``: shapes, structure and function."""
    by_hand = kind.net(**kept)
    assert type(small) is type(by_hand)
    shapes, expected = ({name: tuple(t.shape) for name, t in m.state_dict().items()} for m in (small, by_hand))
    assert shapes == expected
    assert repr(small) == repr(by_hand)
    assert told(small) == told(by_hand)
    by_hand.load_state_dict(small.state_dict())
    image = torch.randn(2, *kind.shape)
    with torch.no_grad():
        for one, other in zip(outputs(small.eval(), image), outputs(by_hand.eval(), image), strict=True):
            assert torch.equal(one, other)


def told(model):
    """The sizes that modules keep under the usual names, for others to read."""
    return {
        (path, name): vars(module)[name]
        for path, module in model.named_modules()
        for name in (*INPUT_NAMES, *OUTPUT_NAMES)
        if name in vars(module)
    }


def outputs(model, image):
    found = model(image)
    found = vars(found) if is_dataclass(found) else found
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def assert_trains(model, image):
    """One step of training reaches every parameter that the uncropped network's training reaches."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
    model.train()
    before = [p.detach().clone() for p in model.parameters()]
    sum((output.float() ** 2).mean() for output in outputs(model, image)).backward()
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return {name for name, p in model.named_parameters() if p.grad is not None}


def assert_crops(kind, params=0.5):
    """Cropped to half its parameters the network trains, keeps its output's shape and equals one built by hand."""
    model = kind.net()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    small = precrop(model, params=params, input_shape=kind.shape)
    found = small.crop_plan
    rows = {row.name: row.out_kept for row in found.layers}
    assert found.params_ratio <= params
    unused = inspect(model, input_shape=kind.shape).unused_params
    assert found.cropped.params == sum(p.numel() for p in small.parameters()) - unused
    assert_built_by_hand(kind, small, arguments(kind, rows.__getitem__))
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    again = plan(model, params=params, input_shape=kind.shape)
    # A crop's notes go on with what could not be told of the initial values, which a plan alone does not draw.
    assert found.notes[: len(again.notes)] == again.notes
    assert again == found.model_copy(update={"notes": again.notes}), "another crop of the same model differs"

    image = torch.randn(3, *kind.shape)
    before, after = ([tuple(o.shape) for o in outputs(m.eval(), image)] for m in (model, small))
    assert before == after
    for network, size in ((model, found.original), (small, found.cropped)):
        assert size.macs == counted_macs(network, kind.shape)
    assert assert_trains(small, image) == assert_trains(model, image)
    return small


def assert_any_widths(kind, graph, tries=4):
    """Not only the widths that a budget chooses give a network that runs: the least ones do, and any between."""
    draw = torch.Generator().manual_seed(1)
    model = kind.net()
    for number in range(tries):
        widths = {}
        for w in graph.widths:
            low, high = -(-w.minimum // w.multiple), w.size // w.multiple
            units = int(torch.randint(low, high + 1, (), generator=draw)) if number else low
            widths[w.name] = units * w.multiple
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            small = shrink(model, graph, widths)
        assert_built_by_hand(kind, small, arguments(kind, layer_outputs(graph, widths)))


def assert_kind(kind):
    graph = inspect(kind.net(), input_shape=kind.shape)
    assert_report(kind, graph)
    assert_any_widths(kind, graph)
    assert_crops(kind)

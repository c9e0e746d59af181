"""The network of a description, and what the description says of its widths."""

from __future__ import annotations

import torch
from torch import nn

from .blocks import BLOCKS, conv_of
from .description import Demands, Description, Form, single, value
from .initial import initialize

CLASSES = 7


class Head(nn.Module):
    """A pooled classifier, one with a hidden layer (a width), one of the flattened map, or a layer for every place."""

    def __init__(self, kind: str, channels: int, places: int, d: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "dense":
            self.fc = conv_of(d)(channels, CLASSES, 1)
        elif kind == "flat":
            self.fc = nn.Linear(channels * places, CLASSES)
        else:
            self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x):
        if self.kind == "dense":
            return self.fc(x)
        return self.fc(torch.flatten(x, 1) if self.kind == "flat" else x.flatten(2).mean(2))


class Net(nn.Module):
    """The blocks in a row, a head, and the taps; ``training`` taps are put out in training alone."""

    def __init__(self, description: Description) -> None:
        super().__init__()
        self.container, self.taps = description.container, description.taps
        forms, d, widths = forms_of(description), len(description.image) - 1, description.widths
        channels = [description.image[0], *(value(form, widths) for form in forms)]
        self.blocks = nn.ModuleList(
            BLOCKS[block.kind](c, [widths[name] for name in block.widths], block.options)
            for c, block in zip(channels, description.blocks, strict=False)
        )
        places = places_of(self.blocks, description) if description.head == "flat" else 1
        self.head = Head(description.head, channels[-1], places, d) if description.head != "none" else nn.Identity()
        self.aux = nn.ModuleList(
            Head("pooled", channels[at + 1], 1, d) if kind != "feature" else nn.Identity()
            for at, kind in description.taps
        )

    def forward(self, x):
        found = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            for (at, kind), aux in zip(self.taps, self.aux, strict=True):
                if at == number and (kind != "training" or self.training):
                    found.append(aux(x))
        found.insert(0, self.head(x))
        if self.container == "dict":
            return {f"out{i}": out for i, out in enumerate(found)}
        return tuple(found) if len(found) > 1 else found[0]


def build(description: Description, device: str = "cpu") -> Net:
    """The network, from the description's seed; torch's random state stays."""
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(description.seed)
        net = Net(description)
        initialize(net, description.weights, description.biases)
    return net


def places_of(blocks: nn.ModuleList, description: Description) -> int:
    """The places of the last map: the blocks run on no data."""
    with torch.no_grad():
        x = torch.zeros(1, *description.image)
        for block in blocks.eval():
            x = block(x)
    blocks.train()
    return x[0, 0].numel()


def walk(description: Description) -> tuple[list[Form], Demands]:
    """The channels after each block, and what all blocks demand. Raises `ValueError` where a block does not fit."""
    form: Form = {"": description.image[0]}
    demands, forms = Demands(), []
    for block in description.blocks:
        found = BLOCKS[block.kind].describe(form, block.widths, block.options, demands)
        if found is None:
            raise ValueError(f"{block.kind} cannot follow {form}")
        forms.append(form := found)
    seen = [forms[at] for at, kind in description.taps if kind == "feature"]
    for kept in [*seen, *([form] if description.head == "none" else [])]:
        name = single(kept)
        if name is None:
            raise ValueError(f"an output of {kept} fixes no single width")
        demands.fixed.add(name)
    return forms, demands


def forms_of(description: Description) -> list[Form]:
    """The channels after each block."""
    return walk(description)[0]


def owners_of(description: Description) -> dict[str, tuple[str, int, int]]:
    """Where each width is read off: its tensor, the axis, and how many times the width that is."""
    found = {}
    for number, block in enumerate(description.blocks):
        for name, (tensor, axis, times) in BLOCKS[block.kind].owners(block.widths, block.options).items():
            found[name] = (f"blocks.{number}.{tensor}", axis, times)
    return found


def widths_of(description: Description, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """The widths that tensors of these shapes have. Raises `ValueError` for one that is no whole number."""
    found = {}
    for name, (tensor, axis, times) in owners_of(description).items():
        found[name], rest = divmod(shapes[tensor][axis], times)
        if rest:
            raise ValueError(f"{tensor} has {shapes[tensor][axis]} channels, no multiple of {times}")
    return found

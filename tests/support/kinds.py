"""Small networks of the kinds that channel pruning is known to get wrong, each with the crop that is expected of it.

A network's widths are the arguments of its class, so that a crop can be compared with one built by hand.
"""

import torch
import torch.nn.functional as F
from handbuilt import OUTPUT, Kind, line
from nets import Head, cbr
from torch import nn


class ModuleShuffle(nn.Module):
    def __init__(self, a=16, b=12):
        super().__init__()
        self.one, self.shuffle, self.two, self.head = cbr(3, a), nn.ChannelShuffle(2), cbr(a, b), Head(b)

    def forward(self, x):
        return self.head(self.two(self.shuffle(self.one(x))))


class CrossStage(nn.Module):
    """The C2f block of YOLO: a list of halves that grows."""

    def __init__(self, half=8, one=12, two=10, b=16):
        super().__init__()
        self.stem = cbr(3, 2 * half)
        self.blocks = nn.ModuleList([cbr(half, one), cbr(one, two)])
        self.join, self.head = cbr(2 * half + one + two, b), Head(b)

    def forward(self, x):
        y = list(self.stem(x).chunk(2, 1))
        for block in self.blocks:
            y.append(block(y[-1]))
        return self.head(self.join(torch.cat(y, 1)))


class SplitByShare(nn.Module):
    """Split sizes computed from the tensor, so that they follow it."""

    def __init__(self, quarter=4, b=16):
        super().__init__()
        self.stem, self.conv, self.last = cbr(3, 4 * quarter), cbr(quarter, quarter), cbr(4 * quarter, b)
        self.head = Head(b)

    def forward(self, x):
        x = self.stem(x)
        part = x.shape[1] // 4
        small, large = torch.split(x, [part, x.shape[1] - part], 1)
        return self.head(self.last(torch.cat([small + self.conv(small), large], 1)))


class SplitByAttribute(nn.Module):
    """Split sizes kept as numbers in the module: stale after a crop, so the width is rightly fixed."""

    def __init__(self, a=8, b=16):
        super().__init__()
        self.sizes = [4, 12]
        self.stem, self.conv, self.last, self.head = cbr(3, 16), cbr(4, a), cbr(12 + a, b), Head(b)

    def forward(self, x):
        small, large = self.stem(x).split(self.sizes, 1)
        return self.head(self.last(torch.cat([self.conv(small), large], 1)))


class Sliced(nn.Module):
    """Only the first eight channels are read: the rest may go, those may not."""

    def __init__(self, a=24, b=16):
        super().__init__()
        self.stem, self.next, self.head = cbr(3, a), cbr(8, b), Head(b)

    def forward(self, x):
        return self.head(self.next(self.stem(x)[:, :8]))


class FlattenByNumber(nn.Module):
    """Flattened by ``view(-1, 128)``, a number that no narrower map has."""

    def __init__(self, b=32):
        super().__init__()
        self.stem, self.pool, self.hidden, self.fc = (
            cbr(3, 8),
            nn.AdaptiveAvgPool2d(4),
            nn.Linear(128, b),
            nn.Linear(b, 10),
        )

    def forward(self, x):
        return self.fc(torch.relu(self.hidden(self.pool(self.stem(x)).view(-1, 8 * 4 * 4))))


class FlattenByBatch(FlattenByNumber):
    """The same, with the batch's size written and the rest left to torch: everything follows."""

    def __init__(self, a=8, b=32):
        super().__init__(b)
        self.stem, self.hidden = cbr(3, a), nn.Linear(16 * a, b)

    def forward(self, x):
        x = self.pool(self.stem(x))
        return self.fc(torch.relu(self.hidden(x.reshape(x.size(0), -1))))


class ChannelAttention(nn.Module):
    """ECA: the channels are the length that a one-dimensional convolution runs along."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.attention, self.last, self.head = (
            cbr(3, a),
            nn.Conv1d(1, 1, 3, padding=1, bias=False),
            cbr(a, b),
            Head(b),
        )

    def forward(self, x):
        x = self.stem(x)
        y = self.attention(F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(-1, -2))
        return self.head(self.last(x * y.transpose(-1, -2).unsqueeze(-1).sigmoid().expand_as(x)))


class GroupNorms(nn.Module):
    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(3, a, 3, padding=1, bias=False), nn.GroupNorm(4, a)
        self.two, self.norm2 = nn.Conv2d(a, b, 3, padding=1, bias=False), nn.GroupNorm(4, b)
        self.head = Head(b)

    def forward(self, x):
        x = torch.relu(self.norm1(self.one(x)))
        return self.head(torch.relu(self.norm2(self.two(x))))


class InstanceNorms(nn.Module):
    """With parameters and statistics, and without either."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(3, a, 3), nn.InstanceNorm2d(a, affine=True, track_running_stats=True)
        self.two, self.norm2, self.head = nn.Conv2d(a, b, 3), nn.InstanceNorm2d(b), Head(b)

    def forward(self, x):
        x = torch.relu(self.norm1(self.one(x)))
        return self.head(torch.relu(self.norm2(self.two(x))))


class NoNorms(nn.Sequential):
    def __init__(self, a=16, b=24):
        super().__init__(
            nn.Conv2d(3, a, 3), nn.PReLU(a), nn.Conv2d(a, b, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.append(nn.Linear(b, 10))


class PreActivation(nn.Module):
    def __init__(self, stream=16, inner=24):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, stream, 3, padding=1, bias=False), Head(stream)
        self.norm1, self.conv1 = nn.BatchNorm2d(stream), nn.Conv2d(stream, inner, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(inner), nn.Conv2d(inner, stream, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(stream)

    def forward(self, x):
        x = self.stem(x)
        y = self.conv1(torch.relu(self.norm1(x)))
        y = self.conv2(torch.relu(self.norm2(y)))
        return self.head(torch.relu(self.norm3(x + y)))


class Unused(nn.Module):
    """A module that forward never runs keeps its size."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.two, self.head = cbr(3, a), cbr(a, b), Head(b)
        self.spare = cbr(16, 20)

    def forward(self, x):
        return self.head(self.two(self.one(x)))


KINDS = (
    Kind("2 ChannelShuffle", ModuleShuffle, {"a": "one.0", "b": "two.0"}),
    Kind(
        "4 a list of halves that grows",
        CrossStage,
        {"half": ("stem.0", 2), "one": "blocks.0.0", "two": "blocks.1.0", "b": "join.0"},
    ),
    Kind("5 split by a share", SplitByShare, {"quarter": ("stem.0", 4), "b": "last.0"}),
    Kind(
        "5 split by numbers in an attribute",
        SplitByAttribute,
        {"a": "conv.0", "b": "last.0"},
        {"head.fc": OUTPUT, "stem.0": line(".split(self.sizes, 1)")},
    ),
    Kind("6 slice of fixed length", Sliced, {"a": "stem.0", "b": "next.0"}),
    Kind(
        "8 flattened by a number",
        FlattenByNumber,
        {"b": "hidden"},
        {"fc": OUTPUT, "stem.0": line("view(-1, 8 * 4 * 4)")},
    ),
    Kind("8 flattened by the batch's size", FlattenByBatch, {"a": "stem.0", "b": "hidden"}, {"fc": OUTPUT}),
    Kind("13 convolution over channels", ChannelAttention, {"a": "stem.0", "b": "last.0"}),
    Kind("20 GroupNorm", GroupNorms, {"a": "one", "b": "two"}),
    Kind("20 InstanceNorm", InstanceNorms, {"a": "one", "b": "two"}),
    Kind("20 no norms", NoNorms, {"a": "0", "b": "2"}, {"6": OUTPUT}),
    Kind("22 pre-activation", PreActivation, {"stream": "stem", "inner": "conv1"}),
    Kind("25 a module never used", Unused, {"a": "one.0", "b": "two.0"}),
)

"""Small networks that cut, join and rearrange channels in unusual ways."""

import torch
import torch.nn.functional as F
from handbuilt import OUTPUT, Kind
from nets import Head, cbr
from torch import nn


class Trunk(nn.Module):
    """A stem, something done to its channels in `rearrange`, and a last convolution."""

    rearrange = staticmethod(lambda x: x)

    def __init__(self, a=16, b=12, times=1):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a * times, b), Head(b)

    def forward(self, x):
        return self.head(self.last(self.rearrange(self.stem(x))))


class Halves(nn.Module):
    """The same, where the last convolution reads half of the stem's channels."""

    def __init__(self, half=8, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, 2 * half), cbr(half, b), Head(b)

    def forward(self, x):
        return self.head(self.last(self.rearrange(self.stem(x))))


class Reversed(nn.Module):
    """A dense block that puts the newest map first, and reverses the list."""

    def __init__(self, a=8, one=6, two=10):
        super().__init__()
        self.stem, self.one, self.two, self.head = cbr(3, a), cbr(a, one), cbr(one + a, two), Head(two + one + a)

    def forward(self, x):
        maps = [self.stem(x)]
        maps.append(self.one(maps[0]))
        maps.append(self.two(torch.cat(maps[::-1], 1)))
        return self.head(torch.cat(tuple(reversed(maps)), dim=-3))


class EveryOther(Halves):
    def rearrange(self, x):
        return x[:, ::2] - x[:, 1::2]


class Narrowed(Halves):
    def rearrange(self, x):
        half = x.size(1) // 2
        return x.narrow(1, 0, half) * torch.narrow(x, 1, half, half)


class Unflattened(Halves):
    def rearrange(self, x):
        one, two = x.unflatten(1, (2, -1)).unbind(1)
        return one + two


class SplitByHalf(Halves):
    def rearrange(self, x):
        one, two = x.split(x.shape[1] // 2, dim=1)
        return torch.maximum(one, two)


class TensorSplit(Halves):
    def rearrange(self, x):
        one, two = torch.tensor_split(x, 2, 1)
        return torch.where(one > 0, one, two)


class Repeated(Trunk):
    def __init__(self, a=8, b=12):
        super().__init__(a, b, 4)

    def rearrange(self, x):
        return torch.cat([x.repeat(1, 2, 1, 1), x.repeat_interleave(2, 1)], 1)


class ExpandedBias(Trunk):
    """One bias for each two channels, repeated over them by expand and reshape."""

    def __init__(self, half=8, b=12):
        super().__init__(2 * half, b)
        self.bias = nn.Parameter(torch.zeros(half, 1))

    def rearrange(self, x):
        bias = self.bias.expand(-1, 2).reshape(1, -1, 1, 1)
        return x + bias.expand(x.shape)


class Rolled(Trunk):
    """Channels moved in a circle, mirrored, and summed up one after another."""

    def rearrange(self, x):
        return torch.roll(x, 1, 1) + x.flip(1) + x.cumsum(1)


class Shifted(Trunk):
    """A quarter of the channels is moved by one pixel, by writing into slices of an empty map."""

    def __init__(self, quarter=4, b=12):
        super().__init__(4 * quarter, b)

    def rearrange(self, x):
        fold = x.size(1) // 4
        out = torch.zeros_like(x)
        out[:, :fold, 1:] = x[:, :fold, :-1]
        out[:, fold:] = x[:, fold:]
        return out


class PartlyConvolved(Trunk):
    """A convolution on the first quarter of the channels, written back in place."""

    def __init__(self, quarter=4, b=12):
        super().__init__(4 * quarter, b)
        self.part = nn.Conv2d(quarter, quarter, 3, padding=1)

    def rearrange(self, x):
        quarter = x.shape[1] // 4
        y = x.clone()
        y[:, :quarter] = self.part(x[:, :quarter])
        return y


class PartlyConvolvedByNumber(Trunk):
    """The same with the number of channels kept in the module."""

    def __init__(self, a=16, part=4, b=12):
        super().__init__(a, b)
        self.dim, self.part = 4, nn.Conv2d(4, part, 3, padding=1)
        self.last = cbr(a - 4 + part, b)

    def rearrange(self, x):
        one, two = torch.split(x, [self.dim, x.shape[1] - self.dim], dim=1)
        return torch.cat((self.part(one), two), 1)


class RestByNumber(Trunk):
    """Four channels are set aside by number, so that at least those have to stay."""

    def rearrange(self, x):
        one, two = torch.split(x, [4, x.shape[1] - 4], dim=1)
        return torch.cat([one.sigmoid(), two], 1)


class DepthToSpace(nn.Module):
    """A pixel shuffle by view and permute, and its inverse by strided slices."""

    def __init__(self, quarter=4, b=8, c=12):
        super().__init__()
        self.stem, self.middle, self.last, self.head = cbr(3, 4 * quarter), cbr(quarter, b), cbr(4 * b, c), Head(c)

    def forward(self, x):
        x = self.stem(x)
        n, c, h, w = x.shape
        x = x.view(n, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, h * 2, w * 2)
        x = self.middle(x)
        x = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
        return self.head(self.last(x))


class Unshuffled(nn.Module):
    def __init__(self, a=6, b=12):
        super().__init__()
        self.stem, self.down, self.last, self.head = cbr(3, a), nn.PixelUnshuffle(2), cbr(4 * a, b), Head(b)

    def forward(self, x):
        return self.head(self.last(self.down(self.stem(x))))


class Patches(nn.Module):
    """Unfold, a linear layer on each patch, and Fold."""

    def __init__(self, a=6, b=8, c=5):
        super().__init__()
        self.stem, self.mix, self.back = cbr(3, a), nn.Linear(4 * a, b), nn.Linear(b, 4 * c)
        self.unfold, self.fold, self.head = nn.Unfold(2, stride=2), nn.Fold((8, 8), 2, stride=2), Head(c)

    def forward(self, x):
        y = self.unfold(self.stem(x)).transpose(1, 2)
        return self.head(self.fold(self.back(torch.relu(self.mix(y))).transpose(1, 2)))


class Involution(nn.Module):
    """A kernel for each position, made of the map itself, applied to its unfolded neighbourhoods."""

    def __init__(self, a=16, squeezed=6):
        super().__init__()
        self.stem, self.reduce, self.span, self.head = cbr(3, a), cbr(a, squeezed), nn.Conv2d(squeezed, 9, 1), Head(a)

    def forward(self, x):
        x = self.stem(x)
        n, c, h, w = x.shape
        kernel = self.span(self.reduce(x)).view(n, 1, 9, h, w)
        return self.head((F.unfold(x, 3, padding=1).view(n, c, 9, h, w) * kernel).sum(2))


class PaddedShortcut(nn.Module):
    """The parameter-free shortcut of the first ResNets: zeros stand for the channels that are new."""

    def __init__(self, a=8, b=16):
        super().__init__()
        self.stem, self.block, self.head = cbr(3, a), nn.Conv2d(a, b, 3, stride=2, padding=1), Head(b)

    def forward(self, x):
        x = self.stem(x)
        y = self.block(x)
        more = y.shape[1] - x.shape[1]
        return self.head(y + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, more // 2, more - more // 2)))


class SamePadding(nn.Module):
    """Padding computed from the size of the map, and padding that mirrors."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, a, 3, padding=1, padding_mode="reflect"), Head(b)
        self.last = nn.Conv2d(a, b, 3, stride=2)

    def forward(self, x):
        x = self.stem(x)
        pad = max((-(-x.shape[-1] // 2) - 1) * 2 + 3 - x.shape[-1], 0)
        return self.head(self.last(F.pad(x, [pad // 2, pad - pad // 2, pad // 2, pad - pad // 2])))


class GroupsAndShuffle(nn.Module):
    """The unit of ShuffleNetV1: grouped, shuffled, depthwise, grouped, joined with its pooled input."""

    def __init__(self, third=4, inner=5, out=3):
        super().__init__()
        self.stem, self.squeeze = cbr(3, 3 * third), nn.Conv2d(3 * third, 3 * inner, 1, groups=3)
        self.depthwise = nn.Conv2d(3 * inner, 3 * inner, 3, stride=2, padding=1, groups=3 * inner)
        self.expand, self.head = nn.Conv2d(3 * inner, 3 * out, 1, groups=3), Head(3 * third + 3 * out)

    def forward(self, x):
        x = self.stem(x)
        y = torch.relu(self.squeeze(x))
        n, c, h, w = y.shape
        y = y.reshape(n, 3, c // 3, h, w).permute(0, 2, 1, 3, 4).reshape(n, c, h, w)
        return self.head(torch.cat([F.avg_pool2d(x, 3, 2, 1), self.expand(self.depthwise(y))], 1))


class Coordinates(nn.Module):
    """Two channels of coordinates beside the features."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a + 2, b), Head(b)

    def forward(self, x):
        x = self.stem(x)
        n, _, h, w = x.shape
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack([rows, columns]).to(x).expand(n, -1, -1, -1)
        return self.head(self.last(torch.cat([x, grid], 1)))


HALF = {"half": ("stem.0", 2), "b": "last.0"}
QUARTER = {"quarter": ("stem.0", 4), "b": "last.0"}

KINDS = (
    Kind("reversed concatenation", Reversed, {"a": "stem.0", "one": "one.0", "two": "two.0"}),
    Kind("every other channel", EveryOther, HALF),
    Kind("narrow", Narrowed, HALF),
    Kind("unflatten and unbind", Unflattened, HALF),
    Kind("split by half", SplitByHalf, HALF),
    Kind("tensor_split", TensorSplit, HALF),
    Kind("repeat", Repeated, {"a": "stem.0", "b": "last.0"}),
    Kind("expanded bias", ExpandedBias, HALF),
    Kind("rolled channels", Rolled, {"a": "stem.0", "b": "last.0"}),
    Kind("shift by writing into slices", Shifted, QUARTER),
    Kind("partial convolution in place", PartlyConvolved, QUARTER),
    Kind(
        "partial convolution by a number",
        PartlyConvolvedByNumber,
        {"a": "stem.0", "part": "part", "b": "last.0"},
    ),
    Kind("split by a number and the rest", RestByNumber, {"a": "stem.0", "b": "last.0"}),
    Kind("depth to space by view", DepthToSpace, {"quarter": ("stem.0", 4), "b": "middle.0", "c": "last.0"}),
    Kind("pixel unshuffle", Unshuffled, {"a": "stem.0", "b": "last.0"}),
    Kind("unfold and fold", Patches, {"a": "stem.0", "b": "mix", "c": ("back", 4)}),
    Kind("involution", Involution, {"a": "stem.0", "squeezed": "reduce.0"}, {"head.fc": OUTPUT, "span": "view"}),
    Kind("shortcut padded with zeros", PaddedShortcut, {"a": "stem.0", "b": "block"}),
    Kind("padding by the map's size", SamePadding, {"a": "stem", "b": "last"}),
    Kind(
        "groups and shuffle",
        GroupsAndShuffle,
        {"third": ("stem.0", 3), "inner": ("squeeze", 3), "out": ("expand", 3)},
    ),
    Kind(
        "coordinates as channels",
        Coordinates,
        {"a": "stem.0", "b": "last.0"},
    ),
)

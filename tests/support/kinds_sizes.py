"""Small networks whose forward computes with sizes: uneven pieces, ends of slices, groups, comparisons."""

import torch
import torch.nn.functional as F
from handbuilt import OUTPUT, Kind, line
from kinds_layouts import Halves, Trunk
from nets import Head, cbr
from torch import nn


class LastOnes(Trunk):
    """All but the first four channels, and the last four of them again."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        self.last = cbr(a, b)

    def rearrange(self, x):
        return torch.cat([x[:, 4:], x[:, -4:]], 1)


class TwoThirds(nn.Module):
    """A slice up to a share of the channels, and the rest."""

    def __init__(self, third=5, one=8, two=6):
        super().__init__()
        self.stem, self.one, self.two, self.head = (
            cbr(3, 3 * third),
            cbr(2 * third, one),
            cbr(third, two),
            Head(one + two),
        )

    def forward(self, x):
        x = self.stem(x)
        cut = 2 * x.shape[1] // 3
        return self.head(torch.cat([self.one(x[:, :cut]), self.two(x[:, cut:])], 1))


class Ghost(Trunk):
    """More channels are made than kept: cut back to the number that the module was built for."""

    def __init__(self, b=12):
        super().__init__(15, b)
        self.channels, self.cheap = 15, nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.stem = cbr(3, 8)

    def rearrange(self, x):
        return torch.cat([x, self.cheap(x)], 1)[:, : self.channels]


class Scales(nn.Module):
    """Res2Net: quarters pass through one another's convolutions, in a loop."""

    def __init__(self, quarter=4, end=4, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, 4 * quarter), cbr(3 * quarter + end, b), Head(b)
        self.convs = nn.ModuleList([nn.Conv2d(quarter, o, 3, padding=1) for o in (quarter, quarter, end)])

    def forward(self, x):
        pieces = self.stem(x).chunk(4, 1)
        done = [pieces[0]]
        for conv, piece in zip(self.convs, pieces[1:], strict=True):
            done.append(torch.relu(conv(piece + done[-1])))
        return self.head(self.last(torch.cat(done, 1)))


class ScalesByNumber(nn.Module):
    """The same with the width of a piece kept in the module: rightly fixed."""

    def __init__(self, end=4, b=12):
        super().__init__()
        self.stem, self.last, self.head, self.width = cbr(3, 12), cbr(8 + end, b), Head(b), 4
        self.convs = nn.ModuleList([nn.Conv2d(4, o, 3, padding=1) for o in (4, end)])

    def forward(self, x):
        pieces = torch.split(self.stem(x), self.width, 1)
        done = [pieces[0]]
        for conv, piece in zip(self.convs, pieces[1:], strict=True):
            done.append(torch.relu(conv(piece + done[-1])))
        return self.head(self.last(torch.cat(done, 1)))


class GroupPooled(Trunk):
    """Pooled over groups of channels: the number of groups is written, their size is what is left."""

    def __init__(self, quarter=4, b=12):
        super().__init__(4 * quarter, b)

    def rearrange(self, x):
        n, _, h, w = x.shape
        gate = x.view(n, 4, -1, h, w).mean(2, keepdim=True).sigmoid()
        return (x.view(n, 4, -1, h, w) * gate).flatten(1, 2)


class GroupsOfFour(Trunk):
    """The size of a group is written, their number is what is left."""

    def __init__(self, quarter=4, b=12):
        super().__init__(4 * quarter, b)

    def rearrange(self, x):
        n, c, h, w = x.shape
        return x.view(n, -1, 4, h, w).softmax(2).reshape(n, c, h, w)


class NormPerChannel(nn.Module):
    """GroupNorm with as many groups as channels."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.one, self.norm1, self.two, self.head = nn.Conv2d(3, a, 3), nn.GroupNorm(a, a), nn.Conv2d(a, b, 3), Head(b)
        self.norm2 = nn.GroupNorm(1, b)

    def forward(self, x):
        return self.head(torch.relu(self.norm2(self.two(torch.relu(self.norm1(self.one(x)))))))


class Neighbours(Trunk):
    """Norms and pools that run along the channels."""

    def rearrange(self, x):
        x = F.local_response_norm(x, 3)
        x = F.max_pool3d(x.unsqueeze(1), (3, 1, 1), 1, (1, 0, 0)).squeeze(1)
        return x - F.avg_pool1d(x.flatten(2).transpose(1, 2).flatten(0, 1).unsqueeze(1), 3, 1, 1).view(
            x.shape[0], x.shape[2] * x.shape[3], -1
        ).transpose(1, 2).view_as(x)


class PooledInPairs(Halves):
    """The larger of each two channels, by a pool that runs along them."""

    def rearrange(self, x):
        return F.max_pool3d(x, (2, 1, 1))


class Padded(nn.Module):
    """Two empty channels are added, by number."""

    def __init__(self, a=14, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a + 2, b), Head(b)

    def forward(self, x):
        return self.head(self.last(F.pad(self.stem(x), (0, 0, 0, 0, 0, 2))))


class SummedByNumber(nn.Module):
    """A residual on the first channels only, as many as the narrower map has."""

    def __init__(self, a=8, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a, b), Head(b)

    def forward(self, x):
        x = self.stem(x)
        y = self.last(x)
        c = x.shape[1]
        return self.head(torch.cat([y[:, :c] + x, y[:, c:]], 1))


class Narrowest(nn.Module):
    """The same, where the forward asks which of two maps is the narrower: it stays the narrower."""

    def __init__(self, a=8, b=12, c=16):
        super().__init__()
        self.one, self.two, self.last, self.head = cbr(3, a), cbr(3, b), cbr(a, c), Head(c)

    def forward(self, x):
        x, y = self.one(x), self.two(x)
        c = min(x.shape[1], y.shape[1])
        return self.head(self.last(x[:, :c] + y[:, :c]))


class Positions(nn.Module):
    """A vision transformer's stem: a token and positions as bare parameters, the number of attention heads stored."""

    def __init__(self, each=4, hidden=24):
        super().__init__()
        c = 4 * each
        self.stem, self.token = nn.Conv2d(3, c, 2, 2), nn.Parameter(torch.zeros(1, 1, c))
        self.positions, self.qkv = nn.Parameter(torch.zeros(1, 17, c)), nn.Linear(c, 3 * c)
        self.project, self.norm, self.heads = nn.Linear(c, c), nn.LayerNorm(c), 4
        self.up, self.down, self.fc = nn.Linear(c, hidden), nn.Linear(hidden, c), nn.Linear(c, 10)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        n, length, c = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, c)
        x = self.norm(x + self.project(y))
        return self.fc((x + self.down(F.gelu(self.up(x))))[:, 0])


class Temperature(Trunk):
    """The number of channels as a divisor."""

    def __init__(self, b=12):
        super().__init__(16, b)

    def rearrange(self, x):
        return x / x.shape[1] ** 0.5


class Largest(Trunk):
    """The four largest channels at every pixel."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        self.last = cbr(4, b)

    def rearrange(self, x):
        return x.topk(4, dim=1).values


class ListIndexed(Trunk):
    """Channels named one by one."""

    def __init__(self, a=16, b=48):
        super().__init__(a, b)
        self.last = cbr(3, b)

    def rearrange(self, x):
        return x[:, [0, 2, 5]]


class Uneven(nn.Module):
    """Chunks of which the last is smaller, so that their sizes follow no rule: rightly fixed."""

    def __init__(self, b=12):
        super().__init__()
        self.stem, self.one, self.head = cbr(3, 16), cbr(6, b), Head(b + 10)

    def forward(self, x):
        one, *others = self.stem(x).chunk(3, 1)
        return self.head(torch.cat([self.one(one), *others], 1))


class SmallestQuarter(Trunk):
    """The smallest quarter of the channels at every pixel."""

    def __init__(self, quarter=4, b=12):
        super().__init__(4 * quarter, b)
        self.last = cbr(quarter, b)

    def rearrange(self, x):
        return x.sort(1)[0][:, : x.shape[1] // 4]


class Gathered(Trunk):
    """Channels in the order of their means, which depends on the image."""

    def rearrange(self, x):
        order = x.mean((2, 3)).argsort(1)[..., None, None].expand_as(x)
        return x.gather(1, order)


HALF = {"half": ("stem.0", 2), "b": "last.0"}
QUARTER = {"quarter": ("stem.0", 4), "b": "last.0"}
STEM_LAST = {"a": "stem.0", "b": "last.0"}

KINDS = (
    Kind("the last channels", LastOnes, STEM_LAST),
    Kind("two thirds and the rest", TwoThirds, {"third": ("stem.0", 3), "one": "one.0", "two": "two.0"}),
    Kind(
        "ghost channels cut to a number",
        Ghost,
        {"b": "last.0"},
        {"head.fc": OUTPUT, **dict.fromkeys(("stem.0", "cheap"), line("[:, : self.channels]"))},
    ),
    Kind("quarters in a chain", Scales, {**QUARTER, "end": "convs.2"}),
    Kind(
        "pieces of a stored width",
        ScalesByNumber,
        {"end": "convs.1", "b": "last.0"},
        {"head.fc": OUTPUT, "stem.0": line("self.width"), "convs.0": line("done")},
    ),
    Kind("groups by their number", GroupPooled, QUARTER),
    Kind("groups by their size", GroupsOfFour, QUARTER),
    Kind(
        "a norm for each channel",
        NormPerChannel,
        {"b": "two"},
        {"head.fc": OUTPUT, "one": line("self.norm1")},
    ),
    Kind("along the channels", Neighbours, STEM_LAST),
    Kind("pooled in pairs", PooledInPairs, HALF),
    Kind(
        "padded by a number",
        Padded,
        STEM_LAST,
    ),
    Kind(
        "residual on the first channels",
        SummedByNumber,
        STEM_LAST,
    ),
    Kind("the narrower of two", Narrowest, {"a": "one.0", "b": "two.0", "c": "last.0"}),
    Kind("vision transformer", Positions, {"each": ("stem", 4), "hidden": "up"}, {"fc": OUTPUT}),
    Kind(
        "divided by the number of channels", Temperature, {"b": "last.0"}, {"head.fc": OUTPUT, "stem.0": line("** 0.5")}
    ),
    Kind("the largest four", Largest, STEM_LAST),
    Kind(
        "a list of channels",
        ListIndexed,
        {"b": "last.0"},
        {"head.fc": OUTPUT, "stem.0": line("[0, 2, 5]")},
    ),
    Kind(
        "uneven chunks",
        Uneven,
        {"b": "one.0"},
        {"head.fc": OUTPUT, "stem.0": line("chunk(3, 1)")},
    ),
    Kind("the smallest quarter", SmallestQuarter, QUARTER),
    Kind("gathered in an order", Gathered, STEM_LAST),
)

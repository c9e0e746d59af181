"""Small networks whose widths are arguments, so that a crop can be compared with one built by hand."""

import torch
from torch import nn


def cbr(i, o, **kwargs):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, **kwargs), nn.BatchNorm2d(o), nn.ReLU())


class Head(nn.Module):
    """A pooled linear classifier."""

    def __init__(self, channels, classes=10):
        super().__init__()
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


class Chain(nn.Module):
    def __init__(self, a=16, b=32):
        super().__init__()
        self.one, self.two, self.head = cbr(3, a), cbr(a, b), Head(b)

    def forward(self, x):
        return self.head(self.two(self.one(x)))


class Residual(nn.Module):
    def __init__(self, stream=16, inner=32):
        super().__init__()
        self.stem, self.up, self.down, self.head = (
            cbr(3, stream),
            cbr(stream, inner),
            cbr(inner, stream),
            Head(stream),
        )

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.down(self.up(x)))


class Dense(nn.Module):
    def __init__(self, a=16, growth=8, more=12):
        super().__init__()
        self.one, self.two, self.three = cbr(3, a), cbr(a, growth), cbr(a + growth, more)
        self.head = Head(a + growth + more)

    def forward(self, x):
        x = self.one(x)
        x = torch.cat([x, self.two(x)], 1)
        return self.head(torch.cat([x, self.three(x)], 1))


class Shuffle(nn.Module):
    """A channel shuffle in plain views."""

    def __init__(self, a=16, b=16):
        super().__init__()
        self.one, self.two, self.head = cbr(3, a), cbr(a, b), Head(b)

    def forward(self, x):
        x = self.one(x)
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.head(self.two(x))


class ShuffleUnit(nn.Module):
    """The unit of ShuffleNetV2: half through a branch, concatenated, shuffled."""

    def __init__(self, half=8, inner=12):
        super().__init__()
        self.stem, self.up, self.down = cbr(3, 2 * half), cbr(half, inner), cbr(inner, half)
        self.head = Head(2 * half)

    def forward(self, x):
        a, b = self.stem(x).chunk(2, 1)
        x = torch.cat([a, self.down(self.up(b))], 1)
        n, c, h, w = x.size()
        return self.head(x.view(n, 2, c // 2, h, w).transpose(1, 2).flatten(1, 2))


class Depthwise(nn.Module):
    def __init__(self, a=8, b=16, multiplier=2):
        super().__init__()
        self.stem = cbr(3, a)
        self.depthwise = nn.Conv2d(a, multiplier * a, 3, padding=1, groups=a)
        self.point, self.head = cbr(multiplier * a, b), Head(b)

    def forward(self, x):
        return self.head(self.point(self.depthwise(self.stem(x))))


class Grouped(nn.Module):
    def __init__(self, a=16, b=32, groups=4):
        super().__init__()
        self.stem, self.grouped, self.head = cbr(3, a), cbr(a, b, groups=groups), Head(b)

    def forward(self, x):
        return self.head(self.grouped(self.stem(x)))


class Flatten(nn.Module):
    """A classifier on a flattened map: the linear layer has 16 inputs for each channel."""

    def __init__(self, a=8, b=32):
        super().__init__()
        self.stem, self.pool = cbr(3, a), nn.AdaptiveAvgPool2d(4)
        self.mlp = nn.Sequential(nn.Flatten(), nn.Linear(a * 16, b), nn.ReLU(), nn.Linear(b, 10))

    def forward(self, x):
        return self.mlp(self.pool(self.stem(x)))


class Gate(nn.Module):
    """Squeeze-and-excitation written with views."""

    def __init__(self, a=16, squeezed=8):
        super().__init__()
        self.stem, self.down, self.up = cbr(3, a), nn.Linear(a, squeezed), nn.Linear(squeezed, a)
        self.head = Head(a)

    def forward(self, x):
        x = self.stem(x)
        n, c = x.shape[:2]
        y = nn.functional.adaptive_avg_pool2d(x, 1).view(n, c)
        y = torch.sigmoid(self.up(torch.relu(self.down(y)))).view(n, c, 1, 1)
        return self.head(x * y.expand_as(x))


class LayerScale(nn.Module):
    def __init__(self, a=16):
        super().__init__()
        self.stem, self.conv = cbr(3, a), nn.Conv2d(a, a, 1)
        self.gamma = nn.Parameter(torch.full((1, a, 1, 1), 1e-2))
        self.head = Head(a)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.gamma * self.conv(x))


class ChannelsLast(nn.Module):
    """A ConvNeXt-like block: LayerNorm and an MLP over the last axis."""

    def __init__(self, a=16, hidden=32):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, a, 3, padding=1), nn.LayerNorm(a)
        self.up, self.down, self.head = nn.Linear(a, hidden), nn.Linear(hidden, a), Head(a)

    def forward(self, x):
        x = self.stem(x)
        y = self.down(nn.functional.gelu(self.up(self.norm(x.permute(0, 2, 3, 1)))))
        return self.head(x + y.permute(0, 3, 1, 2))


class BareWeight(nn.Module):
    def __init__(self, a=16, b=24):
        super().__init__()
        self.stem = cbr(3, a)
        self.weight = nn.Parameter(torch.randn(b, a, 3, 3) * 0.1)
        self.head = Head(b)

    def forward(self, x):
        return self.head(torch.relu(nn.functional.conv2d(self.stem(x), self.weight, padding=1)))


class Pixels(nn.Module):
    def __init__(self, quarter=4, b=16):
        super().__init__()
        self.stem, self.up = cbr(3, 4 * quarter), nn.PixelShuffle(2)
        self.conv, self.head = cbr(quarter, b), Head(b)

    def forward(self, x):
        return self.head(self.conv(self.up(self.stem(x))))


class Transposed(nn.Module):
    def __init__(self, a=16, b=12, c=16):
        super().__init__()
        self.stem, self.up, self.conv, self.head = (
            cbr(3, a),
            nn.ConvTranspose2d(a, b, 2, 2),
            cbr(b, c),
            Head(c),
        )

    def forward(self, x):
        return self.head(self.conv(self.up(self.stem(x))))


class Twice(nn.Module):
    """One convolution applied twice."""

    def __init__(self, a=16):
        super().__init__()
        self.stem, self.conv, self.head = cbr(3, a), nn.Conv2d(a, a, 3, padding=1), Head(a)

    def forward(self, x):
        return self.head(self.conv(torch.relu(self.conv(self.stem(x)))))


class StandardizedConv(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


class Standardized(nn.Module):
    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.two = StandardizedConv(3, a, 3, padding=1), StandardizedConv(a, b, 3, padding=1)
        self.head = Head(b)

    def forward(self, x):
        return self.head(self.two(torch.relu(self.one(x))))


class Norms(nn.Module):
    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.norm, self.act = nn.Conv2d(3, a, 3, padding=1), nn.GroupNorm(4, a), nn.PReLU(a)
        self.two, self.bn, self.head = nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b, affine=False), Head(b)

    def forward(self, x):
        return self.head(self.bn(self.two(self.act(self.norm(self.one(x))))))


class Auxiliary(nn.Module):
    """A head that runs in training only."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.two, self.head, self.aux = cbr(3, a), cbr(a, b), Head(b), Head(a)

    def forward(self, x):
        x = self.one(x)
        y = self.head(self.two(x))
        return (y, self.aux(x)) if self.training else y


class Splits(nn.Module):
    """Sizes written as numbers in the forward: rightly fixed."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.stem, self.conv, self.head = cbr(3, a), cbr(4, 4), Head(b)
        self.last = cbr(a, b)

    def forward(self, x):
        small, large = torch.split(self.stem(x), [4, 12], 1)
        return self.head(self.last(torch.cat([self.conv(small), large], 1)))


#: Network class and the attribute arguments that its crop must be rebuilt from: argument -> width name.
HAND_BUILT = {
    Chain: {"a": "one.0", "b": "two.0"},
    Residual: {"stream": "stem.0", "inner": "up.0"},
    Dense: {"a": "one.0", "growth": "two.0", "more": "three.0"},
    Shuffle: {"a": "one.0", "b": "two.0"},
    ShuffleUnit: {"half": "down.0", "inner": "up.0"},
    Depthwise: {"a": "stem.0", "b": "point.0"},
    Grouped: {"a": "stem.0", "b": "grouped.0"},
    Flatten: {"a": "stem.0", "b": "mlp.1"},
    Gate: {"a": "stem.0", "squeezed": "down"},
    LayerScale: {"a": "stem.0"},
    ChannelsLast: {"a": "stem", "hidden": "up"},
    BareWeight: {"a": "stem.0", "b": "weight"},
    Pixels: {"quarter": "stem.0", "b": "conv.0"},
    Transposed: {"a": "stem.0", "b": "up", "c": "conv.0"},
    Twice: {"a": "stem.0"},
    Standardized: {"a": "one", "b": "two"},
    Norms: {"a": "one", "b": "two"},
    Auxiliary: {"a": "one.0", "b": "two.0"},
}

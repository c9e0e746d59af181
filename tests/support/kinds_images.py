"""Small networks without a classifier: images, volumes and signals come out, or images come of vectors."""

import torch
import torch.nn.functional as F
from handbuilt import OUTPUT, Kind, line
from nets import cbr
from torch import nn


class Mask(nn.Module):
    """Dense prediction: the last convolution has one channel, and there is no classifier."""

    def __init__(self, a=16, b=16):
        super().__init__()
        self.one, self.two, self.last = cbr(3, a), cbr(a, b), nn.Conv2d(b, 1, 1)

    def forward(self, x):
        return self.last(self.two(self.one(x)))


class SharedHead(nn.Module):
    """One head on two scales, and two outputs."""

    def __init__(self, a=16, stream=12, inner=14):
        super().__init__()
        self.stem, self.first, self.second = cbr(3, a), cbr(a, stream), cbr(stream, stream)
        self.tower, self.logits = cbr(stream, inner), nn.Conv2d(inner, 5, 1)

    def forward(self, x):
        large = self.first(self.stem(x))
        small = self.second(F.max_pool2d(large, 2))
        return [self.logits(self.tower(y)) for y in (large, small)]


class GeneratorByNumber(nn.Module):
    """``view(-1, 4, 4, 4)`` fixes what enters the first transposed convolution, not what leaves it."""

    def __init__(self, b=64):
        super().__init__()
        self.fc, self.up, self.last = nn.Linear(8, 64), nn.ConvTranspose2d(4, b, 2, 2), nn.ConvTranspose2d(b, 3, 2, 2)

    def forward(self, z):
        return torch.tanh(self.last(torch.relu(self.up(self.fc(z).view(-1, 4, 4, 4)))))


class Generator(nn.Module):
    """The same with the channels left to torch: the linear layer has 16 outputs for each channel."""

    def __init__(self, a=4, b=8):
        super().__init__()
        self.fc, self.norm, self.up = nn.Linear(8, 16 * a), nn.BatchNorm2d(a), nn.ConvTranspose2d(a, b, 2, 2)
        self.last = nn.ConvTranspose2d(b, 3, 2, 2)

    def forward(self, z):
        z = self.norm(self.fc(z).view(z.shape[0], -1, 4, 4))
        return torch.tanh(self.last(torch.relu(self.up(z))))


class ImageToImage(nn.Module):
    """A residual around the whole network: its last layer keeps the image's three channels."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.one, self.two, self.last = cbr(3, a), cbr(a, b), nn.Conv2d(b, 3, 3, padding=1)

    def forward(self, x):
        return x + self.last(self.two(self.one(x)))


class UNet(nn.Module):
    """Transposed convolutions on the way up, and a concatenation with each map of the way down."""

    def __init__(self, a=8, b=16, c=24, up2=14, d=12, up1=10, e=6):
        super().__init__()
        self.down1, self.down2, self.middle = cbr(3, a), cbr(a, b), cbr(b, c)
        self.up2, self.join2 = nn.ConvTranspose2d(c, up2, 2, 2), cbr(b + up2, d)
        self.up1, self.join1 = nn.ConvTranspose2d(d, up1, 2, 2), cbr(up1 + a, e)
        self.last = nn.Conv2d(e, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        d = self.join2(torch.cat([b, self.up2(c)], 1))
        return self.last(self.join1(torch.cat([self.up1(d), a], 1)))


class Volumes(nn.Module):
    """Three dimensions, with a strided shortcut."""

    def __init__(self, stream=8, inner=12):
        super().__init__()
        self.stem, self.shortcut = nn.Conv3d(2, stream, 3, padding=1), nn.Conv3d(2, stream, 1)
        self.up, self.norm, self.down = nn.Conv3d(stream, inner, 1), nn.BatchNorm3d(inner), nn.Conv3d(inner, stream, 1)
        self.pool, self.fc = nn.AvgPool3d(2), nn.Linear(8 * stream, 5)

    def forward(self, x):
        y = torch.relu(self.stem(x) + self.shortcut(x))
        y = y + self.down(torch.relu(self.norm(self.up(y))))
        return self.fc(self.pool(y).flatten(1))


class Signals(nn.Module):
    """One dimension: dilated gated convolutions with residual and skip sums, as in WaveNet."""

    def __init__(self, stream=8, gate1=12, gate2=10, skip=14):
        super().__init__()
        self.stem = nn.Conv1d(2, stream, 1)
        self.filters = nn.ModuleList(
            [nn.Conv1d(stream, g, 3, padding=d, dilation=d) for d, g in ((1, gate1), (2, gate2))]
        )
        self.gates = nn.ModuleList(
            [nn.Conv1d(stream, g, 3, padding=d, dilation=d) for d, g in ((1, gate1), (2, gate2))]
        )
        self.residuals = nn.ModuleList([nn.Conv1d(g, stream, 1) for g in (gate1, gate2)])
        self.skips = nn.ModuleList([nn.Conv1d(g, skip, 1) for g in (gate1, gate2)])
        self.last = nn.Conv1d(skip, 4, 1)

    def forward(self, x):
        x, total = self.stem(x), 0
        for filters, gate, residual, skip in zip(self.filters, self.gates, self.residuals, self.skips, strict=True):
            y = torch.tanh(filters(x)) * torch.sigmoid(gate(x))
            total = total + skip(y)
            x = x + residual(y)
        return self.last(torch.relu(total))


KINDS = (
    Kind("11 one channel comes out", Mask, {"a": "one.0", "b": "two.0"}, {}),
    Kind(
        "16 one head on two scales",
        SharedHead,
        {"a": "stem.0", "stream": "first.0", "inner": "tower.0"},
        {"logits": OUTPUT},
    ),
    Kind(
        "19 a vector viewed as a map, by numbers",
        GeneratorByNumber,
        {"b": "up"},
        {"fc": line("view(-1, 4, 4, 4)"), "last": OUTPUT},
        shape=(8,),
    ),
    Kind("19 a vector viewed as a map", Generator, {"a": ("fc", 16), "b": "up"}, {"last": OUTPUT}, shape=(8,)),
    Kind("24 image to image", ImageToImage, {"a": "one.0", "b": "two.0"}, {"last": line("x + self.last(")}),
    Kind(
        "18 U-Net",
        UNet,
        {
            "a": "down1.0",
            "b": "down2.0",
            "c": "middle.0",
            "up2": "up2",
            "d": "join2.0",
            "up1": "up1",
            "e": "join1.0",
        },
        {"last": OUTPUT},
    ),
    Kind("three dimensions", Volumes, {"stream": "stem", "inner": "up"}, {"fc": OUTPUT}, shape=(2, 4, 4, 4)),
    Kind(
        "one dimension",
        Signals,
        {"stream": "stem", "gate1": "filters.0", "gate2": "filters.1", "skip": "skips.0"},
        {"last": OUTPUT},
        shape=(2, 16),
    ),
)

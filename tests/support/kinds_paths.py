"""Small networks with many branches, dense predictions, recurrences, and forwards that do more than call layers."""

from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import torchvision
from handbuilt import OUTPUT, Kind, line
from nets import Head, cbr
from torch import nn
from torch.utils.checkpoint import checkpoint


class Pyramid(nn.Module):
    """FPN: every level's map is brought to one width, added to the coarser one, and goes through one shared head."""

    def __init__(self, a=8, b=12, c=16, stream=10):
        super().__init__()
        self.one, self.two, self.three = cbr(3, a), cbr(a, b), cbr(b, c)
        self.lateral = nn.ModuleList([nn.Conv2d(i, stream, 1) for i in (a, b, c)])
        self.logits = nn.Conv2d(stream, 5, 3, padding=1)

    def forward(self, x):
        maps = [self.one(x)]
        maps.append(self.two(F.max_pool2d(maps[-1], 2)))
        maps.append(self.three(F.max_pool2d(maps[-1], 2)))
        levels = [lateral(y) for lateral, y in zip(self.lateral, maps, strict=True)]
        for i in (1, 0):
            levels[i] = levels[i] + F.interpolate(levels[i + 1], size=levels[i].shape[-2:], mode="nearest")
        return {f"level {i}": self.logits(level) for i, level in enumerate(levels)}


class AtrousPyramid(nn.Module):
    """ASPP: dilated branches and a pooled one that is interpolated back to the map's size."""

    def __init__(self, a=16, one=6, two=8, pooled=10, b=12):
        super().__init__()
        self.stem, self.one, self.two = cbr(3, a), nn.Conv2d(a, one, 1), nn.Conv2d(a, two, 3, padding=2, dilation=2)
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(a, pooled, 1), nn.ReLU())
        self.project, self.last = cbr(one + two + pooled, b), nn.Conv2d(b, 4, 1)

    def forward(self, x):
        size, x = x.shape[-2:], self.stem(x)
        branches = [self.one(x), self.two(x)]
        branches.append(F.interpolate(self.pooled(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        x = self.last(F.dropout(self.project(torch.cat(branches, 1)), 0.1, self.training))
        return F.interpolate(x, size, mode="bilinear")


class Unpooled(nn.Module):
    """SegNet: the places of the maxima go from the way down to the way up."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.down, self.middle, self.last = cbr(3, a), cbr(a, b), nn.Conv2d(a, 2, 3, padding=1)
        self.pool, self.unpool, self.up = nn.MaxPool2d(2, 2, return_indices=True), nn.MaxUnpool2d(2, 2), cbr(b, a)

    def forward(self, x):
        x = self.down(x)
        y, places = self.pool(x)
        return self.last(self.unpool(self.up(self.middle(y)), places, output_size=x.shape))


class Octave(nn.Module):
    """Octave convolution: two streams of different resolution that feed one another."""

    def __init__(self, high=10, low=6, high2=8, low2=4):
        super().__init__()
        self.high, self.low = nn.Conv2d(3, high, 3, padding=1), nn.Conv2d(3, low, 3, padding=1)
        self.hh, self.hl = nn.Conv2d(high, high2, 1), nn.Conv2d(high, low2, 1)
        self.lh, self.ll, self.head = nn.Conv2d(low, high2, 1), nn.Conv2d(low, low2, 1), Head(high2 + low2)

    def forward(self, x):
        high, low = self.high(x), self.low(F.avg_pool2d(x, 2))
        up, down = F.interpolate(self.lh(low), scale_factor=2), self.hl(F.avg_pool2d(high, 2))
        high, low = torch.relu(self.hh(high) + up), torch.relu(self.ll(low) + down)
        return self.head(torch.cat([F.adaptive_avg_pool2d(high, 1), F.adaptive_avg_pool2d(low, 1)], 1))


class Warped(nn.Module):
    """A spatial transformer: features choose where the image is sampled."""

    def __init__(self, a=8, b=12):
        super().__init__()
        self.locate, self.theta = nn.Conv2d(3, a, 3, stride=2), nn.Linear(9 * a, 6)
        self.last, self.head = cbr(3, b), Head(b)

    def forward(self, x):
        theta = self.theta(self.locate(x).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.head(self.last(F.grid_sample(x, grid, align_corners=False)))


class Deformed(nn.Module):
    def __init__(self, a=12, b=16):
        super().__init__()
        self.stem, self.offset, self.head = cbr(3, a), nn.Conv2d(a, 18, 3, padding=1), Head(b)
        self.conv = torchvision.ops.DeformConv2d(a, b, 3, padding=1)

    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.relu(self.conv(x, self.offset(x))))


class Recurrent(nn.Module):
    """CRNN: columns of the map are the steps of a recurrence, whose cell keeps its size."""

    def __init__(self, a=16):
        super().__init__()
        self.stem, self.last, self.rnn, self.fc = (
            cbr(3, a),
            cbr(a, 12),
            nn.GRU(12, 10, batch_first=True),
            nn.Linear(10, 5),
        )

    def forward(self, x):
        x = self.last(self.stem(x)).mean(2).transpose(1, 2)
        return self.fc(self.rnn(x)[0])


class SelfAttention(nn.Module):
    """Heads of a stored size keep the stream's width; the MLP beside them is free."""

    def __init__(self, hidden=96):
        super().__init__()
        self.stem, self.attention = nn.Conv2d(3, 16, 4, 4), nn.MultiheadAttention(16, 4, batch_first=True)
        self.up, self.down, self.fc = nn.Linear(16, hidden), nn.Linear(hidden, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.down(F.gelu(self.up(x)))
        return self.fc(x.mean(1))


class Spectrum(nn.Module):
    """A learned filter on the map's spectrum, kept as pairs of numbers."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a, b), Head(b)
        self.filter = nn.Parameter(torch.randn(a, 8, 5, 2) * 0.1)

    def forward(self, x):
        x = self.stem(x)
        y = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(self.filter)
        return self.head(self.last(torch.fft.irfft2(y, s=x.shape[-2:], norm="ortho")))


class FrozenNorm(nn.Module):
    """The frozen batch norm of detection backbones, whose numbers are buffers."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(3, a, 3), torchvision.ops.FrozenBatchNorm2d(a)
        self.two, self.norm2, self.head = nn.Conv2d(a, b, 3), torchvision.ops.FrozenBatchNorm2d(b), Head(b)

    def forward(self, x):
        return self.head(torch.relu(self.norm2(self.two(torch.relu(self.norm1(self.one(x)))))))


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s))


class OwnFunction(nn.Module):
    """An activation with its own backward, under autocast, recomputed in the backward pass."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a, b), Head(b)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            x = checkpoint(self.stem, x, use_reentrant=False)
        return self.head(checkpoint(self.last, _Swish.apply(x), use_reentrant=True))


@torch.jit.script
def _mish(x):
    return x * F.softplus(x).tanh()


class Scripted(nn.Module):
    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a, b), Head(b)

    def forward(self, x):
        return self.head(self.last(_mish(self.stem(x))))


class DepthDrawn(nn.Module):
    """Residual blocks that are skipped at random while training."""

    def __init__(self, stream=16, one=12, two=14):
        super().__init__()
        self.stem, self.head = cbr(3, stream), Head(stream)
        self.blocks = nn.ModuleList([nn.Sequential(cbr(stream, i), nn.Conv2d(i, stream, 1)) for i in (one, two)])
        self.drop = torchvision.ops.StochasticDepth(0.5, "row")

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + self.drop(block(x))
        return self.head(x)


class Assertive(nn.Module):
    """Checks of sizes: against the layer's own attribute, for divisibility, and against the other map."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.last, self.head = nn.Conv2d(3, a, 3), nn.Conv2d(a, b, 3), Head(b)

    def forward(self, x):
        x = self.stem(x)
        assert x.shape[1] == self.last.in_channels
        if x.dim() != 4 or x.size(1) % 4 != 0:
            raise ValueError(f"expected a multiple of 4 channels, got {tuple(x.shape)}")
        return self.head(torch.relu(self.last(x)))


class OptionalShortcut(nn.Module):
    """A projection that is skipped where the shapes agree anyway: the widths must not come to agree by chance."""

    def __init__(self, a=16, b=24):
        super().__init__()
        self.stem, self.block, self.project, self.head = cbr(3, a), cbr(a, b), nn.Conv2d(a, b, 1), Head(b)

    def forward(self, x):
        x = self.stem(x)
        y = self.block(x)
        if x.shape != y.shape:
            x = self.project(x)
        return self.head(x + y)


Both = namedtuple("Both", "logits features")


class Named(nn.Module):
    def __init__(self, a=16):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a, 12), Head(12)

    def forward(self, x):
        x = self.last(self.stem(x))
        return Both(self.head(x), x)


@dataclass
class Result:
    logits: torch.Tensor
    features: torch.Tensor


class Recorded(Named):
    """The output is an object of the user's own class, in which torch's own tools see no tensors."""

    def forward(self, x):
        x = self.last(self.stem(x))
        return Result(self.head(x), x)


STEM_LAST = {"a": "stem.0", "b": "last.0"}
RNN = line("self.rnn(x)")
MHA = line("self.attention(x, x, x")
ATTENTION = {"stem": MHA, "attention.in_proj_weight": MHA, "attention.out_proj": MHA, "down": line("self.down(")}
FEATURES = {"head.fc": OUTPUT, "last.0": OUTPUT}

KINDS = (
    Kind(
        "feature pyramid",
        Pyramid,
        {"a": "one.0", "b": "two.0", "c": "three.0", "stream": "lateral.0"},
        {"logits": OUTPUT},
    ),
    Kind(
        "atrous pyramid",
        AtrousPyramid,
        {"a": "stem.0", "one": "one", "two": "two", "pooled": "pooled.1", "b": "project.0"},
        {"last": OUTPUT},
    ),
    Kind("unpooled by places", Unpooled, {"a": "down.0", "b": "middle.0"}, {"last": OUTPUT}),
    Kind("octaves", Octave, {"high": "high", "low": "low", "high2": "hh", "low2": "hl"}),
    Kind(
        "spatial transformer",
        Warped,
        {"a": "locate", "b": "last.0"},
        {"head.fc": OUTPUT, "theta": line("view(-1, 2, 3)")},
    ),
    Kind(
        "deformable convolution",
        Deformed,
        {"a": "stem.0", "b": "conv"},
        {"head.fc": OUTPUT, "offset": "deform_conv"},
    ),
    Kind(
        "recurrence",
        Recurrent,
        {"a": "stem.0"},
        {"fc": OUTPUT, "last.0": RNN, "rnn.weight_ih_l0": RNN, "rnn.weight_hh_l0": RNN},
    ),
    Kind("self-attention", SelfAttention, {"hidden": "up"}, {"fc": OUTPUT, **ATTENTION}),
    Kind("spectrum", Spectrum, STEM_LAST),
    Kind("frozen batch norm", FrozenNorm, {"a": "one", "b": "two"}),
    Kind("own autograd function and checkpoints", OwnFunction, STEM_LAST),
    Kind(
        "scripted function",
        Scripted,
        STEM_LAST,
    ),
    Kind("stochastic depth", DepthDrawn, {"stream": "stem.0", "one": "blocks.0.0.0", "two": "blocks.1.0.0"}),
    Kind("checks of sizes", Assertive, {"a": "stem", "b": "last"}),
    Kind("named tuple comes out", Named, {"a": "stem.0"}, FEATURES),
    Kind(
        "own class comes out",
        Recorded,
        {"a": "stem.0"},
        FEATURES,
    ),
)

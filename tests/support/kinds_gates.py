"""Small networks whose channels weigh one another: gates, attention, statistics over channels."""

import torch
import torch.nn.functional as F
from handbuilt import OUTPUT, Kind, line
from nets import Head, cbr
from torch import nn


class ChunkGate(nn.Module):
    """A gated unit: one half of the channels weighs the other."""

    def __init__(self, half=8, b=12):
        super().__init__()
        self.stem, self.last, self.head = nn.Conv2d(3, 2 * half, 3), cbr(half, b), Head(b)

    def forward(self, x):
        a, b = self.stem(x).chunk(2, 1)
        return self.head(self.last(a * torch.sigmoid(b)))


class FunctionalGate(ChunkGate):
    def forward(self, x):
        return self.head(self.last(F.glu(self.stem(x), 1)))


class ModuleGate(ChunkGate):
    def __init__(self, half=8, b=12):
        super().__init__(half, b)
        self.gate = nn.GLU(1)

    def forward(self, x):
        return self.head(self.last(self.gate(self.stem(x))))


class Maxout(ChunkGate):
    """The larger of each two neighbouring channels."""

    def forward(self, x):
        x = self.stem(x)
        n, c, h, w = x.shape
        return self.head(self.last(x.view(n, c // 2, 2, h, w).max(2).values))


class ConcatenatedRelu(nn.Module):
    def __init__(self, a=8, b=12):
        super().__init__()
        self.stem, self.last, self.head = nn.Conv2d(3, a, 3), cbr(2 * a, b), Head(b)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.last(torch.relu(torch.cat([x, -x], 1))))


class SelectiveKernel(nn.Module):
    """A softmax over two branches for each channel, stacked on a new axis."""

    def __init__(self, a=8, branch=16, squeezed=6):
        super().__init__()
        self.stem, self.small, self.large = cbr(3, a), cbr(a, branch), cbr(a, branch, dilation=1)
        self.down, self.up = nn.Linear(branch, squeezed), nn.Linear(squeezed, 2 * branch)
        self.head = Head(branch)

    def forward(self, x):
        x = self.stem(x)
        branches = torch.stack([self.small(x), self.large(x)], 1)  # (N, 2, C, H, W)
        weights = self.up(torch.relu(self.down(branches.sum(1).mean((2, 3)))))
        weights = weights.view(len(weights), 2, -1).softmax(1)[..., None, None]
        return self.head((branches * weights).sum(1))


class SplitAttention(nn.Module):
    """ResNeSt's: grouped branches in one convolution, weighed by a softmax over the groups."""

    def __init__(self, a=8, branch=6, squeezed=10):
        super().__init__()
        self.stem, self.conv = cbr(3, 2 * a), cbr(2 * a, 2 * branch, groups=2)
        self.down, self.up, self.head = nn.Conv2d(branch, squeezed, 1), nn.Conv2d(squeezed, 2 * branch, 1), Head(branch)

    def forward(self, x):
        x = self.conv(self.stem(x))
        n, c, h, w = x.shape
        x = x.reshape(n, 2, c // 2, h, w)
        weights = self.up(torch.relu(self.down(x.sum(1).mean((2, 3), keepdim=True))))
        weights = weights.view(n, 1, 2, -1).transpose(1, 2).softmax(1).reshape(n, 2, c // 2, 1, 1)
        return self.head((x * weights).sum(1))


class ChannelAndSpace(nn.Module):
    """CBAM: a shared MLP on pooled channels, then a map made of the mean and maximum over channels."""

    def __init__(self, a=16, squeezed=8):
        super().__init__()
        self.stem = cbr(3, a)
        self.mlp = nn.Sequential(nn.Linear(a, squeezed), nn.ReLU(), nn.Linear(squeezed, a))
        self.space, self.head = nn.Conv2d(2, 1, 3, padding=1), Head(a)

    def forward(self, x):
        x = self.stem(x)
        y = self.mlp(F.adaptive_avg_pool2d(x, 1).flatten(1)) + self.mlp(F.adaptive_max_pool2d(x, 1).flatten(1))
        x = x * y.sigmoid().unflatten(1, (-1, 1, 1))
        y = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        return self.head(x * self.space(y).sigmoid())


class NonLocal(nn.Module):
    """Attention between positions, with queries and keys of their own width."""

    def __init__(self, a=16, key=8, value=12):
        super().__init__()
        self.stem, self.out, self.head = cbr(3, a), nn.Conv2d(value, a, 1), Head(a)
        self.query, self.key, self.value = nn.Conv2d(a, key, 1), nn.Conv2d(a, key, 1), nn.Conv2d(a, value, 1)

    def forward(self, x):
        x = self.stem(x)
        n, _, h, w = x.shape
        weights = self.query(x).flatten(2).transpose(1, 2) @ self.key(x).flatten(2)
        y = torch.bmm(self.value(x).flatten(2), weights.softmax(-1).transpose(1, 2))
        return self.head(x + self.out(y.view(n, -1, h, w)))


class Einsums(nn.Module):
    """A scale and a mixing of channels, both written as sums over indices."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.head = cbr(3, a), Head(b)
        self.scale, self.weight = nn.Parameter(torch.rand(a)), nn.Parameter(torch.randn(b, a) * 0.1)

    def forward(self, x):
        x = torch.einsum("nchw,c->nchw", self.stem(x), self.scale)
        return self.head(torch.einsum("nchw,oc->nohw", x, self.weight))


class Modulated(nn.Module):
    """FiLM: scale and shift of every channel come out of one linear layer."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.film, self.last, self.head = cbr(3, a), nn.Linear(3, 2 * a), cbr(a, b), Head(b)

    def forward(self, x):
        scale, shift = self.film(x.mean((2, 3)))[..., None, None].chunk(2, dim=1)
        return self.head(self.last(self.stem(x) * (1 + scale) + shift))


class Covariance(nn.Module):
    """Bilinear pooling: a classifier on the products of all pairs of channels."""

    def __init__(self, a=8):
        super().__init__()
        self.stem, self.last, self.fc = cbr(3, a), cbr(a, 6), nn.Linear(36, 10)

    def forward(self, x):
        x = self.last(self.stem(x)).flatten(2)
        return self.fc(torch.bmm(x, x.transpose(1, 2)).flatten(1))


class NormByHand(nn.Module):
    """LayerNorm over channels by mean and variance, response normalisation, unit vectors."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.last, self.head = nn.Conv2d(3, a, 3), nn.Conv2d(a, b, 3), Head(b)
        self.weight, self.bias = nn.Parameter(torch.ones(a)), nn.Parameter(torch.zeros(a))
        self.gain = nn.Parameter(torch.zeros(1, b, 1, 1))

    def forward(self, x):
        x = self.stem(x)
        mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
        x = (x - mean) * torch.rsqrt(variance + 1e-6)
        x = F.normalize(self.last(x * self.weight[:, None, None] + self.bias[:, None, None]), dim=1)
        response = torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True)
        return self.head(x + self.gain * x * response / (response.mean(1, keepdim=True) + 1e-6))


KINDS = (
    Kind("gate by chunk", ChunkGate, {"half": ("stem", 2), "b": "last.0"}),
    Kind("gate by F.glu", FunctionalGate, {"half": ("stem", 2), "b": "last.0"}),
    Kind("gate by nn.GLU", ModuleGate, {"half": ("stem", 2), "b": "last.0"}),
    Kind("maxout", Maxout, {"half": ("stem", 2), "b": "last.0"}),
    Kind("concatenated relu", ConcatenatedRelu, {"a": "stem", "b": "last.0"}),
    Kind("selective kernel", SelectiveKernel, {"a": "stem.0", "branch": "small.0", "squeezed": "down"}),
    Kind("split attention", SplitAttention, {"a": ("stem.0", 2), "branch": ("conv.0", 2), "squeezed": "down"}),
    Kind("attention over channels and space", ChannelAndSpace, {"a": "stem.0", "squeezed": "mlp.0"}),
    Kind("non-local block", NonLocal, {"a": "stem.0", "key": "query", "value": "value"}),
    Kind(
        "einsum",
        Einsums,
        {"a": "stem.0", "b": "weight"},
    ),
    Kind("feature-wise modulation", Modulated, {"a": "stem.0", "b": "last.0"}),
    Kind(
        "bilinear pooling",
        Covariance,
        {"a": "stem.0"},
        {"fc": OUTPUT, "last.0": line("torch.bmm(x, x.transpose(1, 2))")},
    ),
    Kind("norms by hand", NormByHand, {"a": "stem", "b": "last"}),
)

"""Networks with products that are not one layer on one image: `PRODUCTS` has them all, each takes images of `SHAPE`."""

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

SHAPE = (3, 18, 18)
C = 16


class Around(nn.Module):
    """A stem and a classifier around what is tested: (N, 16, 9, 9) to (N, 16, H, W).

    ``constant`` is what products of parameters alone cost: the ONNX exporter computes them once and for all.
    """

    constant = 0

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, C, 3, 2, 1), nn.BatchNorm2d(C), nn.ReLU())
        self.head = nn.Linear(C, 10)
        self.make()

    def forward(self, images):
        return self.head(self.middle(self.stem(images)).mean((2, 3)))


def weight(*shape):
    return nn.Parameter(torch.randn(shape) * 0.1)


def pointwise(x, matrix):
    return F.conv2d(x, matrix[:, :, None, None])


class LowRank(Around):
    constant = C * 3 * C

    def make(self):
        self.a, self.b = weight(C, 3), weight(3, C)

    def middle(self, x):
        return pointwise(x, self.a @ self.b)


class TwoLowRanks(Around):
    """Two weights look like a batch of two images."""

    constant = 2 * C * 3 * C

    def make(self):
        self.a, self.b = weight(2, C, 3), weight(2, 3, C)

    def middle(self, x):
        return pointwise(x, (self.a @ self.b).sum(0))


class SumOfProducts(Around):
    constant = 3 * C * 4 * C

    def make(self):
        self.bias, self.a, self.b = weight(C, C), weight(3, C, 4), weight(3, 4, C)

    def middle(self, x):
        return pointwise(x, torch.addbmm(self.bias, self.a, self.b))


class Positions(Around):
    constant = 81 * (2 * 32 + 32 * C)

    def make(self):
        self.register_buffer("table", torch.rand(1, 9, 9, 2))
        self.mlp = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, C))

    def middle(self, x):
        return x + self.mlp(self.table.type_as(x)).permute(0, 3, 1, 2)


class Identity(Around):
    constant = 2 * 5 * C * C

    def make(self):
        self.linear = nn.Linear(C, C)

    def middle(self, x):
        return x * self.linear(x.new_ones(2, 5, x.shape[1])).sum((0, 1))[None, :, None, None]


class Queries(Around):
    """A product of parameters alone, repeated for each image."""

    def make(self):
        self.queries, self.project, self.out = weight(5, C), nn.Linear(C, C), nn.Linear(C, C)

    def middle(self, x):
        queries = self.project(self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1))
        keys = x.flatten(2)
        return self.out((queries @ keys).softmax(-1) @ keys.mT).mT.unsqueeze(-1)


class MixedExperts(Around):
    """Every image has its own kernel; the batch is folded into the channels."""

    def make(self):
        self.route, self.experts = nn.Linear(C, 4), weight(4, C * C * 9)

    def middle(self, x):
        n, c, h, w = x.shape
        kernels = (self.route(x.mean((2, 3))).sigmoid() @ self.experts).view(n * C, C, 3, 3)
        return F.conv2d(x.reshape(1, n * c, h, w), kernels, padding=1, groups=n).view(n, C, h, w)


class ImageByImage(Around):
    def make(self):
        self.conv = nn.Conv2d(C, 15, 3)

    def middle(self, x):
        return torch.cat([torch.stack([self.conv(image) for image in x]), x[:, :1, 2:, 2:]], 1)


class GroupsOfImages(Around):
    """The standard deviation within groups of images, as in discriminators: the batch must divide."""

    constant = 2 * C * 3 * C

    def make(self):
        self.a, self.b, self.conv = weight(2, C, 3), weight(2, 3, C), nn.Conv2d(C + 1, C, 3)

    def middle(self, x):
        n, c, h, w = x.shape
        group = min(4, n)
        spread = x.view(group, n // group, c, h, w).std(0, unbiased=False).mean((1, 2, 3), keepdim=True)
        x = pointwise(x, (self.a @ self.b).sum(0))
        return self.conv(torch.cat([x, spread.repeat(group, 1, h, w)], 1))


class TransposedGrouped(Around):
    def make(self):
        self.conv = nn.ConvTranspose2d(C, C, 3, 2, 1, output_padding=1, groups=4)

    def middle(self, x):
        return self.conv(x)


class DataAsWeight(Around):
    def make(self):
        pass

    def middle(self, x):
        n, c, h, w = x.shape
        kernels = x[:, :, :3, :3].reshape(n * c, 1, 3, 3)
        return F.conv2d(x.reshape(1, n * c, h, w), kernels, groups=n * c).view(n, c, h - 2, w - 2)


class Unbatched(Around):
    def make(self):
        self.conv, self.volume = nn.Conv1d(C, C, 3, padding=1), nn.Conv3d(C, C, 3, padding=1)

    def middle(self, x):
        n, c, h, w = x.shape
        x = self.conv(x.reshape(n, c, h * w)).view(n, c, 1, h, w)
        return self.volume(x).squeeze(2)


class Einsum(Around):
    def make(self):
        self.weight, self.other = weight(C, C), weight(C, C)

    def middle(self, x):
        x = torch.einsum("nchw,oc->nohw", x, self.weight)
        return torch.tensordot(x, self.other, dims=([1], [1])).permute(0, 3, 1, 2)


class Vectors(Around):
    constant = C * C + C * C + C

    def make(self):
        self.matrix, self.vector, self.bias, self.gate = weight(C, C), weight(C), weight(C), weight(C)

    def middle(self, x):
        x = x * torch.addmv(self.bias, self.matrix, self.vector)[None, :, None, None]
        x = x * (self.vector @ self.matrix)[None, :, None, None] * self.vector.dot(self.gate)
        last = x.permute(0, 2, 3, 1)
        return x * (last @ self.gate).unsqueeze(1) * F.linear(last, self.gate).unsqueeze(1)


class WithBias(Around):
    def make(self):
        self.weight, self.bias = weight(C, C), weight(1, 1, C)

    def middle(self, x):
        tokens = x.flatten(2).mT
        return torch.baddbmm(self.bias, tokens, self.weight.expand(x.shape[0], -1, -1)).mT.unsqueeze(-1)


class Attention(Around):
    def make(self):
        self.attention = nn.MultiheadAttention(C, 4, batch_first=True)

    def middle(self, x):
        tokens = x.flatten(2).mT
        return self.attention(tokens, tokens, tokens)[0].mT.unsqueeze(-1)


class GroupedQueries(Around):
    """Two heads of the queries read one of the keys and values."""

    def make(self):
        self.q, self.k, self.v = nn.Linear(C, C), nn.Linear(C, C // 2), nn.Linear(C, C // 2)

    def middle(self, x):
        tokens = x.flatten(2).mT
        q, k, v = (part(tokens).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2).mT.unsqueeze(-1)


class Recurrent(Around):
    def make(self):
        self.lstm, self.gru = nn.LSTM(C, C, batch_first=True), nn.GRU(C, C // 2, num_layers=2, bidirectional=True)

    def middle(self, x):
        tokens = self.lstm(x.flatten(2).mT)[0]  # (N, 81, C)
        return self.gru(tokens.transpose(0, 1))[0].permute(1, 2, 0).unsqueeze(-1)


class Bilinear(Around):
    def make(self):
        self.bilinear = nn.Bilinear(C, C, C)

    def middle(self, x):
        last = x.permute(0, 2, 3, 1)
        return self.bilinear(last, last).permute(0, 3, 1, 2)


class Deformable(Around):
    def make(self):
        self.offset, self.conv = nn.Conv2d(C, 18, 3, padding=1), torchvision.ops.DeformConv2d(C, C, 3, padding=1)

    def middle(self, x):
        return self.conv(x, self.offset(x))


class Shared(Around):
    def make(self):
        self.conv = nn.Conv2d(C, C, 3, padding=1)

    def middle(self, x):
        return self.conv(self.conv(x).relu())


class Spectra(Around):
    """A Fourier transform is no product that is counted."""

    def make(self):
        self.filter = weight(C, 9, 5)

    def middle(self, x):
        return torch.fft.irfft2(torch.fft.rfft2(x) * self.filter, s=(9, 9))


PRODUCTS = Around.__subclasses__()

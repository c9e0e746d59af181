"""Small networks with unusual weights: bare, shared, normalised, generated, masked, in dictionaries."""

import copy
import warnings

import torch
import torch.nn.functional as F
from handbuilt import OUTPUT, Kind, line
from nets import Head, cbr
from torch import nn
from torch.nn.utils import parametrizations, prune


class Body(nn.Module):
    """Two convolutions, a non-linearity between them, and a classifier."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, a, 3, padding=1), nn.Conv2d(a, b, 3, padding=1), Head(b)

    def forward(self, x):
        return self.head(torch.relu(self.two(torch.relu(self.one(x)))))


class WeightNorm(Body):
    """Weights as direction and length, computed anew in every forward."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        parametrizations.weight_norm(self.one)
        parametrizations.weight_norm(self.two)


class SpectralNorm(Body):
    """Weights divided by their largest singular value; the vectors that estimate it are buffers."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        parametrizations.spectral_norm(self.one)
        parametrizations.spectral_norm(self.two)


class OldSpectralNorm(Body):
    """The older form: the vectors are buffers of the layer, the weight is a plain attribute."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        nn.utils.spectral_norm(self.one)
        nn.utils.spectral_norm(self.two)


class OldWeightNorm(Body):
    """The older form, whose weight is a plain attribute that a hook sets before every forward."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(self.one)
            nn.utils.weight_norm(self.two)


class Pruned(Body):
    """Masked by torch's own pruning: the masks are buffers, and name single weights."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        prune.l1_unstructured(self.one, "weight", 0.5)


class Lazy(Body):
    """Layers that saw their first input after they were built."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        self.two, self.norm, self.head = nn.LazyConv2d(b, 3, padding=1), nn.LazyBatchNorm2d(), nn.LazyLinear(10)
        self.eval()(torch.zeros(1, 3, 8, 8))
        self.train()

    def forward(self, x):
        return self.head(self.norm(self.two(torch.relu(self.one(x)))).amax((2, 3)))


class Hooked(Body):
    """Hooks replace what one layer puts out and what another takes in."""

    def __init__(self, a=16, b=12):
        super().__init__(a, b)
        self.one.register_forward_hook(_centred)
        self.two.register_forward_pre_hook(_doubled)


def _centred(module, args, output):
    return output - output.mean(1, keepdim=True)


def _doubled(module, args):
    return (2 * args[0],)


class Matmul(nn.Module):
    """A linear layer without a module: the map times a matrix that is a parameter."""

    def __init__(self, a=16, b=12, c=14):
        super().__init__()
        self.stem, self.head = cbr(3, a), Head(c)
        self.one, self.two = nn.Parameter(torch.randn(a, b) * 0.1), nn.Parameter(torch.randn(c, b) * 0.1)

    def forward(self, x):
        x = torch.relu(self.stem(x).permute(0, 2, 3, 1) @ self.one) @ self.two.t()
        return self.head(x.permute(0, 3, 1, 2))


class LinearFunction(nn.Module):
    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.head, self.project = cbr(3, a), Head(b), nn.Parameter(torch.randn(b, a) * 0.1)

    def forward(self, x):
        return self.head(F.linear(self.stem(x).permute(0, 2, 3, 1), self.project).permute(0, 3, 1, 2))


class TiedAutoencoder(nn.Module):
    """The decoder's transposed convolutions use the encoder's weights."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, a, 2, 2), nn.Conv2d(a, b, 2, 2)

    def forward(self, x):
        code = torch.relu(self.two(torch.relu(self.one(x))))
        x = F.conv_transpose2d(code, self.two.weight, stride=2)
        return F.conv_transpose2d(torch.relu(x), self.one.weight, stride=2)


class MixtureOfKernels(nn.Module):
    """A convolution whose weight is a weighted sum of experts for each image (CondConv): groups are images."""

    def __init__(self, a=8, b=12, k=3):
        super().__init__()
        self.stem, self.route, self.head = cbr(3, a), nn.Linear(a, k), Head(b)
        self.experts = nn.Parameter(torch.randn(k, b, a, 3, 3) * 0.1)

    def forward(self, x):
        x = self.stem(x)
        n, c, h, w = x.shape
        weight = self.route(x.mean((2, 3))).softmax(1) @ self.experts.flatten(1)
        weight = weight.view(n * self.experts.shape[1], c, 3, 3)
        x = F.conv2d(x.reshape(1, n * c, h, w), weight, padding=1, groups=n)
        return self.head(x.view(n, -1, h, w))


class Generated(nn.Module):
    """A depthwise kernel for each image, generated by a linear layer."""

    def __init__(self, a=8, b=12):
        super().__init__()
        self.stem, self.generate, self.last, self.head = cbr(3, a), nn.Linear(3, 9 * a), cbr(a, b), Head(b)

    def forward(self, x):
        kernel = self.generate(x.mean((2, 3)))
        x = self.stem(x)
        n, c, h, w = x.shape
        y = F.conv2d(x.reshape(1, n * c, h, w), kernel.view(n * c, 1, 3, 3), padding=1, groups=n * c)
        return self.head(self.last(y.view(n, c, h, w)))


class FixedMask(nn.Module):
    """A buffer with one number for each channel: what it means at another width nobody knows."""

    def __init__(self, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, 16), cbr(16, b), Head(b)
        self.register_buffer("mask", torch.arange(16).remainder(2).float().view(1, 16, 1, 1))

    def forward(self, x):
        return self.head(self.last(self.stem(x) * self.mask))


class Blurred(nn.Module):
    """A blur kernel repeated for the present number of channels."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, a), cbr(a, b), Head(b)
        self.register_buffer("kernel", torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0])) / 16)

    def forward(self, x):
        x = self.stem(x)
        kernel = self.kernel[None, None].repeat(x.shape[1], 1, 1, 1)
        return self.head(self.last(F.conv2d(x, kernel, stride=2, padding=1, groups=x.shape[1])))


class Permuted(nn.Module):
    """Channels gathered by a stored permutation, which names each of them: rightly fixed."""

    def __init__(self, b=12):
        super().__init__()
        self.stem, self.last, self.head = cbr(3, 16), cbr(16, b), Head(b)
        self.register_buffer("order", torch.arange(15, -1, -1))

    def forward(self, x):
        return self.head(self.last(self.stem(x)[:, self.order]))


class Selected(Permuted):
    def forward(self, x):
        return self.head(self.last(self.stem(x).index_select(1, self.order)))


class Dictionary(nn.Module):
    """Modules and parameters kept in dictionaries and lists, chosen by name."""

    def __init__(self, a=16, deep=10, wide=14):
        super().__init__()
        self.layers = nn.ModuleDict({"stem": cbr(3, a), "deep": cbr(a, deep), "wide": cbr(a, wide)})
        self.gains = nn.ParameterDict({"deep": torch.ones(deep, 1, 1), "wide": torch.ones(wide, 1, 1)})
        self.shifts = nn.ParameterList([torch.zeros(1, deep, 1, 1), torch.zeros(1, wide, 1, 1)])
        self.heads = nn.ModuleDict({"deep": Head(deep), "wide": Head(wide)})

    def forward(self, x):
        x = self.layers["stem"](x)
        return {
            name: self.heads[name](self.layers[name](x) * self.gains[name] + shift)
            for name, shift in zip(("deep", "wide"), self.shifts, strict=True)
        }


class Average(nn.Module):
    """A copy that follows the trained half as a moving average; both are in the forward."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.online, self.head = nn.Sequential(cbr(3, a), cbr(a, b)), Head(b)
        self.average = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for old, new in zip(self.average.parameters(), self.online.parameters(), strict=True):
                    old.mul_(0.9).add_(new, alpha=0.1)
        with torch.no_grad():
            target = self.average(x)
        return self.head(self.online(x)), self.head(target)


class Reparametrizable(nn.Module):
    """RepVGG: a wide and a pointwise convolution and a norm alone, added up."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.stem, self.head, self.identity = cbr(3, a), Head(b), nn.BatchNorm2d(a)
        self.wide = nn.Sequential(nn.Conv2d(a, a, 3, padding=1, bias=False), nn.BatchNorm2d(a))
        self.point = nn.Sequential(nn.Conv2d(a, a, 1, bias=False), nn.BatchNorm2d(a))
        self.last = cbr(a, b)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.last(torch.relu(self.wide(x) + self.point(x) + self.identity(x))))


class SharedNorm(nn.Module):
    """One norm behind two convolutions, and one weight in two modules."""

    def __init__(self, a=16, b=12):
        super().__init__()
        self.one, self.two, self.three = nn.Conv2d(3, a, 3), nn.Conv2d(a, a, 3, padding=1), nn.Conv2d(a, a, 1)
        self.norm, self.four, self.last = nn.BatchNorm2d(a), nn.Conv2d(a, a, 1), cbr(a, b)
        self.four.weight, self.head = self.three.weight, Head(b)

    def forward(self, x):
        x = torch.relu(self.norm(self.one(x)))
        x = self.four(torch.relu(self.three(torch.relu(self.norm(self.two(x))))))
        return self.head(self.last(x))


A_B = {"a": "one", "b": "two"}
STEM_LAST = {"a": "stem.0", "b": "last.0"}

KINDS = (
    Kind(
        "weight norm",
        WeightNorm,
        A_B,
    ),
    Kind("weight norm by a hook", OldWeightNorm, A_B),
    Kind("masked weights", Pruned, A_B),
    Kind("spectral norm", SpectralNorm, A_B),
    Kind("spectral norm, the older form", OldSpectralNorm, A_B),
    Kind("lazy layers", Lazy, A_B, {"head": OUTPUT}),
    Kind("hooks", Hooked, A_B),
    Kind(
        "product with a bare matrix",
        Matmul,
        {"a": "stem.0", "b": "one", "c": "two"},
    ),
    Kind("linear function", LinearFunction, {"a": "stem.0", "b": "project"}),
    Kind("tied autoencoder", TiedAutoencoder, A_B, {}),
    Kind(
        "mixture of kernels",
        MixtureOfKernels,
        {"b": "experts", "k": "route"},
        {"head.fc": OUTPUT, "stem.0": line("weight.view(")},
    ),
    Kind("generated kernels", Generated, STEM_LAST),
    Kind("mask in a buffer", FixedMask, {"b": "last.0"}, {"head.fc": OUTPUT, "stem.0": line("* self.mask")}),
    Kind("blur repeated", Blurred, STEM_LAST),
    Kind(
        "stored permutation",
        Permuted,
        {"b": "last.0"},
        {"head.fc": OUTPUT, "stem.0": line("self.order")},
    ),
    Kind(
        "stored selection",
        Selected,
        {"b": "last.0"},
        {"head.fc": OUTPUT, "stem.0": line("self.order")},
    ),
    Kind(
        "dictionaries of modules",
        Dictionary,
        {"a": "layers.stem.0", "deep": "layers.deep.0", "wide": "layers.wide.0"},
        {"heads.deep.fc": OUTPUT, "heads.wide.fc": OUTPUT},
    ),
    Kind(
        "moving average of weights",
        Average,
        {"a": "online.0.0", "b": "online.1.0"},
    ),
    Kind("branches to be merged", Reparametrizable, STEM_LAST),
    Kind("shared norm and weight", SharedNorm, {"a": "one", "b": "last.0"}),
)

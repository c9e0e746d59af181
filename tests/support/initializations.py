"""How people initialize layers, one function each, and how far a crop's values are from fresh ones.

``INITIALIZATIONS`` maps a name to a function that fills one tensor, given the layer that it belongs to. ``apply`` runs
it over a network; since a crop's layers know their own fans, running it over a copy of the crop gives what
the crop's values should look like.
"""

import copy
import math

import numpy as np
import torch
from scipy import stats
from timm.layers import lecun_normal_, trunc_normal_tf_, variance_scaling_
from torch import nn

init = nn.init
LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


def fan_in(layer):
    return init._calculate_fan_in_and_fan_out(layer.weight)[0]


def fan_out_per_group(layer):
    return init._calculate_fan_in_and_fan_out(layer.weight)[1] / getattr(layer, "groups", 1)


def signs(t, std):
    with torch.no_grad():
        t.bernoulli_(0.5).mul_(2).sub_(1).mul_(std)


def laplace(t, std):
    with torch.no_grad():
        t.copy_(torch.distributions.Laplace(0.0, std / math.sqrt(2)).sample(t.shape))


def dirac(t, layer):
    init.eye_(t) if t.dim() == 2 else init.dirac_(t, getattr(layer, "groups", 1))


#: Rules for weights: independent draws.
WEIGHTS = {
    "default": lambda t, m: init.kaiming_uniform_(t, a=math.sqrt(5)),
    "kaiming normal, fan in": lambda t, m: init.kaiming_normal_(t, nonlinearity="relu"),
    "kaiming normal, fan out": lambda t, m: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
    "kaiming uniform, fan out": lambda t, m: init.kaiming_uniform_(t, mode="fan_out", nonlinearity="relu"),
    "kaiming uniform, leaky": lambda t, m: init.kaiming_uniform_(t, a=0.2),
    "fan out per group": lambda t, m: init.normal_(t, 0, math.sqrt(2 / fan_out_per_group(m))),
    "xavier uniform": lambda t, m: init.xavier_uniform_(t),
    "xavier normal": lambda t, m: init.xavier_normal_(t),
    "xavier normal, tanh": lambda t, m: init.xavier_normal_(t, gain=init.calculate_gain("tanh")),
    "lecun normal, cut off": lambda t, m: lecun_normal_(t),
    "variance scaling, any gain": lambda t, m: variance_scaling_(t, scale=1.37, mode="fan_avg"),
    "normal .01": lambda t, m: init.normal_(t, 0, 0.01),
    "normal 1": lambda t, m: init.normal_(t),
    "trunc_normal .02": lambda t, m: init.trunc_normal_(t, std=0.02),
    "trunc_normal_tf .02": lambda t, m: trunc_normal_tf_(t, std=0.02),
    "uniform .05": lambda t, m: init.uniform_(t, -0.05, 0.05),
    "signs": lambda t, m: signs(t, math.sqrt(2 / fan_in(m))),
    "laplace": lambda t, m: laplace(t, 0.03),
}

#: Rules for weights whose values depend on one another.
PATTERNS = {
    "orthogonal": lambda t, m: init.orthogonal_(t, math.sqrt(2)),
    "dirac": dirac,
    "sparse": lambda t, m: init.sparse_(t, 0.3, 0.05) if t.dim() == 2 else init.normal_(t, 0, 0.05),
    "zeros": lambda t, m: init.zeros_(t),
}

#: Rules for biases.
BIASES = {
    "default": lambda t, m: init.uniform_(t, -1 / math.sqrt(fan_in(m)), 1 / math.sqrt(fan_in(m))),
    "zeros": lambda t, m: init.zeros_(t),
    "constant": lambda t, m: init.constant_(t, -4.6),
    "normal 1e-6": lambda t, m: init.normal_(t, std=1e-6),
    "normal .01": lambda t, m: init.normal_(t, std=0.01),
    "uniform 0 to 1": lambda t, m: init.uniform_(t),
    "normal about 1": lambda t, m: init.normal_(t, 1.0, 0.02),
}

#: A whole layer, weight and bias: name to (weight, bias) for every pair that people mix.
INITIALIZATIONS = {
    f"{weight} / {bias}": (weight, bias) for weight in (*WEIGHTS, *PATTERNS) for bias in ("default", *BIASES)
}


@torch.no_grad()
def apply(model, weight, bias):
    """Initialize every convolution and linear layer of a network by the rules of these names; returns it."""
    for module in model.modules():
        if isinstance(module, LAYERS):
            (WEIGHTS | PATTERNS)[weight](module.weight, module)
            if module.bias is not None:
                BIASES[bias](module.bias, module)
    return model


def expected(small, weight, bias, times=8):
    """What a crop's values should look like: ``times`` networks of its sizes, initialized by these rules."""
    return [apply(copy.deepcopy(small), weight, bias) for _ in range(times)]


def values_of(model, leaf):
    """The tensors of this name of a network's convolutions and linear layers, as vectors."""
    tensors = (getattr(module, leaf) for module in model.modules() if isinstance(module, LAYERS))
    return [tensor.detach().double().flatten().numpy() for tensor in tensors if tensor is not None]


def fault(drawn, fresh, error=1e-6):
    """What tells a network's vectors from fresh ones (several networks' vectors) of the same rules; empty if nothing.

    All vectors together, each in units of the deviation that fresh ones have: the mean square against its error, the
    furthest value against a bounded distribution's end, then a two-sample Kolmogorov-Smirnov test. ``error`` is
    about the probability of a false fault.
    """
    mean = float(np.mean(np.concatenate([vector for vectors in fresh for vector in vectors])))
    # The furthest a mean of zero gets by chance is not a mean.
    units = [math.sqrt(np.mean([np.mean((vectors[i] - mean) ** 2) for vectors in fresh])) for i in range(len(drawn))]
    if min(units) < 1e-12:
        return "" if all(np.array_equal(a, b) for a, b in zip(drawn, fresh[0], strict=True)) else "another constant"
    ours, theirs = (
        np.concatenate([(v - mean) / u for vectors in side for v, u in zip(vectors, units, strict=True)])
        for side in ([drawn], fresh)
    )
    if len(ours) < 30:
        return ""  # nothing to tell by
    squares = theirs**2
    relative = math.sqrt(squares.var() * (1 / len(ours) + 1 / len(theirs))) / squares.mean()
    ratio = np.mean(ours**2) / squares.mean()
    if abs(math.log(ratio)) > stats.norm.isf(error / 2) * relative + 1e-3:
        return f"{ratio:.3g} of the variance"
    if len(theirs) > 2000 and np.mean(squares**2) < 2.6 and np.abs(ours).max() > 1.1 * np.abs(theirs).max():
        return f"{np.abs(ours).max() / np.abs(theirs).max():.3g} of the furthest value"
    rng = np.random.default_rng(0)
    ours, theirs = (rng.permutation(side)[:50000].round(5) for side in (ours, theirs))  # signs of one size are ties
    if stats.ks_2samp(ours, theirs, method="asymp").pvalue < error:
        return "another distribution"
    return ""


#: One layer of each kind, for (in, out) channels in multiples of four.
KINDS = {
    "conv": lambda i, o: nn.Conv2d(i, o, 3, padding=1),
    "grouped": lambda i, o: nn.Conv2d(i, o, 3, padding=1, groups=4),
    "depthwise": lambda i, o: nn.Conv2d(i, 2 * i, 3, padding=1, groups=i),
    "transposed": lambda i, o: nn.ConvTranspose2d(i, o, 4, 2, 1),
    "linear": lambda i, o: nn.Linear(i, o),
}


class Mixed(nn.Module):
    """A layer of every kind, on images of 3 channels; widths in multiples of four."""

    def __init__(self, a=24, b=36, c=48, d=32, classes=10):
        super().__init__()
        self.stem, self.plain = nn.Conv2d(3, a, 3, 2, 1), nn.Conv2d(a, b, 3, padding=1)
        self.grouped, self.depthwise = nn.Conv2d(b, c, 3, padding=1, groups=4), nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.up, self.narrow = nn.ConvTranspose2d(c, d, 4, 2, 1), nn.Conv2d(d, a, 1)
        self.hidden, self.fc = nn.Linear(a, c), nn.Linear(c, classes)

    def forward(self, x):
        for layer in (self.stem, self.plain, self.grouped, self.depthwise, self.up, self.narrow):
            x = layer(x).relu()
        return self.fc(self.hidden(x.mean((2, 3))).relu())

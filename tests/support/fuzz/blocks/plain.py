"""One layer after another: convolutions of every kind, and pooling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .parts import Kind, Widening, conv_norm_act, conv_of, cut, finish, owned, transposed_of


class Conv(Widening):
    """Convolution, norm, activation; keeps its sizes under usual or unusual names, or not at all."""

    owner = owned("body.0.weight")

    @classmethod
    def more(cls, random):
        return {"stride": random.choice((1, 1, 2)), "keeps": random.choice(("nothing", "usual", "own"))}

    def __init__(self, c, w, o):
        super().__init__()
        self.body = conv_norm_act(c, w[0], o["k"], o, o["stride"])
        if o["keeps"] == "usual":
            self.in_channels, self.out_channels = c, w[0]
        if o["keeps"] == "own":
            self.planes, self.ends = w[0], (c, w[0])

    def forward(self, x):
        return self.body(x)


class Bare(Widening):
    """A convolution in functional form, its weight a bare parameter; perhaps standardized."""

    owner = owned("weight")

    @classmethod
    def more(cls, random):
        return {"standardized": random.random() < 0.5}

    def __init__(self, c, w, o):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(w[0], c, *(3,) * o["d"]))
        self.bias = nn.Parameter(torch.empty(w[0])) if o["bias"] else None
        nn.init.kaiming_normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.end = finish(w[0], o)
        self.standardized = o["standardized"]

    def forward(self, x):
        weight = self.weight
        if self.standardized:
            axes = tuple(range(1, weight.dim()))
            weight = (weight - weight.mean(axes, keepdim=True)) / (weight.var(axes, keepdim=True) + 1e-5).sqrt()
        conv = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
        return self.end(conv(x, weight, self.bias, padding=1))


class Grouped(Kind):
    """A grouped convolution; the width is that of one group."""

    widths = 1

    @classmethod
    def more(cls, random):
        return {"groups": random.choice((2, 2, 3, 4, 5)), "stride": random.choice((1, 2))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: o["groups"]}, o, demands)
        return {names[0]: o["groups"]} if demands.divide(form, o["groups"]) else None

    @classmethod
    def owners(cls, names, o):
        return {names[0]: owned("body.0.weight", o["groups"])}

    def __init__(self, c, w, o):
        super().__init__()
        self.body = conv_norm_act(c, o["groups"] * w[0], o["k"], o, o["stride"], groups=o["groups"])

    def forward(self, x):
        return self.body(x)


class Depthwise(Kind):
    """A depthwise convolution with a multiplier."""

    @classmethod
    def more(cls, random):
        return {"multiplier": random.choice((1, 1, 2, 3)), "stride": random.choice((1, 2))}

    @classmethod
    def describe(cls, form, names, o, demands):
        form = {name: times * o["multiplier"] for name, times in form.items()}
        cut(form, o, demands)
        return form

    def __init__(self, c, w, o):
        super().__init__()
        self.body = conv_norm_act(c, o["multiplier"] * c, 3, o, o["stride"], groups=c)

    def forward(self, x):
        return self.body(x)


class Transposed(Kind):
    """A transposed convolution to twice the size, whole or in groups; the width is that of one group."""

    widths = 1
    owner = owned("up.weight", axis=1)
    grows = True

    @classmethod
    def more(cls, random):
        return {"groups": random.choice((1, 1, 2)), "form": random.choice((0, 1, 2))}

    @classmethod
    def describe(cls, form, names, o, demands):
        out = {names[0]: o["groups"]}
        cut(out, o, demands)
        return out if demands.divide(form, o["groups"]) else None

    def __init__(self, c, w, o):
        super().__init__()
        k, padding, extra = ((2, 0, 0), (4, 1, 0), (3, 1, 1))[o["form"]]
        self.up = transposed_of(o["d"])(
            c, o["groups"] * w[0], k, 2, padding, output_padding=extra, groups=o["groups"], bias=o["bias"]
        )
        self.end = finish(o["groups"] * w[0], o)

    def forward(self, x):
        return self.end(self.up(x))


class TransposedDepthwise(Kind):
    """A transposed depthwise convolution."""

    grows = True

    @classmethod
    def describe(cls, form, names, o, demands):
        cut(form, o, demands)
        return form

    def __init__(self, c, w, o):
        super().__init__()
        self.up = transposed_of(o["d"])(c, c, 2, 2, groups=c, bias=o["bias"])
        self.end = finish(c, o)

    def forward(self, x):
        return self.end(self.up(x))


class Pixels(Widening):
    """A pixel shuffle to twice the size."""

    owner = owned("stem.weight", 4)
    dimensions = (2,)
    grows = True

    def __init__(self, c, w, o):
        super().__init__()
        self.stem = nn.Conv2d(c, 4 * w[0], o["k"], padding=o["k"] // 2, bias=o["bias"])
        self.shuffle = nn.PixelShuffle(2)
        self.end = finish(w[0], o)

    def forward(self, x):
        return self.end(self.shuffle(self.stem(x)))


class Pool(Kind):
    """Pooling."""

    @classmethod
    def more(cls, random):
        return {"kind": random.choice(("max", "avg", "ceil", "adaptive"))}

    def __init__(self, c, w, o):
        super().__init__()
        d = o["d"] - 1
        self.pool = {
            "max": lambda: (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[d](3, 2, 1),
            "avg": lambda: (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[d](3, 2, 1),
            "ceil": lambda: (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[d](2, 2, ceil_mode=True),
            "adaptive": lambda: (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[d](3),
        }[o["kind"]]()

    def forward(self, x):
        return self.pool(x)


class Shared(Kind):
    """One layer, applied twice."""

    @classmethod
    def describe(cls, form, names, o, demands):
        cut(form, o, demands)
        return form

    def __init__(self, c, w, o):
        super().__init__()
        self.conv = conv_of(o["d"])(c, c, 3, padding=1, bias=o["bias"])
        self.end = finish(c, o)

    def forward(self, x):
        return self.end(self.conv(self.end(self.conv(x))))


class Tied(Kind):
    """Two layers that hold the same weight."""

    widths = 1
    owner = owned("one.weight")

    @classmethod
    def describe(cls, form, names, o, demands):
        return {names[0]: 1}

    def __init__(self, c, w, o):
        super().__init__()
        self.one = conv_of(o["d"])(c, w[0], 3, padding=1, bias=o["bias"])
        self.two = conv_of(o["d"])(c, w[0], 3, padding=1, bias=o["bias"])
        self.two.weight = self.one.weight

    def forward(self, x):
        return F.relu(self.one(x)) + self.two(x.flip(-1))

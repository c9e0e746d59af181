"""Paths that meet again: residual adds, concatenations, branches of different strides."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fuzz.description import plus

from .parts import Kind, Widening, conv_norm_act, conv_of, cut, finish, norm_of, owned


class Residual(Kind):
    """A residual block of an inner width; plain or pre-activation, perhaps with a LayerScale."""

    widths = 1
    owner = owned("one.weight")

    @classmethod
    def more(cls, random):
        return {"pre": random.random() < 0.3, "scale": random.choice(("none", "none", "vector", "map"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut(form, o, demands)
        cut({names[0]: 1}, o, demands)
        return form

    def __init__(self, c, w, o):
        super().__init__()
        conv, k = conv_of(o["d"]), o["k"]
        self.before = finish(c, o) if o["pre"] else nn.Identity()
        self.one = conv(c, w[0], k, padding=k // 2, bias=o["bias"])
        self.between = finish(w[0], o)
        self.two = conv(w[0], c, 1, bias=o["bias"])
        self.after = nn.Identity() if o["pre"] else norm_of(o["norm"], c, o["d"])
        ones = (1,) * o["d"] if o["scale"] == "map" else ()
        self.gamma = nn.Parameter(0.1 * torch.ones(c, *ones)) if o["scale"] != "none" else None

    def forward(self, x):
        y = self.after(self.two(self.between(self.one(self.before(x)))))
        if self.gamma is not None:
            y = self.gamma * y if self.gamma.dim() > 1 else (y.movedim(1, -1) * self.gamma).movedim(-1, 1)
        return x + y


class Downsample(Kind):
    """A bottleneck with a projected shortcut."""

    widths = 2

    @classmethod
    def more(cls, random):
        return {"stride": random.choice((1, 2))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        cut({names[1]: 1}, o, demands)
        return {names[1]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: owned("main.0.0.weight"), names[1]: owned("shortcut.0.weight")}

    def __init__(self, c, w, o):
        super().__init__()
        plain = {**o, "act": "none"}
        self.main = nn.Sequential(conv_norm_act(c, w[0], o["k"], o, o["stride"]), conv_norm_act(w[0], w[1], 3, plain))
        self.shortcut = conv_norm_act(c, w[1], 1, plain, o["stride"])

    def forward(self, x):
        return F.relu(self.main(x) + self.shortcut(x))


class Branches(Kind):
    """Branches of different kernels or dilations, joined by a concatenation, perhaps with the input itself."""

    @classmethod
    def more(cls, random):
        return {
            "branches": random.choice((2, 2, 3, 4)),
            "input": random.random() < 0.3,
            "stride": random.choice((1, 1, 2)),
            "pool": random.random() < 0.3,
        }

    @classmethod
    def count(cls, o):
        return o["branches"]

    @classmethod
    def describe(cls, form, names, o, demands):
        o["stride"] = 1 if o["input"] else o["stride"]
        for name in names:
            cut({name: 1}, o, demands)
        parts = [{name: 1} for name in names]
        return plus(*([form] if o["input"] else []), *parts)

    @classmethod
    def owners(cls, names, o):
        return {name: owned(f"branches.{i}.0.weight") for i, name in enumerate(names)}

    def __init__(self, c, w, o):
        super().__init__()
        kernels = ((1, 1), (3, 1), (3, 2), (5, 1))
        self.branches = nn.ModuleList(
            conv_norm_act(c, n, k, o, o["stride"], dilation=dilation)
            for n, (k, dilation) in zip(w, kernels, strict=False)
        )
        pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[o["d"] - 1]
        self.pool = pool(3, 1, 1) if o["pool"] else nn.Identity()
        self.input = o["input"]

    def forward(self, x):
        found = [x] if self.input else []
        *others, last = self.branches
        return torch.cat([*found, *(branch(x) for branch in others), last(self.pool(x))], 1)


class Strided(Widening):
    """Two branches of different strides, the finer pooled, added."""

    owner = owned("fast.0.weight")

    def __init__(self, c, w, o):
        super().__init__()
        self.fast = conv_norm_act(c, w[0], 3, o, 2)
        self.fine = conv_norm_act(c, w[0], 1, o)

    def forward(self, x):
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.dim() - 3]
        return self.fast(x) + pool(self.fine(x), 3, 2, 1)


class Growth(Kind):
    """Layers that each see all before them (DenseNet)."""

    @classmethod
    def more(cls, random):
        return {"layers": random.choice((1, 2, 3))}

    @classmethod
    def count(cls, o):
        return o["layers"]

    @classmethod
    def describe(cls, form, names, o, demands):
        for name in names:
            cut({name: 1}, o, demands)
        return plus(form, *({name: 1} for name in names))

    @classmethod
    def owners(cls, names, o):
        return {name: owned(f"layers.{i}.0.weight") for i, name in enumerate(names)}

    def __init__(self, c, w, o):
        super().__init__()
        self.layers = nn.ModuleList(conv_norm_act(c + sum(w[:i]), n, 3, o) for i, n in enumerate(w))

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class Hourglass(Kind):
    """Down, up again, and joined with what came (U-Net)."""

    widths = 1
    owner = owned("down.0.weight")

    @classmethod
    def more(cls, random):
        return {"join": random.choice(("cat", "add"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        if o["join"] == "add":
            cut(form, o, demands)
        return plus(form, {names[0]: 1}) if o["join"] == "cat" else form

    def __init__(self, c, w, o):
        super().__init__()
        self.down = conv_norm_act(c, w[0], 3, o, 2)
        self.back = conv_norm_act(w[0], c, 1, o) if o["join"] == "add" else nn.Identity()
        self.join = o["join"]

    def forward(self, x):
        y = F.interpolate(self.back(self.down(x)), size=x.shape[2:])
        return x + y if self.join == "add" else torch.cat([x, y], 1)


class ChannelsLast(Kind):
    """A ConvNeXt block: depthwise, then LayerNorm and an MLP with the channels last."""

    widths = 1
    owner = owned("up.weight")

    @classmethod
    def more(cls, random):
        return {"scale": random.random() < 0.6}

    def __init__(self, c, w, o):
        super().__init__()
        self.depthwise = conv_of(o["d"])(c, c, 3, padding=1, groups=c, bias=o["bias"])
        self.norm = nn.LayerNorm(c)
        self.up, self.down = nn.Linear(c, w[0]), nn.Linear(w[0], c, bias=o["bias"])
        self.gamma = nn.Parameter(1e-6 * torch.ones(c)) if o["scale"] else None

    def forward(self, x):
        y = self.depthwise(x)
        y = self.down(F.gelu(self.up(self.norm(y.permute(0, *range(2, y.dim()), 1)))))
        y = y if self.gamma is None else self.gamma * y
        return x + y.permute(0, y.dim() - 1, *range(1, y.dim() - 1))

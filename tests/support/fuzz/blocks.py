"""The kinds of blocks: how each is drawn, what it demands of the widths, what it puts out, and its module.

A kind is a module class of `BLOCKS`. Its constructor takes the incoming channels, the widths that it has as arguments,
and its options. ``describe`` says how many channels a block puts out, as a `Form`, and tells the `Demands`; ``owners``
where each of its widths can be read off: (tensor, axis, times) says that the tensor's axis is so many times the width.
"""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from precrop import register_size_attributes

from .description import Demands, Form, plus

T = torch.Tensor
Options = dict[str, Any]

_ACTS = {
    "relu": lambda c: nn.ReLU(),
    "silu": lambda c: nn.SiLU(inplace=True),
    "gelu": lambda c: nn.GELU(),
    "hardswish": lambda c: nn.Hardswish(),
    "prelu": lambda c: nn.PReLU(c),
    "none": lambda c: nn.Identity(),
}
NORMS = ("batch", "batch", "group1", "group2", "layer", "instance", "none")


class ChannelsLastNorm(nn.LayerNorm):
    """LayerNorm over the channels of (N, C, ...) images."""

    def forward(self, x: T) -> T:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def norm_of(kind: str, channels: int, d: int) -> nn.Module:
    """A norm of one of `NORMS`."""
    if kind.startswith("group"):
        return nn.GroupNorm(int(kind[5:]), channels)
    if kind == "layer":
        return ChannelsLastNorm(channels)
    if kind == "batch":
        return (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[d - 1](channels)
    if kind == "instance":
        return (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[d - 1](channels, affine=True)
    return nn.Identity()


def conv_of(d: int) -> Any:
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[d - 1]


def transposed_of(d: int) -> Any:
    return (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[d - 1]


def cut(form: Form, options: Options, demands: Demands) -> None:
    """What a norm of groups demands."""
    if options["norm"] == "group2" and not demands.divide(form, 2):
        options["norm"] = "group1"


def finish(channels: int, o: Options) -> nn.Sequential:
    """Norm and activation."""
    return nn.Sequential(norm_of(o["norm"], channels, o["d"]), _ACTS[o["act"]](channels))


def conv_norm_act(c: int, out: int, k: int, o: Options, stride: int = 1, **more: Any) -> nn.Sequential:
    conv = conv_of(o["d"])(c, out, k, stride=stride, padding=k // 2 * more.get("dilation", 1), bias=o["bias"], **more)
    return nn.Sequential(conv, *finish(out, o))


class Kind(nn.Module):
    """The base of all kinds; by default a block of no widths whose output is as wide as its input."""

    widths: ClassVar[int] = 0
    #: The number of spatial axes that it works on.
    dimensions: ClassVar[tuple[int, ...]] = (1, 2, 3)
    #: Whether its output has more places than its input.
    grows: ClassVar[bool] = False

    @classmethod
    def draw(cls, random: Random, d: int, norms: list[str]) -> Options:
        common = {
            "d": d,
            "norm": random.choice(norms),
            "act": random.choice(list(_ACTS)),
            "bias": random.random() < 0.5,
            "k": random.choice((1, 3, 3, 5)),
        }
        return {**common, **cls.more(random)}

    @classmethod
    def more(cls, random: Random) -> Options:
        return {}

    @classmethod
    def count(cls, o: Options) -> int:
        """How many widths the block takes."""
        return cls.widths

    @classmethod
    def describe(cls, form: Form, names: tuple[str, ...], o: Options, demands: Demands) -> Form | None:
        """The channels put out; None where the block cannot follow these channels."""
        return form

    @classmethod
    def owners(cls, names: tuple[str, ...], o: Options) -> dict[str, tuple[str, int, int]]:
        return {}


def _owned(tensor: str, times: int = 1, axis: int = 0) -> tuple[str, int, int]:
    return (tensor, axis, times)


class Conv(Kind):
    """Convolution, norm, activation; keeps its sizes under usual or unusual names, or not at all."""

    widths = 1

    @classmethod
    def more(cls, random):
        return {"stride": random.choice((1, 1, 2)), "keeps": random.choice(("nothing", "usual", "own"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        return {names[0]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("body.0.weight")}

    def __init__(self, c, w, o):
        super().__init__()
        self.body = conv_norm_act(c, w[0], o["k"], o, o["stride"])
        if o["keeps"] == "usual":
            self.in_channels, self.out_channels = c, w[0]
        if o["keeps"] == "own":
            self.planes, self.ends = w[0], (c, w[0])

    def forward(self, x):
        return self.body(x)


class Residual(Kind):
    """A residual block of an inner width; plain or pre-activation, perhaps with a LayerScale."""

    widths = 1

    @classmethod
    def more(cls, random):
        return {"pre": random.random() < 0.3, "scale": random.choice(("none", "none", "vector", "map"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut(form, o, demands)
        cut({names[0]: 1}, o, demands)
        return form

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("one.weight")}

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
        return {names[0]: _owned("main.0.0.weight"), names[1]: _owned("shortcut.0.weight")}

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
        return {name: _owned(f"branches.{i}.0.weight") for i, name in enumerate(names)}

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


class Strided(Kind):
    """Two branches of different strides, the finer pooled, added."""

    widths = 1

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        return {names[0]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("fast.0.weight")}

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
        return {name: _owned(f"layers.{i}.0.weight") for i, name in enumerate(names)}

    def __init__(self, c, w, o):
        super().__init__()
        self.layers = nn.ModuleList(conv_norm_act(c + sum(w[:i]), n, 3, o) for i, n in enumerate(w))

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class Halves(Kind):
    """Twice a width, halved: one half passes, the other is convolved; joined, perhaps shuffled (ShuffleNetV2).

    Unshuffled, the convolved half has a width of its own.
    """

    @classmethod
    def more(cls, random):
        ways = ("chunk", "split", "slices", "negative", "tensor_split")
        return {"way": random.choice(ways), "shuffle": random.choice(("none", "view", "module"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        o["shuffle"] = "view" if o["shuffle"] == "module" and o["d"] != 2 else o["shuffle"]
        if o["shuffle"] != "none" and o["norm"] == "group2":
            o["norm"] = "group1"  # even halves need not be equal ones for a shuffle by two
        cut({names[-1]: 1}, o, demands)
        return plus({names[0]: 1}, {names[-1]: 1})

    @classmethod
    def count(cls, o):
        return 2 if o["shuffle"] == "none" else 1

    @classmethod
    def owners(cls, names, o):
        return {names[-1]: _owned("right.0.weight"), names[0]: _owned("stem.0.weight", 2)}

    def __init__(self, c, w, o):
        super().__init__()
        self.stem = conv_norm_act(c, 2 * w[0], 3, o)
        self.right = conv_norm_act(w[0], w[-1], o["k"], o)
        self.way, self.shuffle = o["way"], o["shuffle"]
        self.mix = nn.ChannelShuffle(2) if self.shuffle == "module" else nn.Identity()
        if self.way == "attribute":
            self.half = w[0]

    def halves(self, x):
        n = x.shape[1] // 2
        if self.way == "chunk":
            return x.chunk(2, 1)
        if self.way == "split":
            return x.split(n, 1)
        if self.way == "tensor_split":
            return torch.tensor_split(x, 2, 1)
        if self.way == "negative":
            return x[:, :-n], x[:, -n:]
        if self.way == "attribute":
            return x[:, : self.half], x[:, self.half :]
        return x[:, :n], x[:, n:]

    def forward(self, x):
        left, right = self.halves(self.stem(x))
        x = self.mix(torch.cat([left, self.right(right)], 1))
        if self.shuffle == "view":
            n, c, *size = x.shape
            x = x.view(n, 2, c // 2, *size).transpose(1, 2).reshape(n, c, *size)
        return x


class HalvesByAttribute(Halves):
    """The same, split at a number that the module keeps and that precrop was told of."""

    @classmethod
    def more(cls, random):
        return {**super().more(random), "way": "attribute"}


register_size_attributes(HalvesByAttribute, "half")


class Gated(Kind):
    """A gated unit: twice a width, of which one half gates the other."""

    widths = 1

    @classmethod
    def more(cls, random):
        return {"way": random.choice(("glu", "chunk", "unflatten", "maxout"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        return {names[0]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("stem.weight", 2)}

    def __init__(self, c, w, o):
        super().__init__()
        self.stem = conv_of(o["d"])(c, 2 * w[0], o["k"], padding=o["k"] // 2, bias=o["bias"])
        self.end = norm_of(o["norm"], w[0], o["d"])
        self.way = o["way"]

    def forward(self, x):
        x = self.stem(x)
        if self.way == "glu":
            x = F.glu(x, 1)
        elif self.way == "chunk":
            x, gate = x.chunk(2, 1)
            x = x * gate.sigmoid()
        elif self.way == "unflatten":
            x = x.unflatten(1, (2, -1)).sum(1)
        else:
            x = x.view(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:]).amax(2)
        return self.end(x)


class Partial(Kind):
    """A quarter of the channels is convolved, the others pass (FasterNet); cut by a slice or in three shares."""

    widths = 2

    @classmethod
    def more(cls, random):
        return {"shares": random.random() < 0.5}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[1]: 1}, o, demands)
        return {names[0]: 3, names[1]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("stem.0.weight", 4), names[1]: _owned("conv.0.weight")}

    def __init__(self, c, w, o):
        super().__init__()
        self.stem = conv_norm_act(c, 4 * w[0], 1, o)
        self.conv = conv_norm_act(w[0], w[1], 3, o)
        self.shares = o["shares"]

    def forward(self, x):
        x = self.stem(x)
        n = x.shape[1] // 4
        if self.shares:
            one, two, three = x.split([n, n, 2 * n], 1)
            return torch.cat([three, two, self.conv(one)], 1)
        return torch.cat([self.conv(x[:, :n]), x[:, n:]], 1)


class Shuffle(Kind):
    """A channel shuffle of the channels that come."""

    @classmethod
    def more(cls, random):
        return {"groups": random.choice((2, 3, 4)), "way": random.choice(("view", "unflatten", "module"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        o["way"] = "view" if o["way"] == "module" and o["d"] != 2 else o["way"]
        return form if demands.divide(form, o["groups"]) else None

    def __init__(self, c, w, o):
        super().__init__()
        self.groups, self.way = o["groups"], o["way"]
        self.mix = nn.ChannelShuffle(self.groups) if self.way == "module" else nn.Identity()

    def forward(self, x):
        if self.way == "module":
            return self.mix(x)
        if self.way == "unflatten":
            return x.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        n, c, *size = x.shape
        return x.view(n, self.groups, c // self.groups, *size).transpose(1, 2).contiguous().view(n, c, *size)


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
        return {names[0]: _owned("body.0.weight", o["groups"])}

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
    grows = True

    @classmethod
    def more(cls, random):
        return {"groups": random.choice((1, 1, 2)), "form": random.choice((0, 1, 2))}

    @classmethod
    def describe(cls, form, names, o, demands):
        out = {names[0]: o["groups"]}
        cut(out, o, demands)
        return out if demands.divide(form, o["groups"]) else None

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("up.weight", axis=1)}

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


class Pixels(Kind):
    """A pixel shuffle to twice the size."""

    widths = 1
    dimensions = (2,)
    grows = True

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        return {names[0]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("stem.weight", 4)}

    def __init__(self, c, w, o):
        super().__init__()
        self.stem = nn.Conv2d(c, 4 * w[0], o["k"], padding=o["k"] // 2, bias=o["bias"])
        self.shuffle = nn.PixelShuffle(2)
        self.end = finish(w[0], o)

    def forward(self, x):
        return self.end(self.shuffle(self.stem(x)))


class Gate(Kind):
    """Squeeze and excitation, in several spellings."""

    widths = 1

    @classmethod
    def more(cls, random):
        spellings = ("pool", "mean", "view", "index", "flatten", "expand")
        return {"spelling": random.choice(spellings), "hard": random.random() < 0.3}

    @classmethod
    def describe(cls, form, names, o, demands):
        return form

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("down.weight")}

    def __init__(self, c, w, o):
        super().__init__()
        self.spelling, self.hard = o["spelling"], o["hard"]
        self.pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[o["d"] - 1](1)
        if self.spelling in ("pool", "mean"):
            self.down, self.up = conv_of(o["d"])(c, w[0], 1), conv_of(o["d"])(w[0], c, 1)
        else:
            self.down, self.up = nn.Linear(c, w[0], bias=o["bias"]), nn.Linear(w[0], c, bias=o["bias"])

    def forward(self, x):
        axes = tuple(range(2, x.dim()))
        if self.spelling == "pool":
            s = self.pool(x)
        elif self.spelling == "mean":
            s = x.mean(axes, keepdim=True)
        elif self.spelling == "flatten":
            s = self.pool(x).flatten(1)
        elif self.spelling == "view":
            s = self.pool(x).view(x.shape[0], x.shape[1])
        else:
            s = x.mean(axes)
        s = self.up(F.relu(self.down(s)))
        s = F.hardsigmoid(s) if self.hard else torch.sigmoid(s)
        if self.spelling in ("view", "flatten"):
            s = s.view(x.shape[0], x.shape[1], *(1 for _ in axes))
        elif self.spelling in ("index", "expand"):
            for _ in axes:
                s = s[..., None]
        return x * (s.expand_as(x) if self.spelling == "expand" else s)


class ChannelConv(Kind):
    """A gate that convolves over the channels (ECA)."""

    def __init__(self, c, w, o):
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x):
        s = self.conv(x.flatten(2).mean(2).unsqueeze(1)).sigmoid()
        return x * s.view(x.shape[0], x.shape[1], *(1 for _ in x.shape[2:]))


class SpatialGate(Kind):
    """A gate of each place, from the mean and the largest channel (CBAM)."""

    def __init__(self, c, w, o):
        super().__init__()
        self.conv = conv_of(o["d"])(2, 1, 3, padding=1, bias=o["bias"])

    def forward(self, x):
        return x * self.conv(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)).sigmoid()


class ChannelAttention(Kind):
    """Attention between channels: products of matrices, as large as the channels squared."""

    def __init__(self, c, w, o):
        super().__init__()

    def forward(self, x):
        flat = x.flatten(2)
        weights = torch.softmax(flat @ flat.transpose(1, 2) / flat.shape[2], -1)
        return x + torch.bmm(weights, flat).view_as(x)


class ChannelsLast(Kind):
    """A ConvNeXt block: depthwise, then LayerNorm and an MLP with the channels last."""

    widths = 1

    @classmethod
    def more(cls, random):
        return {"scale": random.random() < 0.6}

    @classmethod
    def describe(cls, form, names, o, demands):
        return form

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("up.weight")}

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

    @classmethod
    def describe(cls, form, names, o, demands):
        return {names[0]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("one.weight")}

    def __init__(self, c, w, o):
        super().__init__()
        self.one = conv_of(o["d"])(c, w[0], 3, padding=1, bias=o["bias"])
        self.two = conv_of(o["d"])(c, w[0], 3, padding=1, bias=o["bias"])
        self.two.weight = self.one.weight

    def forward(self, x):
        return F.relu(self.one(x)) + self.two(x.flip(-1))


class Hourglass(Kind):
    """Down, up again, and joined with what came (U-Net)."""

    widths = 1

    @classmethod
    def more(cls, random):
        return {"join": random.choice(("cat", "add"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        if o["join"] == "add":
            cut(form, o, demands)
        return plus(form, {names[0]: 1}) if o["join"] == "cat" else form

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("down.0.weight")}

    def __init__(self, c, w, o):
        super().__init__()
        self.down = conv_norm_act(c, w[0], 3, o, 2)
        self.back = conv_norm_act(w[0], c, 1, o) if o["join"] == "add" else nn.Identity()
        self.join = o["join"]

    def forward(self, x):
        y = F.interpolate(self.back(self.down(x)), size=x.shape[2:])
        return x + y if self.join == "add" else torch.cat([x, y], 1)


class Bare(Kind):
    """A convolution in functional form, its weight a bare parameter; perhaps standardized."""

    widths = 1

    @classmethod
    def more(cls, random):
        return {"standardized": random.random() < 0.5}

    @classmethod
    def describe(cls, form, names, o, demands):
        cut({names[0]: 1}, o, demands)
        return {names[0]: 1}

    @classmethod
    def owners(cls, names, o):
        return {names[0]: _owned("weight")}

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


class Constant(Kind):
    """Channels of a fixed number beside those that come: coordinates, or zeros of a padded shortcut."""

    @classmethod
    def more(cls, random):
        return {"way": random.choice(("coordinates", "pad")), "channels": random.choice((1, 2, 3))}

    @classmethod
    def describe(cls, form, names, o, demands):
        return plus(form, {"": o["channels"]})

    def __init__(self, c, w, o):
        super().__init__()
        self.way, self.channels = o["way"], o["channels"]

    def forward(self, x):
        if self.way == "pad":
            return F.pad(x, (0, 0) * (x.dim() - 2) + (0, self.channels))
        places = torch.linspace(-1, 1, x.shape[-1], device=x.device)
        return torch.cat([x, places.expand(x.shape[0], self.channels, *x.shape[2:])], 1)


class Repeat(Kind):
    """Every channel twice."""

    @classmethod
    def more(cls, random):
        return {"way": random.choice(("repeat", "interleave", "cat"))}

    @classmethod
    def describe(cls, form, names, o, demands):
        return plus(form, form)

    def __init__(self, c, w, o):
        super().__init__()
        self.way = o["way"]

    def forward(self, x):
        if self.way == "repeat":
            return x.repeat(1, 2, *(1 for _ in x.shape[2:]))
        return x.repeat_interleave(2, 1) if self.way == "interleave" else torch.cat([x, -x], 1)


BLOCKS: dict[str, type[Kind]] = {
    kind.__name__: kind
    for kind in (
        Conv, Residual, Downsample, Branches, Strided, Growth, Halves, HalvesByAttribute, Gated, Partial, Shuffle,
        Grouped, Depthwise, Transposed, TransposedDepthwise, Pixels, Gate, ChannelConv, SpatialGate,
        ChannelAttention, ChannelsLast, Pool, Shared, Tied, Hourglass, Bare, Constant, Repeat,
    )
}  # fmt: skip


#: The kinds that may stand first, straight on the image.
STEMS = ("Conv", "Branches", "Downsample", "Halves", "Gated", "Bare", "Pixels", "Strided")

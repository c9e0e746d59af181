"""Channels taken apart, reordered, added to or repeated."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fuzz.description import plus
from precrop import register_size_attributes

from .parts import Kind, Widening, conv_norm_act, conv_of, cut, norm_of, owned


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
        return {names[-1]: owned("right.0.weight"), names[0]: owned("stem.0.weight", 2)}

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


class Gated(Widening):
    """A gated unit: twice a width, of which one half gates the other."""

    owner = owned("stem.weight", 2)

    @classmethod
    def more(cls, random):
        return {"way": random.choice(("glu", "chunk", "unflatten", "maxout"))}

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
        return {names[0]: owned("stem.0.weight", 4), names[1]: owned("conv.0.weight")}

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

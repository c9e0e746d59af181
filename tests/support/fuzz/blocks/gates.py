"""Gates, and attention between channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .parts import Kind, conv_of, owned


class Gate(Kind):
    """Squeeze and excitation, in several spellings."""

    widths = 1
    owner = owned("down.weight")

    @classmethod
    def more(cls, random):
        spellings = ("pool", "mean", "view", "index", "flatten", "expand")
        return {"spelling": random.choice(spellings), "hard": random.random() < 0.3}

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

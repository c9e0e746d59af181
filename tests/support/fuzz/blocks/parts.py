"""What all kinds of blocks are made of: norms, activations, convolutions of one to three axes; and their base."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

import torch
from torch import nn

from fuzz.description import Demands, Form

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


Owner = tuple[str, int, int]


def owned(tensor: str, times: int = 1, axis: int = 0) -> Owner:
    return (tensor, axis, times)


class Kind(nn.Module):
    """The base of all kinds; by default a block of no widths whose output is as wide as its input."""

    widths: ClassVar[int] = 0
    #: Where its one width can be read off; kinds of other counts have `owners` of their own.
    owner: ClassVar[Owner | None] = None
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
    def owners(cls, names: tuple[str, ...], o: Options) -> dict[str, Owner]:
        return {names[0]: cls.owner} if cls.owner else {}


class Widening(Kind):
    """The base of the kinds of one width, which is what they put out."""

    widths = 1

    @classmethod
    def describe(cls, form: Form, names: tuple[str, ...], o: Options, demands: Demands) -> Form | None:
        cut({names[0]: 1}, o, demands)
        return {names[0]: 1}

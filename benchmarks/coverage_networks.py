"""Every network of torchvision and timm: what it is called, whether it is convolutional, how it is built."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

import precrop
from precrop.origin import _EmptyOnMeta

# -- which networks are convolutional ------------------------------------------------------------

#: A network is a hybrid when one of its modules is of a class so named: it lets positions attend to positions...
ATTENTION = re.compile(r"Attention|Attn|MHSA|SHSA|GPSA|XCA|^LambdaLayer$|^LSTM$")
#: ...unless the class only weighs channels (after a pooling), as squeeze-and-excitation does.
CHANNEL_ATTENTION = ("SplitAttn", "SelectiveKernelAttn")
#: Files whose networks mix positions by classes of other names: token MLPs, state spaces, linear attention, ViTs.
MIXING_FILES = (
    "efficientvim",
    "efficientvit_mit",
    "iformer",
    "mlp_mixer",
    "sequencer",
    "vision_transformer",
    "vision_transformer_hybrid",
    "vitamin",
)


def kind_of(model: nn.Module, file: str) -> str:
    """``"cnn"`` or ``"hybrid"`` (transformers too), by the rule above."""
    names = {type(module).__name__ for module in model.modules()}
    attends = any(ATTENTION.search(name) and name not in CHANNEL_ATTENTION for name in names)
    return "hybrid" if attends or file in MIXING_FILES else "cnn"


# -- which networks there are --------------------------------------------------------------------

#: One sample's shape where it cannot be read off the first convolution.
INPUT_SHAPES = {
    "video.resnet": (3, 16, 112, 112),
    "video.s3d": (3, 16, 224, 224),
    "video.mvit": (3, 16, 224, 224),
    "video.swin_transformer": (3, 16, 224, 224),
    "inception": (3, 299, 299),  # its auxiliary head needs that much
    "quantization.inception": (3, 299, 299),
}


@dataclass(frozen=True)
class Network:
    """A registered network: its MODEL name, and the file of its library that it is in."""

    name: str
    file: str


def all_networks() -> list[Network]:
    """Every network of torchvision and of timm: the first of every file, then the second, and so on.

    A run that is interrupted has seen something of every file.
    """
    import timm
    import torchvision
    from timm.models._registry import _model_to_module

    found = []
    for short in torchvision.models.list_models():
        file = torchvision.models.get_model_builder(short).__module__.removeprefix("torchvision.models.")
        found.append(Network(f"torchvision/{short}", file))
    found += [Network(f"timm/{short}", _model_to_module[short]) for short in timm.list_models()]
    seen: Counter[tuple[str, str]] = Counter()
    turn = {}
    for network in found:
        seen[library_of(network.name), network.file] += 1
        turn[network] = seen[library_of(network.name), network.file]
    return sorted(found, key=turn.__getitem__)


def library_of(model: str) -> str:
    """``"timm"`` or ``"torchvision"``."""
    return model.partition("/")[0]


def build(network: Network, on_meta: bool = False) -> nn.Module:
    """The whole network, freshly initialized, or without data."""
    short = network.name.rpartition("/")[2]
    # Their own initialization draws truncated normals in SciPy and takes half a minute.
    slow = network.name.startswith("torchvision/") and short.endswith(("googlenet", "inception_v3"))
    kwargs = {"init_weights": False} if slow else {}
    if on_meta:
        # Some builders compute with parameters or run a forward, and need them all in one place.
        with suppress(Exception), _EmptyOnMeta():
            return precrop.create_model(network.name, **kwargs).to("meta")
        with suppress(Exception), torch.device("meta"):
            return precrop.create_model(network.name, **kwargs)
        return precrop.create_model(network.name, **kwargs).to("meta")
    return precrop.create_model(network.name, **kwargs)

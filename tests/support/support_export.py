"""Networks and images for the tests of export."""

import dataclasses
import resource
from importlib.util import find_spec

import pytest
import torch
from torch import nn

needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
SHAPE = (3, 16, 16)
CONVOLUTIONS = ("stem", "depthwise", "pointwise")


class SmallNet(nn.Module):
    """Each of what the engines treat apart: a convolution, a depthwise one, a norm, a residual add, a linear layer."""

    def __init__(self, width=16, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.pointwise = nn.Conv2d(width, width, 1)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        features = self.norm(self.stem(images)).relu()
        features = features + self.pointwise(self.depthwise(features)).relu()
        return self.head(features.mean((2, 3)))


class Rounded(SmallNet):
    """Has an operator that TensorRT's parser refuses, and the other engines run."""

    def forward(self, images):
        return super().forward(torch.bitwise_and(images.to(torch.int32), 3).float())


def warmed(network, shape=SHAPE, batch=16):
    """The network with norms that have seen images, so that its outputs are of a size that errors can be seen in."""
    with torch.no_grad():
        network.train()(images(batch, shape=shape, seed=99))
    return network.eval()


def images(batch, shape=SHAPE, seed=0):
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed))


def small_net(width=16):
    torch.manual_seed(0)
    return warmed(SmallNet(width))


def with_a_full_disk(backend):
    """The backend, whose builder may write no more than a kilobyte to a file: what a full disk does, for real."""

    def build(*args):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            return backend.build(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return dataclasses.replace(backend, build=build)

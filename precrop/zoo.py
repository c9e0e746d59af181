"""CIFAR-size networks of the pruning literature, for images of 32x32 pixels.

Every factory takes ``num_classes`` and ``in_chans`` and returns a fresh network
that maps ``(N, in_chans, H, W)`` to logits ``(N, num_classes)``. All convolutions
and linear layers start Kaiming-normal over the fan-in (He et al. 2015), biases at
0 and BatchNorm at scale 1, shift 0. The final pooling is global, so every network
also takes 16x16 images, and the ResNets 8x8; where the last feature map has a
single pixel, BatchNorm needs more than one image to train on.

=============== ========== =====================================================
name            parameters from
=============== ========== =====================================================
resnet20        272,474    He et al. 2016, arXiv:1512.03385, section 4.2
resnet32        466,906    the same
resnet56        855,770    the same
vgg16_bn        14,724,042 Simonyan & Zisserman 2015, arXiv:1409.1556, with
                           BatchNorm and one linear layer, as usual on CIFAR
mobilenet_v2    2,236,682  Sandler et al. 2018, arXiv:1801.04381
shufflenet_v2   1,263,854  Ma et al. 2018, arXiv:1807.11164, at 1.0x
=============== ========== =====================================================

(with 10 classes and 3 input channels)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torchvision
from torch import nn

# timm's place for the input size, so that every tool which knows timm finds these networks' too.
_CIFAR = {"input_size": (3, 32, 32)}


def _initialize(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a skip; a 1x1 projection where the shape changes.

    ``(N, in_channels, H, W)`` to ``(N, out_channels, H/stride, W/stride)``.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        """Build with fresh weights."""
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Residual network for small images: three stages of 16, 32 and 64 channels.

    ``blocks`` is the number of blocks in each stage, so the network has
    ``6 * blocks + 2`` layers. Where a stage begins, the shortcut is a 1x1
    projection (option B of the paper), as in most pruning papers: the paper's
    option A pads with zeros, which saves 2,752 parameters but makes a stage's
    width a function of the width before it.
    """

    pretrained_cfg = _CIFAR

    def __init__(self, blocks: int, num_classes: int = 10, in_chans: int = 3) -> None:
        """Build with fresh weights."""
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.stage1 = self._stage(blocks, 16, 16, stride=1)
        self.stage2 = self._stage(blocks, 16, 32, stride=2)
        self.stage3 = self._stage(blocks, 32, 64, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, num_classes)
        _initialize(self)

    @staticmethod
    def _stage(blocks: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
        first = BasicBlock(in_channels, out_channels, stride)
        return nn.Sequential(first, *(BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(N, in_chans, H, W)`` to logits ``(N, num_classes)``."""
        x = torch.relu(self.bn1(self.conv1(x)))  # (N, 16, H, W)
        x = self.stage1(x)
        x = self.stage2(x)  # (N, 32, H/2, W/2)
        x = self.stage3(x)  # (N, 64, H/4, W/4)
        logits: torch.Tensor = self.fc(self.pool(x).flatten(1))
        return logits


class VGG(nn.Module):
    """VGG-16 with BatchNorm for small images: thirteen 3x3 convolutions, one linear layer.

    Max-pooling halves the image after the first four groups of convolutions; the
    last group is pooled globally (2x2 pixels when the input is 32x32).
    """

    pretrained_cfg = _CIFAR
    GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))

    def __init__(self, num_classes: int = 10, in_chans: int = 3) -> None:
        """Build with fresh weights."""
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_chans
        for index, group in enumerate(self.GROUPS):
            if index:
                layers.append(nn.MaxPool2d(2))
            for width in group:
                # BatchNorm's shift makes a bias redundant.
                layers += [
                    nn.Conv2d(channels, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        _initialize(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(N, in_chans, H, W)`` to logits ``(N, num_classes)``."""
        x = self.features(x)  # (N, 512, H/16, W/16)
        logits: torch.Tensor = self.classifier(self.pool(x).flatten(1))
        return logits


class MobileNetV2(torchvision.models.MobileNetV2):  # type: ignore[misc]
    """torchvision's MobileNetV2 with the strides usual on CIFAR.

    The stem and the 24-channel stage keep the resolution, so the last feature map
    is H/8 x W/8 instead of H/32 x W/32; no dropout before the classifier.
    """

    pretrained_cfg = _CIFAR
    STAGES = (  # expansion, channels, blocks, stride of the first block
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, num_classes: int = 10, in_chans: int = 3) -> None:
        """Build with fresh weights."""
        stages = [list(stage) for stage in self.STAGES]
        super().__init__(num_classes=num_classes, inverted_residual_setting=stages, dropout=0.0)
        self.features[0][0] = nn.Conv2d(in_chans, 32, 3, padding=1, bias=False)
        _initialize(self)


class ShuffleNetV2(torchvision.models.ShuffleNetV2):  # type: ignore[misc]
    """torchvision's ShuffleNetV2 1.0x with the strides usual on CIFAR.

    The stem keeps the resolution and its max-pooling is left out, so the last
    feature map is H/8 x W/8 instead of H/32 x W/32.
    """

    pretrained_cfg = _CIFAR

    def __init__(self, num_classes: int = 10, in_chans: int = 3) -> None:
        """Build with fresh weights."""
        super().__init__([4, 8, 4], [24, 116, 232, 464, 1024], num_classes=num_classes)
        self.conv1[0] = nn.Conv2d(in_chans, 24, 3, padding=1, bias=False)
        self.maxpool = nn.Identity()
        _initialize(self)


def resnet20(num_classes: int = 10, in_chans: int = 3) -> nn.Module:
    """ResNet-20 with projection shortcuts: 272,474 parameters."""
    return ResNet(3, num_classes, in_chans)


def resnet32(num_classes: int = 10, in_chans: int = 3) -> nn.Module:
    """ResNet-32 with projection shortcuts: 466,906 parameters."""
    return ResNet(5, num_classes, in_chans)


def resnet56(num_classes: int = 10, in_chans: int = 3) -> nn.Module:
    """ResNet-56 with projection shortcuts: 855,770 parameters."""
    return ResNet(9, num_classes, in_chans)


def vgg16_bn(num_classes: int = 10, in_chans: int = 3) -> nn.Module:
    """VGG-16 with BatchNorm and one linear layer: 14,724,042 parameters."""
    return VGG(num_classes, in_chans)


def mobilenet_v2(num_classes: int = 10, in_chans: int = 3) -> nn.Module:
    """MobileNetV2 with CIFAR strides: 2,236,682 parameters."""
    return MobileNetV2(num_classes, in_chans)


def shufflenet_v2(num_classes: int = 10, in_chans: int = 3) -> nn.Module:
    """ShuffleNetV2 1.0x with CIFAR strides: 1,263,854 parameters."""
    return ShuffleNetV2(num_classes, in_chans)


ZOO: dict[str, Callable[..., nn.Module]] = {
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet56": resnet56,
    "vgg16_bn": vgg16_bn,
    "mobilenet_v2": mobilenet_v2,
    "shufflenet_v2": shufflenet_v2,
}

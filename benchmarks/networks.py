"""The networks that the README promises, and how to build each."""

from __future__ import annotations

from torch import nn

from precrop import create_model

NETWORKS = (
    "torchvision/resnet18",
    "torchvision/resnet34",
    "torchvision/resnet50",
    "torchvision/resnext50_32x4d",
    "torchvision/mobilenet_v2",
    "torchvision/mobilenet_v3_small",
    "torchvision/mobilenet_v3_large",
    "torchvision/shufflenet_v2_x0_5",
    "torchvision/shufflenet_v2_x1_0",
    "torchvision/shufflenet_v2_x1_5",
    "torchvision/shufflenet_v2_x2_0",
    "torchvision/vgg16_bn",
    "torchvision/densenet121",
    "torchvision/efficientnet_b0",
    "torchvision/googlenet",
    "torchvision/regnet_y_400mf",
    "torchvision/squeezenet1_0",
    "torchvision/convnext_tiny",
    "timm/resnet50",
    "timm/mobilenetv2_100",
    "timm/mobilenetv3_large_100",
    "timm/efficientnet_b0",
    "timm/regnety_008",
    "timm/seresnet50",
    "timm/convnext_tiny",
    "timm/ghostnet_100",
    "timm/res2net50_26w_4s",
)


def build(name: str) -> nn.Module:
    """A freshly initialized network."""
    # GoogLeNet's own initialization draws truncated normals in SciPy and takes half a minute.
    kwargs = {"init_weights": False} if name.endswith("googlenet") else {}
    return create_model(name, **kwargs)

"""Networks that take something else than one batch of images: how to run their layers on one.

A trace needs every layer run once on sizes that the layers before it put out, nothing more: not the boxes that a
detector finds in between, which are data. `FORWARDS` has a function per class that runs the layers in that order
and returns what must keep its size; `register_forward` adds a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from precrop.cropping.layers import module_class, qualified
from precrop.errors import PrecropError

T = torch.Tensor
Forward = Callable[[Any, T], Any]


def _maps(detector: Any, images: T) -> list[T]:
    maps = detector.backbone(images)
    return [maps] if isinstance(maps, T) else list(maps.values())


def _rcnn(detector: Any, images: T) -> Any:
    """Proposals from every map; then the heads on as many regions of the first map as are kept for an image."""
    maps = _maps(detector, images)
    heads = detector.roi_heads

    def regions(pool: Any, count: int) -> T:
        height, width = pool.output_size
        return maps[0][:, :, :1, :1].expand(-1, -1, height, width).repeat(count, 1, 1, 1)

    proposals = regions(heads.box_roi_pool, detector.rpn.post_nms_top_n())
    outputs = [detector.rpn.head(maps), heads.box_predictor(heads.box_head(proposals))]
    for kind in ("mask", "keypoint"):
        head = getattr(heads, f"{kind}_head", None)
        if head is not None:
            found = regions(getattr(heads, f"{kind}_roi_pool"), heads.detections_per_img)
            outputs.append(getattr(heads, f"{kind}_predictor")(head(found)))
    return outputs


def _one_stage(detector: Any, images: T) -> Any:
    return detector.head(_maps(detector, images))


def _two_images(network: Any, images: T) -> Any:
    return network(images, images)


#: Qualified class name to a function of the network and one batch of images; it holds for subclasses too.
FORWARDS: dict[str, Forward] = {
    "torchvision.models.detection.fcos.FCOS": _one_stage,
    "torchvision.models.detection.generalized_rcnn.GeneralizedRCNN": _rcnn,
    "torchvision.models.detection.retinanet.RetinaNet": _one_stage,
    "torchvision.models.detection.ssd.SSD": _one_stage,
    "torchvision.models.optical_flow.raft.RAFT": _two_images,
}


def forward_of(model: nn.Module) -> Callable[..., Any]:
    """How to run ``model`` on one batch of images: its class's row, else its own forward."""
    for cls in type(model).__mro__:
        if qualified(cls) in FORWARDS:
            return partial(FORWARDS[qualified(cls)], model)
    return model


def register_forward(cls: type[nn.Module], forward: Forward) -> None:
    """Tell precrop how to run a network class whose forward takes something else than one batch of images.

    >>> class Pair(nn.Module):
    ...     def forward(self, left, right):
    ...         return self.head(self.body(left) - self.body(right))
    >>> precrop.register_forward(Pair, lambda model, images: model(images, images))

    ``forward(model, images)`` runs every layer once, ``images`` being (N, C, H, W), and returns the tensors whose
    sizes must stay. It is used while widths are traced, never by the cropped network. Holds for subclasses too.

    Raises `PrecropError` for something that is not a module class, or a forward that cannot be called.
    """
    name = module_class(cls, "a function of (model, images)")
    if not callable(forward):
        raise PrecropError(f"got {forward!r} as the forward of {cls.__name__}; expected a function of (model, images).")
    FORWARDS[name] = forward

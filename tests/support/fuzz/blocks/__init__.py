"""The kinds of blocks: how each is drawn, what it demands of the widths, what it puts out, and its module.

A kind is a module class of `BLOCKS`. Its constructor takes the incoming channels, the widths that it has as arguments,
and its options. ``describe`` says how many channels a block puts out, as a `Form`, and tells the `Demands`; ``owners``
where each of its widths can be read off: (tensor, axis, times) says that the tensor's axis is so many times the width.
"""

from __future__ import annotations

from .gates import ChannelAttention, ChannelConv, Gate, SpatialGate
from .joined import Branches, ChannelsLast, Downsample, Growth, Hourglass, Residual, Strided
from .parts import NORMS, Kind, conv_of
from .plain import Bare, Conv, Depthwise, Grouped, Pixels, Pool, Shared, Tied, Transposed, TransposedDepthwise
from .split import Constant, Gated, Halves, HalvesByAttribute, Partial, Repeat, Shuffle

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

__all__ = ["BLOCKS", "NORMS", "STEMS", "Kind", "conv_of"]

"""Shape rules of the operators whose arguments must agree in size, and of the frequent ones.

A rule is a function ``(mode, *the operator's arguments) -> data-free result``; the table
`RULES` names the operator of each. To add one, write the function and its row; an
operator without a row is probed, which is slower but needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precrop.cropping.rules import cuts, norms, products, views

RULES: dict[str, Callable[..., Any]] = {
    "conv1d": products.conv,
    "conv2d": products.conv,
    "conv3d": products.conv,
    "conv_transpose1d": products.conv_transpose,
    "conv_transpose2d": products.conv_transpose,
    "conv_transpose3d": products.conv_transpose,
    "convolution": products.convolution,
    "deform_conv2d": products.deform_conv,
    "linear": products.linear,
    "bilinear": products.bilinear,
    "matmul": products.matmul,
    "mm": products.matmul,
    "bmm": products.matmul,
    "mv": products.matmul,
    "dot": products.matmul,
    "addmm": products.addmm,
    "baddbmm": products.addmm,
    "addmv": products.addmm,
    "addbmm": products.addbmm,
    "scaled_dot_product_attention": products.attention,
    "batch_norm": norms.batch_norm,
    "instance_norm": norms.batch_norm,
    "group_norm": norms.group_norm,
    "layer_norm": norms.layer_norm,
    "prelu": norms.prelu,
    "view": views.view,
    "reshape": views.view,
    "_unsafe_view": views.view,
    "flatten": views.flatten,
    "permute": views.permute,
    "transpose": views.transpose,
    "unsqueeze": views.unsqueeze,
    "squeeze": views.squeeze,
    "expand": views.expand,
    "copy_": views.copy_,
    "cat": cuts.cat,
    "concat": cuts.cat,
    "stack": cuts.stack,
    "split": cuts.split,
    "split_with_sizes": cuts.split_sizes,
    "chunk": cuts.chunk,
    "slice": cuts.slice,
    "select": cuts.select,
    "index": cuts.index,
    "index_select": cuts.index_select,
    "mean": norms.mean,
    "dropout": norms.same,
    "hardtanh": norms.same,
    "hardswish": norms.same,
    "softmax": norms.same,
    "clone": norms.same,
    "contiguous": norms.same,
    "detach": norms.same,
}

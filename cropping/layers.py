"""Which of a module's numbers are sizes: one row per class.

A layer keeps its sizes in two places, its parameters' shapes and attributes such as
``out_channels``. While a network is traced both are symbolic, so that code
reading either follows the width; after a crop both are set to the new numbers.

`LAYER_KINDS` has the classes of `torch.nn`, whose parameters and attributes are tied to one
another. `SIZE_ATTRIBUTES` has classes that merely keep a size and use it in forward:
each such number starts as a variable of its own and the forward ties it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim


@dataclass
class Sizes:
    """The symbolic sizes of one module: tensor name to shape, attribute name to size or list of sizes."""

    tensors: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    attributes: dict[str, Dim | tuple[Dim, ...] | list[Dim]] = field(default_factory=dict)


def _fresh(solver: Solver, size: int) -> Dim:
    """A variable for a size; one stays one, since it broadcasts."""
    return solver.fresh(size) if size > 1 else size


def _times(a: Dim, b: Dim) -> Dim:
    return a * b if isinstance(a, int) and isinstance(b, int) else as_polynomial(a) * as_polynomial(b)


def _conv(module: _ConvNd, solver: Solver) -> Sizes:
    groups: Dim = module.groups
    if module.groups == 1:
        incoming, outgoing = _fresh(solver, module.in_channels), _fresh(solver, module.out_channels)
        in_per_group, out_per_group = incoming, outgoing
    elif module.groups == module.in_channels:  # depthwise: the groups are the channels
        groups = incoming = _fresh(solver, module.in_channels)
        in_per_group, out_per_group = 1, module.out_channels // module.in_channels
        outgoing = _times(groups, out_per_group)
    else:  # grouped: the number of groups stays, the channels of each group vary
        in_per_group = _fresh(solver, module.in_channels // module.groups)
        out_per_group = _fresh(solver, module.out_channels // module.groups)
        incoming, outgoing = _times(groups, in_per_group), _times(groups, out_per_group)
    ends = (incoming, out_per_group) if module.transposed else (outgoing, in_per_group)
    sizes = Sizes({"weight": (*ends, *module.kernel_size)})
    sizes.tensors["bias"] = (outgoing,)
    sizes.attributes = {"in_channels": incoming, "out_channels": outgoing, "groups": groups}
    return sizes


def _linear(module: nn.Linear, solver: Solver) -> Sizes:
    incoming, outgoing = _fresh(solver, module.in_features), _fresh(solver, module.out_features)
    return Sizes(
        {"weight": (outgoing, incoming), "bias": (outgoing,)},
        {"in_features": incoming, "out_features": outgoing},
    )


def _norm(module: _NormBase, solver: Solver) -> Sizes:
    channels = _fresh(solver, module.num_features)
    names = ("weight", "bias", "running_mean", "running_var")
    return Sizes({name: (channels,) for name in names}, {"num_features": channels})


def _group_norm(module: nn.GroupNorm, solver: Solver) -> Sizes:
    channels = _fresh(solver, module.num_channels)
    return Sizes({"weight": (channels,), "bias": (channels,)}, {"num_channels": channels})


def _layer_norm(module: Any, solver: Solver) -> Sizes:
    shape = tuple(_fresh(solver, size) for size in module.normalized_shape)
    return Sizes({"weight": shape, "bias": shape}, {"normalized_shape": shape})


def _prelu(module: nn.PReLU, solver: Solver) -> Sizes:
    slopes = _fresh(solver, module.num_parameters)
    return Sizes({"weight": (slopes,)}, {"num_parameters": slopes})


LAYER_KINDS: dict[type[nn.Module], Callable[[Any, Solver], Sizes]] = {
    _ConvNd: _conv,
    nn.Linear: _linear,
    _NormBase: _norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _layer_norm,
    nn.PReLU: _prelu,
}

#: Qualified class name to the attributes that its forward uses as sizes (a number, or a list of numbers).
SIZE_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "timm.models.ghostnet.GhostModule": ("out_chs",),
    "timm.models.ghostnet.GhostModuleV2": ("out_chs",),
    "timm.models.res2net.Bottle2neck": ("width",),
}


def sizes_of(module: nn.Module, solver: Solver) -> Sizes:
    """The symbolic sizes of a module's own parameters, buffers and attributes.

    A parameter that no row explains (a LayerScale gamma, a learned gain) gets a variable
    for every axis longer than one; the code that uses it ties them to what they meet.
    """
    sizes = Sizes()
    for kind, describe in LAYER_KINDS.items():
        if isinstance(module, kind) and _is_plain(module):
            sizes = describe(module, solver)
            break
    own = {**module._parameters, **module._buffers}
    sizes.tensors = {name: shape for name, shape in sizes.tensors.items() if own.get(name) is not None}
    for name, parameter in module._parameters.items():
        if parameter is not None and name not in sizes.tensors:
            sizes.tensors[name] = tuple(_fresh(solver, size) for size in parameter.shape)
    for cls in type(module).__mro__:
        for attribute in SIZE_ATTRIBUTES.get(f"{cls.__module__}.{cls.__qualname__}", ()):
            value = getattr(module, attribute, None)
            if isinstance(value, (list, tuple)):
                sizes.attributes[attribute] = type(value)(_fresh(solver, size) for size in value)
            elif isinstance(value, int):
                sizes.attributes[attribute] = _fresh(solver, value)
    return sizes


def _is_plain(module: nn.Module) -> bool:
    """Whether the parameters are the class's own, not recomputed ones (`torch.nn.utils.parametrize`)."""
    weight = module._parameters.get("weight", "absent")
    return weight != "absent" if isinstance(weight, str) else True


def settled(value: Any, values: Callable[[int], int]) -> Any:
    """A size, or a list of sizes, as numbers, given the value of each variable."""
    if isinstance(value, (list, tuple)):
        return type(value)(settled(v, values) for v in value)
    return value.evaluate(values) if isinstance(value, Polynomial) else value

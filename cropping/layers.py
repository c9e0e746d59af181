"""Which of a module's numbers are sizes: one row per class.

A layer keeps its sizes in two places, its parameters' shapes and attributes such as
``out_channels``. While a network is traced both are symbolic, so that code
reading either follows the width; after a crop both are set to the new numbers.

`LAYER_KINDS` has the classes of `torch.nn`, whose parameters and attributes are tied to one
another. `SIZE_ATTRIBUTES` has classes that merely keep a size and use it in forward:
each such number starts as a variable of its own and the forward ties it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from precrop.cropping.attributes import names_used, near, size_fault
from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim, elements
from precrop.errors import PrecropError


@dataclass
class Sizes:
    """The symbolic sizes of one module: tensor name to shape, attribute name to size or list of sizes.

    ``told`` are numbers that go by a usual name and may or may not be read by a forward; see
    `precrop.cropping.followers`. ``computed`` are the shapes of tensors that the module computes from others before
    each forward (`torch.nn.utils.parametrize`, weight norm, spectral norm, pruning masks).
    """

    tensors: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    attributes: dict[str, Dim | tuple[Dim, ...] | list[Dim]] = field(default_factory=dict)
    told: dict[str, Dim] = field(default_factory=dict)
    computed: dict[str, tuple[Dim, ...]] = field(default_factory=dict)


def _fresh(solver: Solver, size: int) -> Dim:
    """A variable for a size; one stays one, since it broadcasts."""
    return solver.fresh(size) if size > 1 else size


def _times(a: Dim, b: Dim) -> Dim:
    return a * b if isinstance(a, int) and isinstance(b, int) else as_polynomial(a) * as_polynomial(b)


def _conv(module: Any, solver: Solver) -> Sizes:
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
    ends = (incoming, out_per_group) if getattr(module, "transposed", False) else (outgoing, in_per_group)
    sizes = Sizes({"weight": (*ends, *module.kernel_size)})
    sizes.tensors["bias"] = (outgoing,)
    sizes.attributes = {"in_channels": incoming, "out_channels": outgoing, "groups": groups}
    return sizes


def _cond_conv(module: Any, solver: Solver) -> Sizes:
    """timm's: the weight of every expert is one row, which the forward mixes and views as a convolution's."""
    sizes = _conv(module, solver)
    one, experts = sizes.tensors["weight"], module.num_experts
    sizes.tensors = {"weight": (experts, elements(one)), "bias": (experts, one[0])}
    sizes.attributes["weight_shape"] = one
    return sizes


def _deform_conv(module: Any, solver: Solver) -> Sizes:
    out_per_group = _fresh(solver, module.out_channels // module.groups)
    in_per_group = _fresh(solver, module.in_channels // module.groups)
    outgoing, incoming = _times(out_per_group, module.groups), _times(in_per_group, module.groups)
    return Sizes(
        {"weight": (outgoing, in_per_group, *module.kernel_size), "bias": (outgoing,)},
        {"in_channels": incoming, "out_channels": outgoing},
    )


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
    nn.PReLU: _prelu,
}

#: The same for classes that are not imported before a network uses them.
NAMED_KINDS: dict[str, Callable[[Any, Solver], Sizes]] = {
    "timm.layers.cond_conv2d.CondConv2d": _cond_conv,
    "torchvision.ops.deform_conv.DeformConv2d": _deform_conv,
}

#: Qualified class name to the attributes that its forward uses as sizes: a number, a list of numbers, or a
#: buffer (every axis longer than one is a size).
SIZE_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "timm.layers.blur_pool.BlurPool2d": ("channels", "filt"),
    "timm.layers.mixed_conv2d.MixedConv2d": ("splits",),
    "timm.models.cspnet.CrossStage": ("expand_chs",),
    "timm.models.cspnet.CrossStage3": ("expand_chs",),
    "timm.models.dla.DlaBottle2neck": ("width",),
    "timm.models.dpn.DualPathBlock": ("num_1x1_c",),
    "timm.models.fasternet.Partial_conv3": ("dim_conv3", "dim_untouched"),
    "timm.models.focalnet.FocalModulation": ("input_split",),
    "timm.models.inception_next.InceptionDWConv2d": ("split_indexes",),
    "timm.models.mambaout.GatedConvBlock": ("split_indices",),
    "timm.models.metaformer.Scale": ("shape",),
    "timm.models.res2net.Bottle2neck": ("width",),
    "timm.models.shvit.SHSA": ("dim", "qk_dim", "pdim"),
    "timm.models.vision_transformer.DiffParallelScalingBlock": ("in_split",),
    "timm.models.vision_transformer.ParallelScalingBlock": ("in_split",),
    "torch.nn.utils.parametrizations._SpectralNorm": ("_u", "_v"),
    "torchvision.models.optical_flow.raft.UpdateBlock": ("hidden_state_size",),
    "torchvision.ops.misc.FrozenBatchNorm2d": ("weight", "bias", "running_mean", "running_var"),
}

#: Names under which modules of any class keep the size of what enters or leaves them.
INPUT_NAMES = ("in_channels", "in_chs", "in_features", "in_dim", "head_hidden_size")
OUTPUT_NAMES = ("out_channels", "out_chs", "out_features", "out_dim", "num_features")


#: What `register_size_attributes` added to `SIZE_ATTRIBUTES`, which `check_size_attributes` checks.
REGISTERED: dict[str, tuple[str, ...]] = {}


def register_size_attributes(cls: type[nn.Module], *attributes: str) -> None:
    """Tell precrop which attributes of a module class are sizes that its forward uses.

    >>> class Halves(nn.Module):
    ...     def __init__(self, channels):
    ...         super().__init__()
    ...         self.half = channels // 2
    ...     def forward(self, x):
    ...         return x[:, : self.half] * x[:, self.half :].sigmoid()
    >>> precrop.register_size_attributes(Halves, "half")

    Each is an int, a list or tuple of ints, or the name of a buffer with axes of channels. Without this, a width
    that meets such a number is fixed and reported with the line. Holds for subclasses too.

    Raises `PrecropError` for something that is not a module class, a name that is no identifier, and one that no code
    of the class uses. A crop of a network in which no module of the class has the attribute, or one holds something
    else in it, raises `PrecropError` too.
    """
    name = module_class(cls, "the names of its attributes")
    wrong = [name for name in attributes if not (isinstance(name, str) and name.isidentifier())]
    if wrong or not attributes:
        raise PrecropError(f"got the attributes {attributes!r}; expected names such as 'width'.")
    used = names_used(cls)
    for attribute in attributes:
        if used is not None and attribute not in used:
            raise PrecropError(
                f"no code of {cls.__name__} uses an attribute {attribute!r}.{near(attribute, used)} Expected one that "
                "its forward uses as a size."
            )
    REGISTERED[name] = tuple(dict.fromkeys((*REGISTERED.get(name, ()), *attributes)))
    SIZE_ATTRIBUTES[name] = tuple(dict.fromkeys((*SIZE_ATTRIBUTES.get(name, ()), *attributes)))


def check_size_attributes(model: nn.Module) -> None:
    """Raise `PrecropError` for a registered attribute that is no size, or that no module of its class here has."""
    found: dict[tuple[str, str], bool] = {}
    examples: dict[str, nn.Module] = {}
    for path, module in model.named_modules() if REGISTERED else ():
        for cls in map(qualified, type(module).__mro__):
            for attribute in REGISTERED.get(cls, ()):
                if attribute not in SIZE_ATTRIBUTES.get(cls, ()):
                    continue
                value = getattr(module, attribute, None)
                if value is not None and (fault := size_fault(value)):
                    raise PrecropError(
                        f"{attribute!r} of {path or 'the model'}, a {type(module).__name__}, was registered as a size "
                        f"and is {fault}; expected a whole number, a list or tuple of them, or a tensor."
                    )
                examples.setdefault(cls, module)
                found[cls, attribute] = found.get((cls, attribute), False) or hasattr(module, attribute)
    for (cls, attribute), has in found.items():
        if not has:
            numeric = [name for name, value in vars(examples[cls]).items() if not size_fault(value)]
            raise PrecropError(
                f"{attribute!r} was registered as a size of {cls}, and none of its modules here has it."
                f"{near(attribute, numeric)} Its attributes that may be sizes: {', '.join(numeric) or 'none'}."
            )


def module_class(cls: Any, then: str) -> str:
    """The full name of what must be a module class; raises `PrecropError` that says what is expected ``then``."""
    if isinstance(cls, type) and issubclass(cls, nn.Module):
        return qualified(cls)
    got = f"an object of class {type(cls).__name__}" if isinstance(cls, nn.Module) else repr(cls)
    raise PrecropError(f"got {got}; expected a torch.nn.Module class, then {then}.")


def qualified(cls: type) -> str:
    """A class's full name, which the tables have: a class is looked up without importing it."""
    return f"{cls.__module__}.{cls.__qualname__}"


def sizes_of(module: nn.Module, solver: Solver, computed: tuple[Dim, ...] | None = None) -> Sizes:
    """The symbolic sizes of a module's own parameters, buffers and attributes.

    A parameter that no row explains (a LayerScale gamma, a learned gain) gets a variable
    for every axis longer than one; the code that uses it ties them to what they meet. So does a buffer along the
    axes on which all of its values are alike (statistics that have not moved, one filter for each channel); any other
    is a constant, which the forward may read. ``computed`` is the shape of the tensor that a parametrization computes.
    """
    sizes = Sizes()
    for kind, describe in LAYER_KINDS.items():
        if isinstance(module, kind):
            sizes = describe(module, solver)
            break
    for cls in type(module).__mro__:
        if qualified(cls) in NAMED_KINDS:
            sizes = NAMED_KINDS[qualified(cls)](module, solver)
    if isinstance(getattr(module, "normalized_shape", None), tuple):  # LayerNorm, RMSNorm, and timm's kinds of both
        sizes = _layer_norm(module, solver)
    _own_tensors(module, solver, sizes, computed)
    for cls in type(module).__mro__:
        for attribute in SIZE_ATTRIBUTES.get(qualified(cls), ()):
            value = getattr(module, attribute, None)
            if isinstance(value, torch.Tensor):
                sizes.tensors[attribute] = _fresh_shape(solver, value)
            elif isinstance(value, (list, tuple)):
                sizes.attributes[attribute] = type(value)(_fresh(solver, size) for size in value)
            elif isinstance(value, int):
                sizes.attributes[attribute] = _fresh(solver, value)
    for attribute in (*INPUT_NAMES, *OUTPUT_NAMES):
        value = vars(module).get(attribute)
        if type(value) is int and attribute not in sizes.attributes:
            sizes.told[attribute] = _fresh(solver, value)
    return sizes


def _own_tensors(module: nn.Module, solver: Solver, sizes: Sizes, computed: tuple[Dim, ...] | None) -> None:
    """Complete the tensors of a module: those that its row computes from others, and those that it does not name."""
    own = {name: t for store in (module._parameters, module._buffers) for name, t in store.items() if t is not None}
    sizes.computed = {name: shape for name, shape in sizes.tensors.items() if _is_computed(module, name)}
    sizes.tensors = {name: shape for name, shape in sizes.tensors.items() if name in own}
    for name, tensor in own.items():
        if name in sizes.tensors:
            continue
        whole, _, _ = name.rpartition("_")  # weight_orig, weight_mask, weight_v
        shape = sizes.computed.get(whole, computed)
        if shape is not None and tuple(tensor.shape) == tuple(solver.hint(as_polynomial(size)) for size in shape):
            sizes.tensors[name] = shape
        elif name in module._parameters or whole in sizes.computed:
            sizes.tensors[name] = _fresh_shape(solver, tensor)
        elif tensor.is_floating_point() and any(alike := _alike_axes(module, tensor)):
            axes = zip(tensor.shape, alike, strict=True)
            sizes.tensors[name] = tuple(_fresh(solver, size) if free else size for size, free in axes)


def _is_computed(module: nn.Module, name: str) -> bool:
    """Whether a tensor of a module is computed anew before each forward, from tensors that it has instead."""
    return name not in module._parameters and (
        name in parametrizations_of(module) or isinstance(vars(module).get(name), torch.Tensor)
    )


def parametrizations_of(module: nn.Module) -> Mapping[str, Any]:
    """What computes a module's tensors (`torch.nn.utils.parametrize`), by the tensors' names."""
    # Not by the attribute: a module that has none formats an error for each question.
    lists: Any = module._modules.get("parametrizations")
    return dict(lists.items()) if isinstance(lists, nn.ModuleDict) else {}


def _alike_axes(module: nn.Module, buffer: torch.Tensor) -> list[bool]:
    """For each axis whether it is longer than one and all slices along it have the same values.

    A list of numbers as long as a parameter of the same module (a norm's statistics) counts as alike.
    """
    if buffer.dim() == 1 and any(p is not None and p.shape == buffer.shape for p in module._parameters.values()):
        return [len(buffer) > 1]
    if buffer.is_meta:
        return [False] * buffer.dim()
    first = (buffer.narrow(axis, 0, 1) for axis in range(buffer.dim()))
    return [size > 1 and bool((buffer == one).all()) for size, one in zip(buffer.shape, first, strict=True)]


def _fresh_shape(solver: Solver, tensor: torch.Tensor) -> tuple[Dim, ...]:
    return tuple(_fresh(solver, size) for size in tensor.shape)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A function of a size, or of each size in a list, tuple or dictionary of them."""
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(function, inner) for inner in value)
    if isinstance(value, dict):
        return {key: mapped(function, inner) for key, inner in value.items()}
    return function(value)


def settled(value: Any, values: Callable[[int], int]) -> Any:
    """A size, or a list or dictionary of sizes, as numbers, given the value of each variable."""
    return mapped(lambda size: size.evaluate(values) if isinstance(size, Polynomial) else size, value)

"""A crop runs once without data before anybody gets it: torch's own shape functions at the new sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from precrop.cropping.graph import WidthGraph
from precrop.cropping.running import image_dtype, output_tensors, run_forward, skeleton, undisturbed
from precrop.cropping.shapes import is_symbolic
from precrop.errors import TraceError

_META = torch.device("meta")


class DatalessMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator that meets a data-free tensor on data-free tensors alone; repeated ones are remembered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[Any, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_symbolic(args) and not is_symbolic(kwargs.values()):
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        # Torch takes these two apart in Python, for a millisecond each: more than all others together.
        if name == "hardtanh_":
            return args[0]
        if name == "batch_norm" and _fits_norm(*args[:5]):
            return args[0].detach()
        key = None
        if not kwargs and not func._schema.is_mutable:
            key = (func, *map(_described, args))
            try:
                known = self._known.get(key)
            except TypeError:  # an argument without a hash, such as a list of tensors
                key = None
            else:
                if known is not None:
                    return known.detach()
        result = func(*tree_map(_without_data, args), **tree_map(_without_data, kwargs))
        if key is not None and isinstance(result, torch.Tensor):
            self._known[key] = result
        return result


def _fits_norm(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether a norm's scale, shift and statistics have one value for each channel; else torch says what is wrong."""
    fits = all(p is None or tuple(p.shape) == (x.shape[1],) for p in parameters) if x.dim() > 1 else False
    return fits and x.is_meta and x.is_contiguous()


def _described(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.stride(), arg.dtype
    return tuple(arg) if isinstance(arg, list) and not (arg and isinstance(arg[0], torch.Tensor)) else arg


def _without_data(leaf: Any) -> Any:
    return leaf.to(_META) if isinstance(leaf, torch.Tensor) and not leaf.is_meta else leaf


def verify(small: nn.Module, graph: WidthGraph) -> None:
    """Run a crop once without data, in eval mode and, where training runs other code, in train mode.

    Raises `TraceError` that names the layer when the crop does not run, or gives outputs of another shape than the
    network that it was made from.
    """

    def without_data(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in graph.shapes:
            return tensor.detach().clone()  # a constant, which the forward may read
        empty = torch.empty_like(tensor, device=_META)
        return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty

    copied = skeleton(small, without_data)
    image = torch.empty((2, *graph.input_shape), dtype=image_dtype(small), device=_META)
    for train in (False, True) if graph.trains_apart else (False,):
        copied.train(train)
        outputs = _run(copied, image, small)
        if outputs is None:
            continue
        shapes = tuple(tuple(tensor.shape) for tensor in output_tensors(outputs))
        if not train and graph.outputs and shapes != graph.outputs:
            raise TraceError(
                f"the crop of this {type(small).__name__} would give outputs of the shapes {shapes} where the network "
                f"gives {graph.outputs}. {_LIMIT}"
            )


_LIMIT = (
    "This is a limit of precrop, not of the network: keep the layers around that place whole with ignore=, and report "
    "the network."
)


def _run(copied: nn.Module, image: torch.Tensor, small: nn.Module) -> Any:
    try:
        with undisturbed():
            return run_forward(copied, image, DatalessMode())
    except NotImplementedError:
        return None  # an operator without a shape function: nothing can be said of it
    except Exception as error:
        mode = "train" if copied.training else "eval"
        where = _place(error, copied)
        raise TraceError(
            f"the crop of this {type(small).__name__} does not run in {mode} mode{where}: {error}. {_LIMIT}"
        ) from error


def _place(error: BaseException, model: nn.Module) -> str:
    """The innermost module of ``model`` that was running when the error was raised."""
    names = {id(module): name for name, module in model.named_modules() if name}
    found = ""
    step = error.__traceback__
    while step is not None:
        module = step.tb_frame.f_locals.get("self")
        if id(module) in names and isinstance(module, nn.Module):
            found = f", in {names[id(module)]} ({type(module).__name__})"
        step = step.tb_next
    return found

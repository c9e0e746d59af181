"""Trace a network's widths by running its own forward on symbolic sizes.

A data-free copy of the network is made in which every parameter's channel axes are
variables. Its forward runs once, and what the code does with the sizes (an addition,
a concatenation, a view, a shuffle) ties, divides or pins them. What is left free
can be cropped. See ``docs/HOW.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from precrop.cropping.counting import BATCH, Costs, ImageMode
from precrop.cropping.findings import Findings, title_of
from precrop.cropping.followers import Followers, returns_features
from precrop.cropping.graph import Layer, WidthGraph
from precrop.cropping.kept_numbers import follow_numbers
from precrop.cropping.layers import LAYER_KINDS, Sizes, mapped, sizes_of
from precrop.cropping.polynomial import Polynomial, total
from precrop.cropping.running import image_dtype, output_tensors, run_forward, skeleton, undisturbed
from precrop.cropping.shapes import ReshapedInPlace
from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim, elements, shape_of, symint
from precrop.errors import ModelNameError, TraceError


def trace(model: nn.Module, input_shape: Sequence[int], ignore: Iterable[str] = ()) -> WidthGraph:
    """Find every width of ``model`` that can vary, and how all sizes follow.

    ``input_shape`` is one image's, (C, H, W). ``ignore`` names layers (or modules, or
    patterns such as ``layer1.*``) whose output widths stay. The model is not touched.

    Raises `TraceError` when the forward fails or branches on data, `ModelNameError`
    for an unknown name in ``ignore``.
    """
    try:
        return _Trace(model, tuple(input_shape)).run(ignore)
    except ReshapedInPlace:
        return _Trace(model, tuple(input_shape), separate=True).run(ignore)


class _Trace:
    def __init__(self, model: nn.Module, input_shape: tuple[int, ...], separate: bool = False) -> None:
        self.input_shape = input_shape
        self.solver = Solver()
        self.mode = ImageMode(self.solver, self._product, separate)
        self.layers: dict[str, Layer] = {}
        self.costs = Costs()
        self.shapes: dict[str, tuple[Dim, ...]] = {}
        self.attributes: dict[tuple[str, str], Any] = {}
        self.told: dict[tuple[str, str], Dim] = {}
        self.parameters: dict[str, torch.Tensor] = {}  # name -> what stands for it; a shared one once
        self.owned: dict[str, list[str]] = {}  # module name -> the full names of its tensors
        self.weights: dict[int, str] = {}  # identity of a symbolic parameter -> its name
        self.paths: dict[int, str] = {}  # identity of a module with parameters -> its name
        self.entered: set[int] = set()
        self.running: list[nn.Module] = []
        self.counting = True
        self.trains_apart = False  # whether training runs other code, and ran
        self.trained_in_part = False
        self.dtype = image_dtype(model)
        self.model = skeleton(model)

    def run(self, ignore: Iterable[str]) -> WidthGraph:
        with undisturbed():
            self._make_symbolic()
            followers = Followers(self.model, self.solver, self.told)
            self.model.eval()
            outputs = self._forward()
            shapes = [shape_of(tensor) for tensor in outputs]
            if self.costs.unclear:
                self.costs.run_again(lambda batch: self._forward_or_nothing(batch=batch))
            if len(self.entered) < len(self.paths) or any(map(_trains_otherwise, self.model.modules())):
                # What runs in training only (auxiliary heads, moving averages of weights) demands sizes
                # too, but costs nothing in a deployed network.
                self.counting = False
                self.model.train()
                outputs += self._forward_in_training()
        if not returns_features(self.model):
            with self._reason("the network's output"):
                for tensor in outputs:
                    for size in shape_of(tensor):
                        self.solver.pin(size)
        self.attributes.update(followers.finish(outputs, self._variables()))
        self._ignore(tuple(ignore))
        return self._graph(shapes)

    # -- before the forward ----------------------------------------------------

    def _make_symbolic(self) -> None:
        made: dict[int, tuple[torch.Tensor, tuple[Dim, ...]]] = {}
        computed: dict[str, tuple[Dim, ...]] = {}  # path of a list of parametrizations -> shape of what it computes
        for path, module in self.model.named_modules():
            sizes = sizes_of(module, self.solver, computed.get(path))
            for name, shape in sizes.computed.items():
                computed[f"{path}.parametrizations.{name}".removeprefix(".")] = shape
            self._make_tensors(path, module, sizes, made)
            for attribute, value in sizes.attributes.items():
                self.attributes[path, attribute] = value
                setattr(module, attribute, mapped(partial(symint, self.solver), value))
            for attribute, size in sizes.told.items():
                self.told[path, attribute] = size
                setattr(module, attribute, symint(self.solver, size))
            if any(len(shape) > 1 for shape in sizes.tensors.values()):
                self.paths[id(module)] = path
                module.register_forward_pre_hook(self._enter, prepend=True)
                module.register_forward_hook(self._leave, always_call=True)

    def _make_tensors(self, path: str, module: nn.Module, sizes: Sizes, made: dict[int, Any]) -> None:
        """Replace a module's tensors by data-free ones of symbolic shape."""
        alike: dict[Any, torch.Tensor] = {}  # scale and shift, mean and variance: one tensor stands for both
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for store in stores:
            for name, old in store.items():
                if old is None:
                    continue
                if name not in sizes.tensors:
                    # An index table or a constant, which the forward may read.
                    store[name] = old.detach().clone()
                    continue
                full = f"{path}.{name}" if path else name
                shape = sizes.tensors[name]
                is_parameter = isinstance(old, nn.Parameter)
                if id(old) in made:  # two modules share it, so it has the sizes of both
                    tensor, other = made[id(old)]
                    for a, b in zip(other, shape, strict=True):
                        self.solver.equate(a, b)
                else:
                    kind = (is_parameter, old.dtype, shape) if len(shape) == 1 else name
                    tensor = alike.get(kind)
                    if tensor is None:
                        tensor = self.mode.make(shape, old.dtype)
                        alike[kind] = tensor = nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
                    made[id(old)] = tensor, shape
                    if is_parameter:
                        self.parameters[full] = tensor
                store[name] = tensor
                self.shapes[full] = shape
                self.owned.setdefault(path, []).append(full)
                if is_parameter:
                    self.weights.setdefault(id(tensor), full)

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.running.append(module)
        self.entered.add(id(module))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.running.pop()

    # -- the forward -------------------------------------------------------------

    def _forward(self, *more: torch.Tensor, batch: int = BATCH) -> list[torch.Tensor]:
        image = self.mode.make((batch, *self.input_shape), self.dtype)
        self.mode.follow(image)
        try:
            output = run_forward(self.model, image, self.mode, *more)
        except TraceError:
            raise
        except Exception as error:
            raise TraceError(self._failure(error)) from error
        tensors = list(output_tensors(output))
        if not tensors:
            raise TraceError(
                f"the forward of {type(self.model).__name__} returned a {type(output).__name__} in which no tensor was "
                "found, so the sizes that must stay are not known. Expected a tensor, or a container or object of them."
            )
        return tensors

    def _forward_or_nothing(self, *more: torch.Tensor, batch: int = BATCH) -> list[torch.Tensor]:
        try:
            return self._forward(*more, batch=batch)
        except TraceError:
            self.mode.failed_at = None
            return []

    def _forward_in_training(self) -> list[torch.Tensor]:
        """Run the forward in train mode; where that needs more than images, as far as it goes.

        A second run gives labels beside the images. What no run reaches may be fed by any layer of its size, so those
        layers keep theirs.
        """
        labels = self.mode.make((BATCH,), torch.int64)
        for more in ((), (labels,)):
            outputs = self._forward_or_nothing(*more)
            if outputs:
                self.trains_apart = not more
                return outputs
        self.trained_in_part = True
        self._hold_unreached()
        return []

    def _hold_unreached(self) -> None:
        made = {0}  # what the layers that no run reached put out for one another
        for path in (path for key, path in self.paths.items() if key not in self.entered):
            needed = self._present_size(path, "in_channels", "in_features")
            if needed not in made:
                with self._reason(f"{path}, which only a training run that takes more than images reaches"):
                    for layer in self.layers.values():
                        if self.solver.hint_of(layer.outgoing) == needed:
                            self.solver.pin(layer.outgoing)
            made.add(self._present_size(path, "out_channels", "out_features"))

    def _present_size(self, path: str, *names: str) -> int:
        """The first of these attributes that a module has, as it is now; 0 for none."""
        sizes = (self.attributes[path, name] for name in names if (path, name) in self.attributes)
        return self.solver.hint_of(next(sizes, 0))

    def _failure(self, error: Exception) -> str:
        where = f" at {self.mode.failed_at}" if self.mode.failed_at else ""
        return (
            f"the forward of {type(self.model).__name__} failed on an input of shape {self.input_shape}{where}: "
            f"{error}. Expected a forward that takes one batch of images; if it wants another size, pass "
            "input_shape=(channels, height, width); if it takes something else, tell precrop.register_forward."
        )

    def _product(
        self,
        weight: torch.Tensor | None,
        incoming: Dim,
        outgoing: Dim,
        macs: Polynomial,
        activations: Polynomial,
        operands: Sequence[torch.Tensor],
    ) -> None:
        """Book a multiply-add operator to the layer that owns its weight."""
        name = None if weight is None else self.weights.get(id(weight))
        if name is None and weight is not None and self.running:
            # A weight computed in forward (weight standardization) belongs to the module that runs.
            name = self._own_weight(self.paths[id(self.running[-1])])
        if self.counting:
            self.costs.book(name, macs, activations, self.mode.of_images(operands))
        if name is not None and name not in self.layers:
            params, path = elements(self.shapes[name]), name.rpartition(".")[0]
            # What the module says of itself: the operator may see mixed experts, or a batch folded into channels.
            incoming = self.attributes.get((path, "in_channels"), incoming)
            outgoing = self.attributes.get((path, "out_channels"), outgoing)
            nothing = Polynomial({})  # until all are booked
            self.layers[name] = Layer(title_of(name), name, incoming, outgoing, params, nothing, nothing)

    def _own_weight(self, path: str) -> str | None:
        """The parameter that a module computes its weight from: the largest called so."""
        computed = f"{path}.parametrizations.weight" if path else "parametrizations.weight"
        names = [n for n in self.owned.get(path, ()) if n.rpartition(".")[2].startswith("weight")]
        names += self.owned.get(computed, ())
        return max(names, key=lambda n: self.solver.hint(elements(self.shapes[n])), default=None)

    # -- after the forward ---------------------------------------------------------

    def _variables(self) -> set[int]:
        """The variables that the shapes of the network's tensors are made of."""
        sizes = (self.solver.resolve(as_polynomial(size)) for shape in self.shapes.values() for size in shape)
        return {v for size in sizes for v in size.variables()}

    @contextmanager
    def _reason(self, reason: str) -> Iterator[None]:
        self.solver.reason = reason
        yield
        self.solver.reason = None

    def _ignore(self, patterns: tuple[str, ...]) -> None:
        for pattern in patterns:
            found = [
                layer
                for layer in self.layers.values()
                if fnmatchcase(layer.name, pattern) or layer.name.startswith(f"{pattern}.")
            ]
            if not found:
                raise ModelNameError(_unknown_layer(pattern, [layer.name for layer in self.layers.values()]))
            with self._reason("asked to ignore"):
                for layer in found:
                    self.solver.pin(layer.outgoing)

    def _unused(self) -> dict[str, None]:
        """The parameters that no forward came to, neither in eval nor in train mode, in their order."""
        if self.trained_in_part:
            return {}
        entered = {path for key, path in self.paths.items() if key in self.entered}
        return {
            name: None
            for name, tensor in self.parameters.items()
            if id(tensor) not in self.mode.seen and name.rpartition(".")[0] not in entered
        }

    def _graph(self, outputs: list[tuple[Dim, ...]]) -> WidthGraph:
        seen = {name for name in self.shapes if self._is_seen(name)}
        findings = Findings(self.solver, self.layers, self.shapes, seen)
        solver, settle, unused = self.solver, self.solver.settle, self._unused()
        elements_of = {name: elements(self.shapes[name]) for name in self.parameters}
        for layer in self.layers.values():
            layer.macs, layer.activations = self.costs.of_one_image(layer.weight, solver.resolve)
        unowned = self.costs.of_one_image(None, solver.resolve)
        shapes = {name: tuple(map(settle, shape)) for name, shape in self.shapes.items()}
        followed, unclear = follow_numbers(self.model, shapes, self.attributes, solver)
        attributes = {**self.attributes, **followed}
        macs = total([unowned[0], *(layer.macs for layer in self.layers.values())])
        activations = total([unowned[1], *(layer.activations for layer in self.layers.values())])
        return WidthGraph(
            input_shape=self.input_shape,
            widths=findings.widths,
            fixed=findings.fixed,
            layers=tuple(self.layers.values()),
            shapes=shapes,
            attributes={key: mapped(settle, value) for key, value in attributes.items()},
            unclear=unclear,
            params=solver.resolve(total(count for name, count in elements_of.items() if name not in unused)),
            unused_params=sum(solver.hint(elements_of[name]) for name in unused),
            unused=_modules_of(unused),
            outputs=()
            if returns_features(self.model)
            else tuple(tuple(map(solver.hint_of, shape)) for shape in outputs),
            trains_apart=self.trains_apart,
            macs=macs,
            activations=activations,
        )

    def _is_seen(self, name: str) -> bool:
        path, _, leaf = name.rpartition(".")
        parameter = self.model.get_submodule(path)._parameters.get(leaf)
        return parameter is not None and id(parameter) in self.mode.seen


def _modules_of(parameters: Iterable[str]) -> tuple[str, ...]:
    """The modules that own these parameters, in their order."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in parameters))


def _trains_otherwise(module: nn.Module) -> bool:
    """Whether a module with parameters asks in its forward if it is in training."""
    if type(module).__module__.startswith("torch.nn.") or isinstance(module, tuple(LAYER_KINDS)):
        return False
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names and any(True for _ in module.parameters())


def _unknown_layer(pattern: str, names: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(pattern, names, n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else f" The first layers are {', '.join(names[:5])}."
    return f"ignore names no layer of this network: {pattern!r}.{hint} `precrop inspect` lists all."

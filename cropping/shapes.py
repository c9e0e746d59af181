"""Runs a network on tensors that have symbolic sizes and no data.

A `ShapeMode` receives every operator the forward calls. What happens then:

1. an elementwise operator (torch tags them) broadcasts its shapes;
2. the few operators whose arguments must agree in size, or whose output sizes
   depend on arguments (convolutions, matrix products, norms, views, splits), have
   a rule in `precrop.cropping.rules.RULES`;
3. a composite operator is taken apart by torch itself into ones that have;
4. **any other** is *probed*: torch's own shape function runs on data-free tensors
   at the present sizes and at a few others, and each output size is read off as a
   linear form. Sizes that only fit together are tied; sizes for which no form fits are pinned.

So no operator is unknown: the rules are there for speed and for exactness where
sizes must agree, and every surprise ends in a pinned width with a source line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from precrop.cropping.origins import Origin, calling_origin
from precrop.cropping.polynomial import Polynomial
from precrop.cropping.probe import Shapes, Sizes, fit
from precrop.cropping.solver import Solver, as_polynomial
from precrop.cropping.symbolic import Dim, dim_of, shape_of, symint
from precrop.errors import TraceError

OnProduct = Callable[[torch.Tensor | None, Dim, Dim, Polynomial, Polynomial, Sequence[torch.Tensor]], None]

_META = torch.device("meta")
_DATA_DEPENDENT = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal"}


class ReshapedInPlace(BaseException):
    """An operator changes a tensor's shape in place, and that tensor may stand for others of its old shape.

    Not an `Exception`, so that no handler in the network's code takes it for one of its own.
    """


class ShapeMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows shapes through every operator.

    ``on_product(weight, incoming, outgoing, macs, activations, operands)`` is called for each
    multiply-add operator: its weight (None for a product of two activations), the sizes it goes
    from and to, its multiply-adds and output elements for the whole batch, and the tensors it takes.
    ``separate`` makes a tensor for every result; else one tensor stands for all of the same shape along a chain of
    operators, until `ReshapedInPlace` is raised.
    """

    def __init__(self, solver: Solver, on_product: OnProduct, separate: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.separate = separate
        self.solver = solver
        self.on_product = on_product
        self.failed_at: Origin | None = None
        self.seen: set[int] = set()  # identities of the parameters that operators took
        self._dtypes: dict[Any, torch.dtype] = {}
        self._elements: dict[torch.dtype, torch.Tensor] = {}

    def make(self, shape: Sequence[Dim], dtype: torch.dtype) -> torch.Tensor:
        """A data-free tensor of a symbolic shape."""
        # A view of one element with strides of zero: torch computes no symbolic strides and storage
        # sizes for it, which makes this ten times as fast as torch.empty.
        if dtype not in self._elements:
            self._elements[dtype] = torch.empty(1, dtype=dtype, device=_META)
        return self._elements[dtype].as_strided([symint(self.solver, s) for s in shape], [0] * len(shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for arg in args:
            for one in arg if isinstance(arg, (list, tuple)) else (arg,):
                if isinstance(one, torch.nn.Parameter):
                    self.seen.add(id(one))
        name = func._schema.name.partition("::")[2]
        try:
            if not is_symbolic(args) and not is_symbolic(kwargs.values()):
                return func(*args, **kwargs)
            result = self._result(name, func, args, kwargs)
            if self.separate and not name.endswith("_") and any(result is arg for arg in args):
                return self.make(shape_of(result), result.dtype)
            return result
        except TraceError:
            raise
        except Exception:
            self.failed_at = self.failed_at or calling_origin()
            raise

    def _result(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        from precrop.cropping.rules import RULES

        rule = RULES.get(name)
        if rule is not None:
            return rule(self, *args, **kwargs)
        if torch.Tag.pointwise in func.tags:
            return self._pointwise(func, args, kwargs)
        if name in _DATA_DEPENDENT:
            raise TraceError(_data_message(calling_origin()))
        if name.endswith("_") and not name.endswith("__"):
            rule = RULES.get(name[:-1])
            changed = self.probe(func, args, kwargs) if rule is None else rule(self, *args, **kwargs)
            return self._in_place(args[0], changed)
        if func._can_decompose():
            try:
                with self:
                    return func.decompose(*args, **kwargs)
            except RuntimeError as error:
                if "symbolic sizes" not in str(error):
                    raise
        return self.probe(func, args, kwargs)

    def _in_place(self, tensor: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        """Give a tensor the shape that an operator in place gave it."""
        shape = shape_of(changed)
        if tensor.is_meta and shape != shape_of(tensor):
            if not self.separate:
                raise ReshapedInPlace
            tensor.as_strided_([symint(self.solver, size) for size in shape], [0] * len(shape))
        return tensor

    # -- elementwise ---------------------------------------------------------

    def broadcast(self, *shapes: Sequence[Dim]) -> list[Dim]:
        """The broadcast shape; sizes that meet are tied."""
        result: list[Dim] = []
        for axis in range(-max(map(len, shapes)), 0):
            size: Dim = 1
            for shape in shapes:
                if -axis > len(shape):
                    continue
                other = self.unless_one(shape[axis])
                if size == 1:
                    size = other
                elif other != 1:
                    self.agree(size, other)
            result.append(size)
        return result

    def unless_one(self, size: Dim) -> Dim:
        """The size, pinned where it is one now: it broadcasts, and a wider one would not."""
        if isinstance(size, Polynomial) and self.solver.hint(size) == 1:
            return self.solver.pin(size)
        return size

    def agree(self, a: Dim, b: Dim) -> None:
        """Demand two equal sizes, as the operator does; raises as torch would if they differ now."""
        if not self.solver.equate(a, b):
            raise RuntimeError(
                f"sizes {self.solver.hint(as_polynomial(a))} and {self.solver.hint(as_polynomial(b))} do not match"
            )

    def _pointwise(self, func: Any, args: Any, kwargs: Any) -> Any:
        leaves = [*args, *kwargs.values()]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        shapes = [shape_of(t) for t in tensors]
        shape = list(shapes[0]) if len(shapes) == 1 else self.broadcast(*shapes)
        if func._schema.name.endswith("_"):
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        key = (func, *((t.dtype, t.dim() == 0) if isinstance(t, torch.Tensor) else type(t) for t in leaves))
        if key not in self._dtypes:
            small = tree_map(self._small, (args, kwargs))
            self._dtypes[key] = func(*small[0], **small[1]).dtype
        dtype, first = self._dtypes[key], tensors[0]
        if first.is_meta and dtype == first.dtype and shape == list(shapes[0]):
            return first  # without data, a tensor of the same shape and type is the same tensor
        return self.make(shape, dtype)

    def _small(self, leaf: Any) -> Any:
        """An argument of the least size, for asking an elementwise operator its result's type."""
        if isinstance(leaf, torch.Tensor):
            return torch.empty([1] if leaf.dim() else [], dtype=leaf.dtype, device=_META)
        return self.solver.hint(as_polynomial(dim_of(leaf))) if isinstance(leaf, torch.SymInt) else leaf

    # -- probing -------------------------------------------------------------

    def probe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Let torch's own shape function say what an operator without a rule returns."""
        leaves, spec = tree_flatten((args, kwargs))
        atoms: dict[Polynomial, int] = {}
        for leaf in leaves:
            for size in _sizes(leaf):
                if isinstance(size, Polynomial):
                    atoms.setdefault(size, self.solver.hint(size))

        def run(sizes: Sizes) -> Any:
            def at(size: Dim) -> int:
                return size if isinstance(size, int) else sizes.get(size, atoms[size])

            def concrete(leaf: Any) -> Any:
                if isinstance(leaf, torch.Tensor):
                    return torch.empty([at(s) for s in _sizes(leaf)], dtype=leaf.dtype, device=_META)
                return at(_sizes(leaf)[0]) if isinstance(leaf, torch.SymInt) else leaf

            values = tree_unflatten([concrete(leaf) for leaf in leaves], spec)
            return func(*values[0], **values[1])

        def shapes_at(sizes: Sizes) -> Shapes | None:
            try:
                return [list(out.shape) for out in tree_leaves(run(sizes)) if isinstance(out, torch.Tensor)]
            except (RuntimeError, ValueError, IndexError, NotImplementedError, AssertionError):
                return None

        try:
            outputs, out_spec = tree_flatten(run({}))
        except NotImplementedError as error:  # a shape that depends on values, such as a mask's count
            raise TraceError(_data_message(calling_origin())) from error
        forms = fit(self.solver, shapes_at, list(atoms))
        if forms is None:
            for atom in atoms:
                self.solver.pin(atom)
            forms = [list(out.shape) for out in outputs if isinstance(out, torch.Tensor)]
        shapes = iter(forms)
        made = [self.make(next(shapes), out.dtype) if isinstance(out, torch.Tensor) else out for out in outputs]
        return tree_unflatten(made, out_spec)


def _sizes(leaf: Any) -> tuple[Dim, ...]:
    if isinstance(leaf, torch.Tensor):
        return shape_of(leaf)
    return (dim_of(leaf),) if isinstance(leaf, torch.SymInt) else ()


def is_symbolic(values: Iterable[Any]) -> bool:
    """Whether a data-free tensor or a symbolic size is among an operator's arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_meta:
                return True
        elif isinstance(value, torch.SymInt) or (isinstance(value, (list, tuple)) and is_symbolic(value)):
            return True
    return False


def _data_message(origin: Origin | None) -> str:
    where = f" at {origin}" if origin else ""
    return (
        f"the forward branches on the data of a tensor{where}, so its widths cannot be traced without data. "
        "Expected a forward whose path depends on shapes only: move the branch out of forward, or "
        "crop the submodules before and after it by themselves."
    )

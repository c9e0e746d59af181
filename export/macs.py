"""Multiply-adds of an ONNX graph, counted as in the rest of precrop.

One multiply-add is one MAC, of convolutions, linear layers and matrix products, for one image. `FORMULAS` has a row for
each operator that is one, ONNX's own and ONNX Runtime's. With x, w, y the shapes of input, weight and output:

    convolution             |y| · |w[1:]|           a window of one group's channels for each element put out
    transposed convolution  |x| · |w[1:]|           each element taken in is spread over a window
    matrix product          |y| · k                 k is the axis that is summed over
    einsum                  the sizes of all indices of each pair that sums over one
    recurrent layer         steps · images · (|w| + |r|)
    attention               heads · queries · keys · (d_k + d_v), and the projections where the operator has them

Shapes come from ONNX's shape inference; where that cannot tell one that is needed, the graph runs in ONNX Runtime on an
image of zeros and says it. What can be told in neither way is an error: a wrong figure is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precrop.errors import ExportError
from precrop.export.graph import widened_from_bfloat16

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


class _Unknown(Exception):
    """A tensor whose shape is needed and not known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class _Operator:
    """A node with the shapes of what it takes and puts out."""

    node: Any
    shapes: Shapes

    def taken(self, index: int) -> Shape:
        """The shape of an input; of one that is left out, empty."""
        name = self.node.input[index] if index < len(self.node.input) else ""
        return self._shape(name) if name else ()

    @property
    def made(self) -> Shape:
        return self._shape(self.node.output[0])

    def attribute(self, name: str, default: Any = 0) -> Any:
        from onnx import helper

        found = next((entry for entry in self.node.attribute if entry.name == name), None)
        return default if found is None else helper.get_attribute_value(found)

    def _shape(self, name: str) -> Shape:
        if name not in self.shapes:
            raise _Unknown(name)
        return self.shapes[name]


# -- the formulas -----------------------------------------------------------------------------------------------------


def _convolution(weight: int = 1) -> Callable[[_Operator], int]:
    return lambda op: math.prod(op.made) * math.prod(op.taken(weight)[1:])


def _transposed(op: _Operator) -> int:
    return math.prod(op.taken(0)) * math.prod(op.taken(1)[1:])


def _product(op: _Operator) -> int:
    """A product of matrices: (..., m, k) or, transposed, (..., k, m) with (..., k, n)."""
    if op.attribute("transBatchA") or op.attribute("transBatchB"):
        raise _no_formula(op.node)
    first = op.taken(0)
    return math.prod(op.made) * first[-2 if op.attribute("transA") and len(first) > 1 else -1]


def _quantized_bits(op: _Operator) -> int:
    return math.prod(op.made) * int(op.attribute("K"))


def _recurrent(op: _Operator) -> int:
    return math.prod(op.taken(0)[:2]) * (math.prod(op.taken(1)) + math.prod(op.taken(2)))


def _attention(op: _Operator) -> int:
    """ONNX's: queries, keys, values (N, heads, length, d), or (N, length, heads · d) with the heads as attributes."""
    queries, keys, values = (op.taken(i) for i in range(3))
    if len(queries) == 3:
        n, length, width = queries
        heads, shared = int(op.attribute("q_num_heads")), int(op.attribute("kv_num_heads"))
        sizes = width // heads + values[-1] // shared
    else:
        n, heads, length, _ = queries
        sizes = queries[-1] + values[-1]
    earlier = op.taken(4)
    return n * heads * length * (keys[-2] + (earlier[-2] if earlier else 0)) * sizes


def _projected_attention(op: _Operator) -> int:
    """ONNX Runtime's: (N, length, in) times one weight (in, queries + keys + values), then attention in heads."""
    n, length, inner = op.taken(0)
    outer = op.taken(1)[-1]
    sizes: list[int] = op.attribute("qkv_hidden_sizes", None) or [outer // 3] * 3
    if op.taken(8 if op.node.op_type == "QAttention" else 4):  # earlier keys and values
        raise _no_formula(op.node)
    return n * length * inner * outer + n * length * length * (sizes[0] + sizes[2])


def _headed_attention(op: _Operator) -> int:
    """ONNX Runtime's without projections: (N, length, heads · d), none of them packed, no earlier keys."""
    queries, keys, values = (op.taken(i) for i in range(3))
    if any(len(shape) != 3 for shape in (queries, keys, values)) or any(op.node.input[6:8]):
        raise _no_formula(op.node)
    n, length, width = queries
    return n * length * keys[1] * (width + values[-1])


def _einsum(op: _Operator) -> int:
    """Operands are contracted from left to right, an index that one of them has alone is summed before."""
    equation = op.attribute("equation").decode().replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    sizes: dict[str, int] = {}
    operands = []
    for term, index in zip(terms, range(len(op.node.input)), strict=True):
        letters = _spelled(term, len(op.taken(index)))
        for letter, size in zip(letters, op.taken(index), strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
        operands.append(set(letters))
    once = {letter for letter in sizes if left.count(letter) < 2}
    kept = set(_spelled(result, len(op.made))) if arrow else once
    macs, first = 0, operands[0]
    for i, second in enumerate(operands[1:], start=1):
        wanted = kept.union(*operands[i + 1 :])
        first, second = (one & (other | wanted) for one, other in ((first, second), (second, first)))
        if first & second - wanted:
            macs += math.prod(sizes[letter] for letter in first | second)
        first = (first | second) & wanted
    return macs


def _spelled(term: str, rank: int) -> list[str]:
    """The indices of a term; those behind an ellipsis are called by their place from the right."""
    before, dots, after = term.partition("...")
    free = rank - len(before) - len(after)
    return [*before, *(f"...{i}" for i in range(free, 0, -1) if dots), *after]


#: Operators that multiply and add, by domain; ``ai.onnx`` is empty.
FORMULAS: dict[str, dict[str, Callable[[_Operator], int]]] = {
    "": {
        "Conv": _convolution(),
        "ConvInteger": _convolution(),
        "QLinearConv": _convolution(3),
        "DeformConv": _convolution(),
        "ConvTranspose": _transposed,
        "Gemm": _product,
        "MatMul": _product,
        "MatMulInteger": _product,
        "QLinearMatMul": _product,
        "Einsum": _einsum,
        "RNN": _recurrent,
        "GRU": _recurrent,
        "LSTM": _recurrent,
        "Attention": _attention,
    },
    "com.microsoft": {
        "FusedConv": _convolution(),
        "NhwcConv": _convolution(),
        "NhwcFusedConv": _convolution(),
        "QLinearConv": _convolution(3),
        "ConvTransposeWithDynamicPads": _transposed,
        "FusedGemm": _product,
        "GemmFastGelu": _product,
        "QGemm": _product,
        "FusedMatMul": _product,
        "TransposeMatMul": _product,
        "FusedMatMulActivation": _product,
        "MatMulInteger16": _product,
        "MatMulIntegerToFloat": _product,
        "DynamicQuantizeMatMul": _product,
        "MatMulNBits": _quantized_bits,
        "DynamicQuantizeLSTM": _recurrent,
        "Attention": _projected_attention,
        "QAttention": _projected_attention,
        "MultiHeadAttention": _headed_attention,
    },
}
#: Those of ONNX Runtime that multiply and add in a way that has no row: what their names have in common.
_WITHOUT_A_ROW = ("Attention", "MatMul", "Gemm", "Conv", "MoE", "LSTM", "GRU", "BeamSearch", "Sampling", "GreedySearch")
_WITHOUT_PRODUCTS = ("ai.onnx.ml", "com.microsoft")


# -- the graph --------------------------------------------------------------------------------------------------------


def count_macs(model: Any) -> int:
    """Multiply-adds of an ONNX model for one image; nodes that take nothing made of the image count once.

    Raises `ExportError` for a product whose shapes cannot be told, an operator of a domain that is not known, a branch
    or a loop whose cost depends on data.
    """
    from onnx import shape_inference
    from onnx.inliner import inline_local_functions

    whole = inline_local_functions(model) if model.functions else model
    images = _images(whole)
    batch = _fixed_batch(images)
    one = _with_batch(whole, images.name, batch)
    shapes: dict[str, Shape] = {}
    try:
        one = shape_inference.infer_shapes(one, data_prop=True)
    except Exception as error:  # of the inference, of which it has several
        raise ExportError(
            f"the shapes of the graph contradict one another: {error}. Expected a valid graph."
        ) from error
    shapes.update(_known_shapes(one.graph))
    while True:
        try:
            return _count(one.graph, shapes, {images.name}, batch)
        except _Unknown as unknown:
            found = _run_for_shapes(one, images, batch, shapes)
            if unknown.name not in found:
                raise ExportError(
                    f"the multiply-adds of the graph cannot be counted: the shape of {unknown.name!r} is not known "
                    "before it runs. Expected a graph whose shapes follow from those of its input."
                ) from None
            shapes.update(found)


def _images(model: Any) -> Any:
    initialized = {entry.name for entry in model.graph.initializer}
    return next(entry for entry in model.graph.input if entry.name not in initialized)


def _fixed_batch(images: Any) -> int:
    """The number of images that the graph is bound to; one where it is free."""
    dims = images.type.tensor_type.shape.dim
    return int(dims[0].dim_value) if dims and dims[0].dim_value > 0 else 1


def _with_batch(model: Any, images: str, batch: int) -> Any:
    """A copy for this many images, without the shapes that were noted for another number."""
    import onnx

    one = onnx.ModelProto()
    one.CopyFrom(model)
    del one.graph.value_info[:]
    for entry in one.graph.output:
        entry.type.tensor_type.ClearField("shape")
    for entry in one.graph.input:
        if entry.name == images and entry.type.tensor_type.shape.dim:
            entry.type.tensor_type.shape.dim[0].Clear()
            entry.type.tensor_type.shape.dim[0].dim_value = batch
    return one


def _known_shapes(graph: Any) -> dict[str, Shape]:
    shapes = {entry.name: tuple(entry.dims) for entry in graph.initializer}
    shapes.update({entry.values.name: tuple(entry.dims) for entry in graph.sparse_initializer})
    for entry in (*graph.input, *graph.value_info, *graph.output):
        kind = entry.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            shapes.setdefault(entry.name, tuple(dim.dim_value for dim in kind.shape.dim))
    for node in graph.node:  # which inference leaves out for some types
        if node.op_type in ("DequantizeLinear", "QuantizeLinear") and node.input[0] in shapes:
            shapes.setdefault(node.output[0], shapes[node.input[0]])
    return shapes


def _count(graph: Any, shapes: Shapes, of_images: set[str], batch: int) -> int:
    """Multiply-adds of a graph's nodes for one image; ``of_images`` are names that are made of ``batch`` images."""
    made, of_all, once = set(of_images), 0, 0
    for node in graph.node:
        own = _cost(node, shapes)
        if made.intersection(_names_taken(node)):
            made.update(node.output)
            of_all += own
        else:
            once += own
    return of_all // batch + once


def _cost(node: Any, shapes: Shapes) -> int:
    """Multiply-adds of a node for the whole batch."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    formula = FORMULAS.get(domain, {}).get(node.op_type)
    if formula is not None:
        return formula(_Operator(node, shapes))
    if domain and (domain not in _WITHOUT_PRODUCTS or any(part in node.op_type for part in _WITHOUT_A_ROW)):
        raise _no_formula(node)
    bodies = {
        entry.name: _count(entry.g, {**shapes, **_known_shapes(entry.g)}, set(), 1)  # of the whole batch
        for entry in node.attribute
        if entry.HasField("g")
    }
    return _times(node, shapes) * _one_cost(node, bodies.values()) if any(bodies.values()) else 0


def _one_cost(node: Any, costs: Iterable[int]) -> int:
    """The cost that the branches of a node share."""
    first, *others = costs
    if any(other != first for other in others):
        raise ExportError(
            f"the multiply-adds of the graph cannot be counted: those of {_called(node)} depend on the branch that is "
            f"taken ({', '.join(f'{cost:,}' for cost in (first, *others))}). Expected a graph without such a branch."
        )
    return first


def _times(node: Any, shapes: Shapes) -> int:
    """How often a node runs its body."""
    op = _Operator(node, shapes)
    if node.op_type == "Scan":
        axes: list[int] = op.attribute("scan_input_axes", None) or [0]
        return op.taken(len(node.input) - int(op.attribute("num_scan_inputs")))[axes[0]]
    if node.op_type in ("Loop", "SequenceMap"):
        raise ExportError(
            f"the multiply-adds of the graph cannot be counted: how often {_called(node)} runs is data. Expected a "
            "graph without loops."
        )
    return 1


def _names_taken(node: Any) -> Iterator[str]:
    """What a node reads, its bodies too."""
    yield from node.input
    for entry in node.attribute:
        if entry.HasField("g"):
            for inner in entry.g.node:
                yield from _names_taken(inner)


def _run_for_shapes(model: Any, images: Any, batch: int, known: Shapes) -> dict[str, Shape]:
    """The shapes that ONNX Runtime sees on images of zeros; none where it cannot run the graph."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    try:
        import onnxruntime
    except ImportError:
        return {}
    asked = widened_from_bfloat16(model)
    names = [name for node in asked.graph.node for name in node.output if name and name not in known]
    for i, name in enumerate(names):
        asked.graph.node.append(helper.make_node("Shape", [name], [f"shape of {i}"]))
    del asked.graph.output[:]
    asked.graph.output.extend(
        helper.make_tensor_value_info(f"shape of {i}", TensorProto.INT64, None) for i in range(len(names))
    )
    kind = images.type.tensor_type
    image = np.zeros(
        (batch, *(dim.dim_value for dim in kind.shape.dim[1:])), helper.tensor_dtype_to_np_dtype(kind.elem_type)
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            onnx.ModelProto.SerializeToString(asked), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, {images.name: image})
    except Exception:  # of every kind: the graph may be for another engine
        return {}
    return {name: tuple(map(int, shape)) for name, shape in zip(names, found, strict=True)}


def _called(node: Any) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} that makes {node.output[0]!r}"


def _no_formula(node: Any) -> ExportError:
    return ExportError(
        f"the multiply-adds of the graph cannot be counted: no formula for {_called(node)} of the domain "
        f"{node.domain or 'ai.onnx'}. Expected ONNX's own operators, such as precrop export writes."
    )

"""ONNX graphs as data: their input, their precision, which module each node came from, bfloat16 put right."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precrop.errors import ExportError
from precrop.export.extras import require


def read_graph(path: str | Path) -> Any:
    """The ONNX model of a file; raises `ExportError` for what is none."""
    require("onnx", "onnx")
    import onnx

    if not Path(path).is_file():
        raise ExportError(f"{path}: no such file. Expected an ONNX file.")
    try:
        model = onnx.load(os.fspath(path))
        onnx.checker.check_model(os.fspath(path))
    except Exception as error:  # of protobuf or of the checker
        reason = str(error).strip().partition("\n")[0]
        raise ExportError(f"{path} is not an ONNX file: {reason}. Expected one that precrop export wrote.") from error
    return model


def input_of(model: Any, path: str | Path) -> tuple[int, ...]:
    """The shape of one image that a graph takes, without the batch."""
    inputs = [entry for entry in model.graph.input if entry.name not in {i.name for i in model.graph.initializer}]
    dims = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim][1:] if len(inputs) == 1 else []
    if not dims or not all(dims):
        raise ExportError(
            f"{path} takes {len(inputs)} inputs, the first of them {tuple(dims)} without the batch; expected one input "
            "(N, C, H, W) with fixed C, H and W."
        )
    return tuple(dims)


def computes_in(model: Any) -> str:
    """The precision of a graph, by its quantize nodes and the type of its layers' weights."""
    from onnx import TensorProto

    if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        return "int8"
    layers = {name for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul") for name in node.input}
    types = {entry.data_type for entry in model.graph.initializer if entry.name in layers}
    narrow = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
    return next((precision for kind, precision in narrow.items() if kind in types), "fp32")


def module_names(model: Any) -> dict[str, str]:
    """Names of nodes, and of what they put out, to the name of the module of the network that they compute.

    Convolutions and linear layers are told by their weight; the others by what the exporter noted. What
    is put out after a convolution by operators that engines fuse with it counts as the convolution's.
    """
    names: dict[str, str] = {}
    made_by = {}
    for node in model.graph.node:
        made_by[node.output[0]] = node
        weight = WEIGHT.match(node.input[1]) if node.op_type in ("Conv", "Gemm") and len(node.input) > 1 else None
        module = weight[1] if weight else _noted(node)
        if module:
            names[node.name] = module
        while node.op_type in FUSED and node.input and node.input[0] in made_by:
            node = made_by[node.input[0]]
        fused = names.get(node.name) if node.op_type == "Conv" else module
        if fused:
            for output in node.output:
                names.setdefault(output, fused)
            names.setdefault(next(reversed(made_by)), fused)
    return names


WEIGHT = re.compile(r"(?:network\.)?(.+?)\.weight")
FUSED = ("Relu", "Clip", "HardSwish", "HardSigmoid")
# What engines append to a name when they lay out, quantize or split a node, and how they join names of fused ones.
APPENDED = re.compile(r"(_nchwc|_token_\d+|/\S*|_(Quantize|Dequantize)Linear\S*|_quant\S*)+$")
JOINED = re.compile(r"[\s+,()\[\]]+")


def _noted(node: Any) -> str:
    noted = {entry.key: entry.value for entry in node.metadata_props}.get("pkg.torch.onnx.name_scopes")
    try:
        scopes = ast.literal_eval(noted) if noted else []
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # of a file, nested as deep as it likes
        return ""
    return str(scopes[-2]).removeprefix("network.") if len(scopes) > 1 else ""


def module_of(kernel: str, names: Mapping[str, str]) -> str:
    """The module that an engine's kernel computes, by the kernel's name; empty where it has none."""
    for part in (kernel, APPENDED.sub("", kernel), *JOINED.split(kernel)):
        if part in names:
            return names[part]
    return ""


def with_bfloat16_weights(model: Any) -> None:
    """Make the weights of convolutions bfloat16 where a norm was folded into them.

    The exporter folds norms in float32 and leaves the result so, beside bfloat16 activations.
    """
    import torch
    from onnx import TensorProto, helper, numpy_helper

    weights = {name for node in model.graph.node if node.op_type in ("Conv", "Gemm") for name in node.input[1:]}
    for entry in model.graph.initializer:
        if entry.name in weights and entry.data_type == TensorProto.FLOAT:
            values = torch.from_numpy(numpy_helper.to_array(entry).copy()).bfloat16()
            raw = values.view(torch.int16).numpy().tobytes()
            entry.CopyFrom(helper.make_tensor(entry.name, TensorProto.BFLOAT16, tuple(values.shape), raw, raw=True))
    del model.graph.value_info[:]  # has the old types


def widened_from_bfloat16(model: Any) -> Any:
    """A copy that computes in float32 with the bfloat16 graph's own weights, for engines without bfloat16."""
    import onnx
    import torch
    from onnx import TensorProto, numpy_helper

    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.value_info[:]

    def float32(entry: Any) -> Any:
        raw = torch.frombuffer(bytearray(entry.raw_data), dtype=torch.bfloat16).float().reshape(tuple(entry.dims))
        return numpy_helper.from_array(raw.numpy(), entry.name)

    for entry in wide.graph.initializer:
        if entry.data_type == TensorProto.BFLOAT16 and entry.raw_data:
            entry.CopyFrom(float32(entry))
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
            if attribute.name == "value" and attribute.t.data_type == TensorProto.BFLOAT16 and attribute.t.raw_data:
                attribute.t.CopyFrom(float32(attribute.t))
    return wide

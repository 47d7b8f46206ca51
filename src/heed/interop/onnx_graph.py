"""Builds an ONNX graph node by node, each value named after the operator that computes it.

Knows nothing of Transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

OPSET = 20  # the first that has Gelu
_IR = 10  # of onnx 1.16 and later; runtimes refuse files newer than they are
FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
DynamicShape = Sequence[int | str]  # a string names a length that is not known in advance


class Graph:
    """Nodes, weights, inputs and outputs in the order they were added; a value is referred to by its name."""

    def __init__(self, name: str, weights: Mapping[str, Tensor]) -> None:
        self._name = name
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dtype: type, shape: DynamicShape) -> str:
        """Add an input of the graph; returns its name."""
        self._inputs.append(helper.make_tensor_value_info(name, _ONNX_TYPES[dtype], shape))
        return name

    def output(self, value: str, name: str, dtype: type, shape: DynamicShape) -> None:
        """Make a value an output of the graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, _ONNX_TYPES[dtype], shape))

    def weight(self, name: str) -> str:
        """A weight of the model, by its name there."""
        if name not in self._constants:
            array = self._weights[name].detach().cpu().numpy()
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def constant(self, value: Any, dtype: type = np.int64) -> str:
        """Add a constant; returns its name. Up to four values are named after them, and stored once."""
        array: np.ndarray[Any, Any] = np.asarray(value, dtype)
        name = f"{array.dtype} {array.tolist()}" if array.size <= 4 else f"constant {len(self._constants)}"
        self._constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        name = f"{operator} {len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def serialized(self) -> bytes:
        """The graph as a file, after ONNX's own checker has accepted it."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, list(self._constants.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR)
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())


_ONNX_TYPES = {np.float32: TensorProto.FLOAT, np.int64: TensorProto.INT64, np.bool_: TensorProto.BOOL}

"""Linear layers for inference on a CPU, with prepacked weights in float32 or int8: `csrc/linear.h` from Python.

Enters: a weight, in float32 or as a model folder stores it in int8. Leaves: a layer on numpy arrays. The reference is
`torch.nn.functional.linear`. In int8 each row of W and each row of x is quantised with its own scale, its largest
absolute value over 127. Knows nothing of torch: `backends/torch/linear.py` calls it with tensors.
"""

import ctypes
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heed.artifacts.quantization import QuantizedMatrix, quantize_rows
from heed.backends.cpu.library import check_status, engine, team, threads_for
from heed.backends.cpu.pointers import array_pointer, array_pointer_or_none
from heed.backends.memory import HugePages

_PANEL, _GROUP = 32, 4  # as in `csrc/heed.h`


class MatrixStruct(ctypes.Structure):
    """The struct `HeedMatrix` of `csrc/heed.h`."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("weight", "output_scales", "output_sums", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
    ]


class PackedLinear:
    """x Wᵀ + b with a packed copy of W; pages: memory shared with other matrices.

    weight: (outputs, inputs). A quantised one stays in int8.
    """

    def __init__(
        self,
        weight: NDArray[Any] | QuantizedMatrix,
        bias: NDArray[np.float32] | None,
        *,
        int8: bool,
        pages: HugePages | None = None,
    ) -> None:
        if int8 and not isinstance(weight, QuantizedMatrix):
            weight = quantize_rows(weight)
        matrix, scales = weight if isinstance(weight, QuantizedMatrix) else (weight, None)
        outputs, inputs = matrix.shape
        dtype, group = (np.float32, 1) if scales is None else (np.int8, _GROUP)
        if matrix.dtype != dtype:
            raise TypeError(f"compiled code takes contiguous {np.dtype(dtype)} {matrix.shape}, found {matrix.dtype}")
        sums = None if scales is None else matrix.sum(1, dtype=np.int32)
        panels = pack_panels(matrix, group, pages or HugePages())
        scales, sums, bias = (None if array is None else _padded(array) for array in (scales, sums, bias))
        self._kept = (panels, scales, sums, bias)  # keeps alive what the structure points to
        shape = (-(-outputs // _PANEL), -(-inputs // group), _PANEL, group)
        size = shape[0] * _PANEL
        self.matrix = MatrixStruct(
            array_pointer(panels, dtype, *shape), array_pointer_or_none(scales, np.float32, size),
            array_pointer_or_none(sums, np.int32, size), array_pointer_or_none(bias, np.float32, size),
            outputs, inputs,
        )  # fmt: skip
        self.bytes = panels.nbytes

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """x Wᵀ + b, in float32 whatever the weights; x may have any leading axes."""
        outputs, inputs = self.matrix.outputs, self.matrix.inputs
        x = np.require(x, requirements=("C", "A"))
        y = np.empty((*x.shape[:-1], outputs), np.float32)
        rows = x.size // max(1, x.shape[-1])
        pointers = (array_pointer(x, np.float32, *x.shape[:-1], inputs), array_pointer(y, np.float32, *y.shape))
        threads = threads_for(self.bytes * rows)
        status = engine().linear(ctypes.byref(self.matrix), *pointers, rows, *team(threads))
        check_status(status, "a linear layer")
        return y


def _padded(array: NDArray[Any]) -> NDArray[Any]:
    """Zero-padded to whole panels."""
    return np.pad(array, (0, -len(array) % _PANEL))


def pack_panels(weight: NDArray[Any], group: int, pages: HugePages) -> NDArray[Any]:
    """A copy of W, (panels, groups, 32, group), in the order in which it is read.

    Panels of 32 outputs, with `group` adjacent inputs each, which are four bytes: they are copied as one integer.
    """
    outputs, inputs = weight.shape
    padding = (0, -outputs % _PANEL), (0, -inputs % group)
    padded = np.pad(weight, padding) if outputs % _PANEL or inputs % group else np.ascontiguousarray(weight)
    in_order = padded.view(np.uint32).reshape(-(-outputs // _PANEL), _PANEL, -1).transpose(0, 2, 1)
    panels = pages.empty(in_order.shape, np.uint32)
    panels[...] = in_order
    return panels.view(weight.dtype).reshape(*in_order.shape, group)

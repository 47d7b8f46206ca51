"""Many numbers in few characters, for a page that must be one small file.

Enters: arrays by name. Leaves: their shapes, and base64 of deflated bytes that `page/data.js` reads again:

    scales      float32, one for each row of every array, a row being what the last axis counts
    low bytes   of all numbers as int16, in units of their row's scale, array after array
    high bytes  of the same: apart from the low ones they deflate well

A number is one of 2·levels + 1 steps from minus to plus the largest of its row: with 511, right to a thousandth of
that one.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def packed(arrays: Mapping[str, np.ndarray], levels: int) -> dict[str, Any]:
    """{shapes: {name: shape}, data: base64}; the arrays stand in the data in the order of their shapes."""
    scales, steps = [], []
    for values in arrays.values():
        rows = np.asarray(values, np.float32).reshape(-1, values.shape[-1])
        scale = np.abs(rows).max(-1, initial=0.0, keepdims=True) / levels
        scales.append(scale.ravel())
        steps.append(np.rint(np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0)).ravel())
    numbers = np.concatenate([*steps, []]).astype("<i2").view(np.uint8).reshape(-1, 2)
    data = np.concatenate([*scales, []]).astype("<f4").tobytes() + numbers.T.tobytes()
    return {"shapes": {name: list(values.shape) for name, values in arrays.items()}, "data": deflated(data)}


def deflated(data: bytes) -> str:
    """Bytes as text of letters, digits, + / and =, which is no markup wherever it stands."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def deflated_json(value: Any) -> str:
    """The same of anything that JSON can hold."""
    return deflated(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())

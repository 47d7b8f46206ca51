"""Numbers that carry the tokens of their own rows and columns, so that no picture can label them wrongly.

Rows are queries and columns are keys wherever attention is meant. A row of the target is labelled with the token that
the decoder read there (the first is ⟨s⟩); `predicts` names the token that it predicted from there, one further on.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float


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


Values = Float[np.ndarray, "*heads rows columns"] | Bool[np.ndarray, "rows columns"]
Labels = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix, or one a head: (H, rows, columns)."""

    name: str
    meaning: str
    axes: tuple[str, ...]  # the house's letters, one for each axis of `values`
    values: Values  # float32; bool in a mask
    rows: Labels
    columns: Labels | None  # none where columns are no tokens but the numbers of a vector
    predicts: Labels | None  # none where rows are no target tokens

    def __post_init__(self) -> None:
        for labels, axis in ((self.rows, -2), (self.columns, -1), (self.predicts, -2)):
            if labels is not None and len(labels) != self.values.shape[axis]:
                shape = self.values.shape
                raise ValueError(f"{self.name}: {len(labels)} labels do not fit axis {axis} of the shape {shape}")

    def _repr_html_(self) -> str:
        from heed.interpret.notebook import matrix_html  # noqa: PLC0415 - which knows what a Matrix is

        return matrix_html(self)

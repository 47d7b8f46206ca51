"""Numbers that carry the tokens of their own rows and columns, so that no picture can label them wrongly.

Rows are queries and columns are keys wherever attention is meant. A row of the target is labelled with the token that
the decoder read there (the first is ⟨s⟩); `predicts` names the token that it predicted from there, one further on.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

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
        from heed.inside.notebook import matrix_html  # noqa: PLC0415 - which knows what a Matrix is

        return matrix_html(self)

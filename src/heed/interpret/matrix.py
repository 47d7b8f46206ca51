"""A tensor of a forward pass with the tokens of its own rows and columns, shown as a heat map in notebooks.

So no picture can mislabel it. In attention, rows are queries and columns are keys. A target row is labelled with the
token that the decoder reads there (the first is ⟨s⟩); `predicts` has the token predicted from that row, the next one.

In a notebook a matrix is displayed as a heat map, or as a table of its first values. The HTML loads nothing and runs no
script: texts are escaped, and pictures are images.
"""

from base64 import b64encode
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Bool, Float

from heed.plots.figures import head_grid, heat_map, signed_heat_map
from heed.plots.svg import show_invisible

Values = Float[np.ndarray, "*heads rows columns"] | Bool[np.ndarray, "rows columns"]
Labels = tuple[str, ...]

LARGEST_PICTURE = 80  # tokens on either axis of a picture in a notebook
_FIRST = 8  # rows and columns of a table of values


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix, or one per head: (H, rows, columns)."""

    name: str
    meaning: str
    axes: tuple[str, ...]  # the shape letters, one for each axis of `values`
    values: Values  # float32; bool in a mask
    rows: Labels
    columns: Labels | None  # none where columns are not tokens but the dimensions of a hidden state
    predicts: Labels | None  # none where rows are not target tokens

    def __post_init__(self) -> None:
        for labels, axis in ((self.rows, -2), (self.columns, -1), (self.predicts, -2)):
            if labels is not None and len(labels) != self.values.shape[axis]:
                shape = self.values.shape
                raise ValueError(f"{self.name}: {len(labels)} labels do not fit axis {axis} of the shape {shape}")

    def _repr_html_(self) -> str:
        values = np.asarray(self.values, dtype=float)
        axes = ", ".join(f"{axis} = {length}" for axis, length in zip(self.axes, values.shape, strict=True))
        head = f"<p><b>{text_html(self.name)}</b> ({text_html(axes)}): {text_html(self.meaning)}</p>"
        return head + (self._picture(values) or self._first_values(values))

    def _picture(self, values: Float[np.ndarray, "*heads rows columns"]) -> str | None:
        """A heat map of tokens by tokens; none where that cannot be drawn."""
        if self.columns is None or not values.size or max(values.shape[-2:]) > LARGEST_PICTURE:
            return None
        if not np.isfinite(values).all():
            return None
        signed = values.min() < 0
        if values.ndim == 3:
            return None if signed else image_html(head_grid(values[None], self.rows, self.columns).encode())
        draw = signed_heat_map if signed else heat_map
        return image_html(draw(values, self.rows, self.columns).encode())

    def _first_values(self, values: Float[np.ndarray, "*heads rows columns"]) -> str:
        """A table of the first rows and columns, of the first head, and the shape of the whole."""
        shown = values[(0,) * (values.ndim - 2)][:_FIRST, :_FIRST] if values.size else np.zeros((0, 0))
        names = [str(number) for number in range(1, shown.shape[1] + 1)] if self.columns is None else self.columns
        heading = "".join(f"<th>{text_html(name)}</th>" for name in ("", *names[: shown.shape[1]]))
        rows = "".join(
            f"<tr><th>{text_html(name)}</th>{''.join(f'<td>{number:.4g}</td>' for number in row)}</tr>"
            for name, row in zip(self.rows, shown, strict=False)
        )
        whole = " × ".join(str(length) for length in values.shape)
        first = " × ".join(str(length) for length in shown.shape)
        return f"<table><tr>{heading}</tr>{rows}</table><p>the first {first} of {whole} numbers</p>"


def image_html(svg: bytes) -> str:
    """An SVG as an image in HTML."""
    return f'<img alt="" src="data:image/svg+xml;base64,{b64encode(svg).decode()}">'


def text_html(text: str) -> str:
    """Text escaped for HTML, with a visible symbol for every invisible character."""
    return escape(
        show_invisible(text) if text.strip(" ") == "" else " ".join(show_invisible(word) for word in text.split(" "))
    )

"""How a trace and its matrices show themselves in a notebook: one picture each, or first numbers.

Enters: a trace or a matrix. Leaves: HTML that fetches nothing and runs nothing: every text is escaped, and a picture is
an image, in which no script could run.
"""

from base64 import b64encode
from html import escape
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heed.interpret.matrix import Matrix
from heed.interpret.saving import picture
from heed.interpret.trace import Trace
from heed.plots.figures import head_grid, heat_map, removal_map
from heed.plots.lettering import spelt

_LARGEST = 80  # tokens on either side of a picture
_FIRST = 8  # rows and columns of numbers


def trace_html(trace: Trace) -> str:
    """The texts, and the picture that tells most."""
    texts = " → ".join(_text(text) for text in (trace.source.text, trace.target.text) if text)
    if max(len(trace.source.ids), len(trace.target.ids)) > _LARGEST:
        return f"<p>{texts}</p><p>too long for a picture: trace.save('look.html') has it all</p>"
    return f"<p>{texts}</p>{_image(picture(trace, 'svg'))}"


def matrix_html(matrix: Matrix) -> str:
    """What it is, and its values as a map of tokens where that can be drawn; else the first numbers."""
    values = np.asarray(matrix.values, dtype=float)
    axes = ", ".join(f"{axis} = {length}" for axis, length in zip(matrix.axes, values.shape, strict=True))
    head = f"<p><b>{_text(matrix.name)}</b> ({_text(axes)}): {_text(matrix.meaning)}</p>"
    columns = matrix.columns
    drawable = columns is not None and max(values.shape[-2:]) <= _LARGEST and np.isfinite(values).all()
    if columns is None or not drawable or not values.size:
        return head + _first_numbers(matrix, values)
    if values.ndim == 3:  # a map a head
        if values.min() >= 0:
            return head + _image(head_grid(values[None], matrix.rows, columns).encode())
        return head + _first_numbers(matrix, values)
    draw = heat_map if values.min() >= 0 else removal_map
    return head + _image(draw(values, matrix.rows, columns).encode())


def _first_numbers(matrix: Matrix, values: np.ndarray) -> str:
    """A table of the first rows and columns, of the first head; and how many there are."""
    shown = values[(0,) * (values.ndim - 2)][:_FIRST, :_FIRST] if values.size else np.zeros((0, 0))
    names = [str(number) for number in range(1, shown.shape[1] + 1)] if matrix.columns is None else matrix.columns
    heading = "".join(f"<th>{_text(name)}</th>" for name in ("", *names[: shown.shape[1]]))
    rows = "".join(
        f"<tr><th>{_text(name)}</th>{''.join(f'<td>{number:.4g}</td>' for number in row)}</tr>"
        for name, row in zip(matrix.rows, shown, strict=False)
    )
    whole = " × ".join(str(length) for length in values.shape)
    first = " × ".join(str(length) for length in shown.shape)
    return f"<table><tr>{heading}</tr>{rows}</table><p>the first {first} of {whole} numbers</p>"


def _image(svg: bytes) -> str:
    return f'<img alt="" src="data:image/svg+xml;base64,{b64encode(svg).decode()}">'


def _text(text: str) -> str:
    return escape(spelt(text) if text.strip(" ") == "" else " ".join(spelt(word) for word in text.split(" ")))


def arguments(trace: Trace) -> dict[str, Any]:
    """The arguments of bertviz.head_view and model_view."""
    match trace.translator.model.config.kind:
        case "encoder":
            return {"attention": _layers(trace.encoder_attention), "tokens": list(trace.source_tokens)}
        case "decoder":
            return {"attention": _layers(trace.decoder_attention), "tokens": list(trace.target_tokens)}
        case _:
            return {
                "encoder_attention": _layers(trace.encoder_attention),
                "decoder_attention": _layers(trace.decoder_attention),
                "cross_attention": _layers(trace.cross_attention),
                "encoder_tokens": list(trace.source_tokens),
                "decoder_tokens": list(trace.target_tokens),
            }


def _layers(weights: Float[np.ndarray, "L H T S"]) -> list[Tensor]:
    return [torch.from_numpy(layer)[None] for layer in weights]

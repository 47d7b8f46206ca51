"""Writing a trace as JSON, HTML or a picture, displaying it in a notebook, and passing it to bertviz.

The suffix of the path is the format:

    .json           for any program; described below
    .html           an interactive page: see `report`
    .svg .png .pdf  cross-attention of the layer that alignment is read off; without cross-attention, all heads

The JSON is one object. Numbers have four significant digits; what this kind of model does not have is null or empty.

    format, version     "heed.trace" and 1; a change that would mislead a reader of version 1 makes it 2
    heed                the version of heed that wrote it
    model               the settings of `ModelConfig`
    source              {text, ids, tokens, spans}: the encoder's input; spans are [start, end) in characters of text
    target              {text, ids, tokens, spans}: the decoder's input, the target rows; the first token is ⟨s⟩
    predicted           {text, ids, tokens, spans, log_probs}: what each target row is to predict, one log_prob per row
    attention           {encoder: [L][H][S][S], decoder: [L][H][T][T], cross: [L][H][T][S]}; [query][key] last
    top                 [row][rank] {token, id, probability}: the top 10 tokens at each row of the output; of a
                        classifier all labels, most probable first, in one row
    lens                {top: [layer][row][rank] {token, id, probability}, log_probs: [layer][row]}: logit lens, top 5
    holes               {top: [position][rank] {token, id, probability}, log_probs: [position]}: of a masked LM, the
                        top 5 at each position when the token there is masked; the log-probability of that token
    labels              the names of a classifier's labels, in the order of its logits
    removal             [T][S]: occlusion, the change of log_probs[row] without source token [column]; of a classifier
                        [1][S], the change of the top label's
    beam                {nodes: [{parent, step, id, token, log_prob, total, rank, fate, score, place}]}; see `beam_tree`
    parts               [{name, axes, meaning, shape}], every part of the pass; full: with its values
    full_bytes          the size of all parts as float32
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heed.errors import DataError, InputError
from heed.interpret.matrix import LARGEST_PICTURE, image_html, text_html
from heed.interpret.parts import parts, sizes
from heed.interpret.report import alignment_layer, html_report
from heed.interpret.tokens import Candidate
from heed.plots.figures import head_grid, heat_map
from heed.plots.svg import ImageFormat, render
from heed.version import __version__

if TYPE_CHECKING:
    import heed.interpret.trace

FORMAT, VERSION = "heed.trace", 1


def save(trace: "heed.interpret.trace.Trace", path: Path, *, full: bool = False) -> None:
    """Write a trace in the format of the path's ending."""
    if path.suffix not in _WRITERS:
        raise InputError(f"{path}: a trace cannot be saved as {path.suffix!r}: expected {', '.join(_WRITERS)}")
    data = _WRITERS[path.suffix](trace, full)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def trace_document(trace: "heed.interpret.trace.Trace", *, full: bool = False) -> dict[str, Any]:
    """A trace as the JSON object described above."""
    config = trace.config
    is_encoder_decoder, search = config.kind == "encoder-decoder", trace.text_model.search
    lens = trace.lens(5) if config.has_decoder else None
    holes = trace.holes(5) if config.kind == "encoder" and config.labels is None else None
    return {
        "format": FORMAT,
        "version": VERSION,
        "heed": __version__,
        "model": config.model_dump(),
        "source": asdict(trace.source),
        "target": asdict(trace.target),
        "predicted": {**asdict(trace.predicted), "log_probs": rounded(trace.predicted_log_probs)},
        "attention": {
            "encoder": rounded(trace.encoder_attention),
            "decoder": rounded(trace.decoder_attention),
            "cross": rounded(trace.cross_attention),
        },
        "top": [_candidates(row) for row in trace.top(max(10, len(trace.labels)))],
        "lens": lens
        and {"top": [[_candidates(row) for row in layer] for layer in lens.top], "log_probs": rounded(lens.log_probs)},
        "holes": holes and {"top": [_candidates(row) for row in holes.top], "log_probs": rounded(holes.log_probs)},
        "labels": list(trace.labels),
        "removal": rounded(trace.removal().values) if is_encoder_decoder or trace.labels else None,
        "beam": _beam(trace) if is_encoder_decoder and not search.sample else None,
        "parts": _parts(trace, full=full),
        "full_bytes": trace.size(),
    }


def rounded(values: np.ndarray) -> Any:
    """Nested lists with four significant digits."""
    if values.dtype == np.bool_:
        return values.tolist()
    numbers = [_round(value) for value in values.ravel().tolist()]
    return np.array(numbers, object).reshape(values.shape).tolist()


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _candidates(row: list[Candidate]) -> list[dict[str, Any]]:
    return [{**candidate._asdict(), "probability": _round(candidate.probability)} for candidate in row]


def _beam(trace: "heed.interpret.trace.Trace") -> dict[str, Any]:
    nodes = [asdict(node) for node in trace.beam().nodes]
    return {
        "nodes": [
            {name: _round(value) if isinstance(value, float) else value for name, value in node.items()}
            for node in nodes
        ]
    }


def _parts(trace: "heed.interpret.trace.Trace", *, full: bool) -> list[dict[str, Any]]:
    config = trace.config
    lengths = sizes(config, len(trace.source.ids), len(trace.target.ids))
    values = trace.parts() if full else {}
    return [
        {"name": part.name, "axes": part.axes, "meaning": part.meaning, "shape": part.shape(lengths)}
        | ({"values": rounded(values[part.name].values)} if full else {})
        for part in parts(config).values()
    ]


def _json(trace: "heed.interpret.trace.Trace", full: bool) -> bytes:
    text = json.dumps(trace_document(trace, full=full), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return (text + "\n").encode()


def _html(trace: "heed.interpret.trace.Trace", full: bool) -> bytes:
    return html_report(trace, trace_document(trace), full=full)


def picture(trace: "heed.interpret.trace.Trace", image_format: ImageFormat) -> bytes:
    """Cross-attention of the layer that alignment is read off; without cross-attention, all heads."""
    if layer := alignment_layer(trace.config):
        title = f"Cross-attention, layer {layer}, mean of the heads"
        svg = heat_map(trace.cross_attention[layer - 1].mean(0), _rows(trace), trace.source_tokens, title)
        return render(svg, image_format)
    weights = trace.encoder_attention if trace.source.ids else trace.decoder_attention
    tokens = trace.source if trace.source.ids else trace.target
    return render(head_grid(weights, tokens.tokens, tokens.tokens, tokens.text), image_format)


def _rows(trace: "heed.interpret.trace.Trace") -> list[str]:
    """Decoder input → prediction, without the space that most tokens begin with."""
    pairs = zip(trace.target_tokens, trace.predicted_tokens, strict=True)
    return [f"{read.strip() or read}→{predicted.strip() or predicted}" for read, predicted in pairs]


def trace_html(trace: "heed.interpret.trace.Trace") -> str:
    """The texts and the picture that `trace.save` draws, for a notebook."""
    texts = " → ".join(text_html(text) for text in (trace.source.text, trace.target.text) if text)
    if max(len(trace.source.ids), len(trace.target.ids)) > LARGEST_PICTURE:
        return f"<p>{texts}</p><p>too long for a picture: see trace.save('look.html')</p>"
    return f"<p>{texts}</p>{image_html(picture(trace, 'svg'))}"


def bertviz_arguments(trace: "heed.interpret.trace.Trace") -> dict[str, Any]:
    """The arguments of bertviz.head_view and model_view."""
    match trace.config.kind:
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


# By suffix: a trace, and whether to include the values of every part, to the bytes of a file.
_WRITERS: dict[str, Callable[["heed.interpret.trace.Trace", bool], bytes]] = {
    ".json": _json,
    ".html": _html,
    ".svg": lambda trace, _full: picture(trace, "svg"),
    ".png": lambda trace, _full: picture(trace, "png"),
    ".pdf": lambda trace, _full: picture(trace, "pdf"),
}

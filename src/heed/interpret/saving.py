"""A trace to a file. The path's ending says which format is meant.

    .json       any program reads it; below
    .html       a page to look around in: see `report`
    .svg .png   attention to the source in the layer that alignment is read off; of half a model, all heads

The JSON is one object. Numbers have four significant digits; what a model of this kind does not have is null or empty.

    format, version     "heed.trace" and 1; a change that would mislead a reader of version 1 makes it 2
    heed                the version of heed that wrote it
    model               the settings of `ModelConfig`
    source              {text, ids, tokens, spans}: what the encoder reads; spans are [start, end) in characters of text
    target              the same, what the decoder reads: the rows of the target's side; the first token is ⟨s⟩
    predicted           the same, what is predicted from each target row, and log_probs, one a row
    attention           {encoder: [L][H][S][S], decoder: [L][H][T][T], cross: [L][H][T][S]}; [query][key] last
    top                 [row][rank] {token, id, probability}: the ten likeliest words at each row of the output; of a
                        classifier all labels, likeliest first, in one row
    lens                {top: [layer][row][rank] {token, id, probability}, log_probs: [layer][row]}: five words each
    holes               {top: [place][rank] {token, id, probability}, log_probs: [place]}: of an encoder that says
                        words, what it would put at each place were the token there hidden; and the token's own
    labels              the names of a classifier's labels, in the order of its logits
    removal             [T][S]: change of log_probs[row] when source token [column] is removed; of a classifier [1][S],
                        change of the likeliest label's
    beam                {nodes: [{parent, step, id, token, log_prob, total, rank, fate, score, place}]}; see `beam_tree`
    parts               [{name, axes, meaning, shape}], every part there is; full: with its values
    full_bytes          what all parts take as float32
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from heed.errors import DataError, InputError
from heed.interpret.parts import parts, sizes
from heed.interpret.report import alignment_layer, report
from heed.interpret.tokens import Candidate, Tokens
from heed.interpret.trace import Trace
from heed.plots.figures import head_grid, heat_map
from heed.plots.svg import Kind, rendered
from heed.version import __version__

FORMAT, VERSION = "heed.trace", 1


def save(trace: Trace, path: Path, *, full: bool = False) -> None:
    """Write a trace in the format of the path's ending."""
    if path.suffix not in _WRITERS:
        raise InputError(f"{path}: a trace cannot be saved as {path.suffix!r}; known are {', '.join(_WRITERS)}")
    data = _WRITERS[path.suffix](trace, full)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def document(trace: Trace, *, full: bool = False) -> dict[str, Any]:
    """A trace as the JSON has it."""
    config = trace.translator.model.config
    both, search = config.kind == "encoder-decoder", trace.translator.search
    lens = trace.lens(5) if config.has_decoder else None
    holes = trace.holes(5) if config.kind == "encoder" and config.labels is None else None
    return {
        "format": FORMAT,
        "version": VERSION,
        "heed": __version__,
        "model": config.model_dump(),
        "source": _tokens(trace.source),
        "target": _tokens(trace.target),
        "predicted": {**_tokens(trace.predicted), "log_probs": rounded(trace.predicted_log_probs)},
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
        "removal": rounded(trace.removal().values) if both or trace.labels else None,
        "beam": _beam(trace) if both and not search.sample else None,
        "parts": _parts(trace, full=full),
        "full_bytes": trace.size(),
    }


def rounded(values: np.ndarray) -> Any:
    """As nested lists, with four significant digits."""
    if values.dtype == np.bool_:
        return values.tolist()
    digits = [_four(value) for value in values.ravel().tolist()]
    return np.array(digits, object).reshape(values.shape).tolist()


def _four(value: float) -> float:
    return float(f"{value:.4g}")


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return asdict(tokens)


def _candidates(row: list[Candidate]) -> list[dict[str, Any]]:
    return [{**each._asdict(), "probability": _four(each.probability)} for each in row]


def _beam(trace: Trace) -> dict[str, Any]:
    nodes = [asdict(node) for node in trace.beam().nodes]
    return {
        "nodes": [
            {name: _four(value) if isinstance(value, float) else value for name, value in node.items()}
            for node in nodes
        ]
    }


def _parts(trace: Trace, *, full: bool) -> list[dict[str, Any]]:
    config = trace.translator.model.config
    lengths = sizes(config, len(trace.source.ids), len(trace.target.ids))
    values = trace.parts() if full else {}
    return [
        {"name": part.name, "axes": part.axes, "meaning": part.meaning, "shape": part.shape(lengths)}
        | ({"values": rounded(values[part.name].values)} if full else {})
        for part in parts(config).values()
    ]


def _json(trace: Trace, full: bool) -> bytes:
    text = json.dumps(document(trace, full=full), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return (text + "\n").encode()


def _html(trace: Trace, full: bool) -> bytes:
    return report(trace, document(trace), full=full)


def picture(trace: Trace, kind: Kind) -> bytes:
    """The map that tells most: where the target comes from, or in half a model all its heads."""
    if layer := alignment_layer(trace.translator.model.config):
        title = f"Attention to the source: layer {layer}, mean of the heads"
        svg = heat_map(trace.cross_attention[layer - 1].mean(0), _rows(trace), trace.source_tokens, title)
        return rendered(svg, kind)
    weights = trace.encoder_attention if trace.source.ids else trace.decoder_attention
    tokens = trace.source if trace.source.ids else trace.target
    return rendered(head_grid(weights, tokens.tokens, tokens.tokens, tokens.text), kind)


def _rows(trace: Trace) -> list[str]:
    """What the decoder reads, and what it predicts from there; a space in a token would be shown as one."""
    pairs = zip(trace.target_tokens, trace.predicted_tokens, strict=True)
    return [f"{read.strip() or read}→{predicted.strip() or predicted}" for read, predicted in pairs]


# How each format is made: from a trace, and whether the numbers of every part are asked for, to the bytes of the file.
_WRITERS: dict[str, Callable[[Trace, bool], bytes]] = {
    ".json": _json,
    ".html": _html,
    ".svg": lambda trace, _full: picture(trace, "svg"),
    ".png": lambda trace, _full: picture(trace, "png"),
}

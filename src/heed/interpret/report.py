"""A trace as a page to read: one HTML file that asks for nothing, no network and no other file.

Enters: a trace. Leaves: the bytes of the page. It is hand-written, in `page/`: a template, a style sheet and a script a
view, put together here and nowhere else. The trace is in it as look.json has it (`saving.document`), except that
attention, and the vectors that the view `step by step` is about, are packed (`packed`).

No text of a trace can become markup. It enters the page deflated, in base64, whose letters are no markup; the scripts
put it on the page as text, never as HTML. And should both fail, the page's policy lets nothing load and nothing run
but the one script and the one style sheet whose hashes it names.

The vectors are those of the first layers, as many as the room allows, the first one always; full: of all layers. What
follows from them by simple arithmetic (scores, weights, sums, norms) the page works out before the reader's eyes.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
from torch import nn

from heed.config import ModelConfig
from heed.interpret.matrix import deflated_json, packed
from heed.interpret.parts import parts, sizes
from heed.interpret.trace import Trace

SCRIPTS = (
    "data",
    "draw",
    "heads",
    "maps",
    "arithmetic",
    "steps",
    "keys",
    "overview",
    "positions",
    "search",
    "output",
    "page",
)
ROOM = 200_000  # vectors' numbers that a page may have: about 300 KB
STRONGEST = 24  # numbers of the feed-forward's middle that are kept of each token


def report(trace: Trace, document: dict[str, Any], *, full: bool = False) -> bytes:
    """The page of a trace, of which `document` tells everything but the vectors."""
    layers = followed_layers(trace, full=full)
    vectors = _vectors(trace, layers)
    middle = {name: vectors.pop(name) for name in list(vectors) if name.endswith(".hidden")}
    places = {name: np.argsort(-np.abs(values), -1, "stable")[:, :STRONGEST] for name, values in middle.items()}
    vectors |= {name: np.take_along_axis(middle[name], some, -1) for name, some in places.items()}
    shown = {
        **{key: value for key, value in document.items() if key != "attention"},
        "followed_layers": layers,
        "alignment_layer": alignment_layer(trace.translator.model.config),
        "hidden": {
            name: {"places": some.tolist(), "active": (middle[name] > 0).sum(-1).tolist()}
            for name, some in places.items()
        },
    }
    maps = {kind: np.array(values) for kind, values in document["attention"].items() if values}
    data = {
        "document": deflated_json(shown),
        "attention": packed({kind: map_.reshape(*map_.shape[:2], -1) for kind, map_ in maps.items()}, levels=1023),
        "vectors": packed(vectors | _norms(trace, layers), levels=511),
    }
    return assembled(data).encode()


def alignment_layer(config: ModelConfig) -> int | None:
    """The layer whose attention to the source comes closest to alignment, from 1; see `heed.decoding.forced`."""
    return max(1, config.decoder_layers - 1) if config.kind == "encoder-decoder" else None


def assembled(data: dict[str, Any]) -> str:
    """The template with its style, its script and its data, and a policy that allows just these."""
    style, script = style_and_script()
    policy = (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _page("report.html")
    for place, text in {"policy": policy, "style": style, "script": script, "data": escaped(data)}.items():
        page = page.replace("{{" + place + "}}", text)
    return page


def style_and_script() -> tuple[str, str]:
    """What every report has within it, whatever it shows."""
    return _page("report.css"), '"use strict";\n' + "\n".join(_page(f"{name}.js") for name in SCRIPTS)


def digest(text: str) -> str:
    """What a Content-Security-Policy calls a text by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def escaped(data: Any) -> str:
    """JSON that can stand in a <script> whatever it holds, and means the same."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def followed_layers(trace: Trace, *, full: bool = False) -> int:
    """How many layers, from the first, have their vectors in the page."""
    config = trace.translator.model.config
    known, lengths = parts(config), sizes(config, len(trace.source.ids), len(trace.target.ids))
    for layers in range(max(_layers(config).values()), 1, -1):
        needed = (known[name].shape(lengths) for name in _names(config, layers) if not name.endswith(".hidden"))
        if full or sum(int(np.prod(shape)) for shape in needed) <= ROOM:
            return layers
    return 1


def _layers(config: ModelConfig) -> dict[str, int]:
    """How many layers each side has that there is."""
    sides = (
        ("encoder", config.has_encoder, config.encoder_layers),
        ("decoder", config.has_decoder, config.decoder_layers),
    )
    return {side: layers for side, there, layers in sides if there}


def _names(config: ModelConfig, layers: int) -> list[str]:
    """The parts that the page follows a word through; everything else in so many layers follows from them."""
    turned = ("turned_query", "turned_key") if config.positions == "rotary" else ()
    ends = ("query", "key", "value", *turned, "output", "hidden")
    inside = tuple(f"{side}.{number}." for side in ("encoder", "decoder") for number in range(1, layers + 1))
    ever = {"encoder.embedding", "decoder.embedding"}
    if config.positions == "learned":
        ever |= {"encoder.positions", "decoder.positions"}
    ever |= {f"{side}.output" for side, number in _layers(config).items() if number <= layers}
    return [name for name in parts(config) if name in ever or (name.startswith(inside) and name.split(".")[-1] in ends)]


def _vectors(trace: Trace, layers: int) -> dict[str, np.ndarray]:
    """A row a token; what is a head's own stands side by side in it."""
    found = trace.parts(_names(trace.translator.model.config, layers))
    values = {name: part.values for name, part in found.items()}
    return {
        name: rows.transpose(1, 0, 2).reshape(rows.shape[1], -1) if rows.ndim == 3 else rows
        for name, rows in values.items()
    }


def _norms(trace: Trace, layers: int) -> dict[str, np.ndarray]:
    """Gain and bias of every layer norm, by the name of the sub-layer that it belongs to."""
    return {
        f"{name}.{end}": values.detach().float().cpu().numpy()[None]
        for name, norm in _all_norms(trace.translator.model, layers)
        for end, values in (("gain", norm.weight), ("bias", norm.bias))
    }


def _all_norms(model: nn.Module, layers: int) -> Iterator[tuple[str, nn.LayerNorm]]:
    sub_layers = {"around_attention": "self", "around_cross_attention": "cross", "around_feed_forward": "feed_forward"}
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            side, *path = name.split(".")  # encoder.norm, or encoder.layers.0.around_attention.norm
            if len(path) == 1:
                yield f"{side}.norm", module
            elif int(path[1]) < layers:
                yield f"{side}.{int(path[1]) + 1}.{sub_layers[path[2]]}.{path[3]}", module


def _page(name: str) -> str:
    return (files("heed.interpret") / "page" / name).read_text(encoding="utf-8")

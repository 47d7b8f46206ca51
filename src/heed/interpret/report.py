"""The page of `heed look`: a trace as one interactive HTML file that needs no network and no other file.

Enters: a trace. Leaves: the bytes of the page. Its sources are in `page/`: a template, a style sheet and a script per
view. The page embeds the trace as look.json has it (`saving.trace_document`), except that attention
weights, and the activations that the view `step by step` shows, are quantised (`quantized`).

No text of a trace can become markup: it is compressed and in base64, and the scripts insert it as text, never as HTML.
Should both fail, the Content-Security-Policy allows nothing but the script and the style sheet whose hashes it lists.

The activations are those of the first layers, as many as fit into a budget, at least one; full: of all layers. The page
computes scores, weights, sums and norms from them.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from heed.config import ModelConfig
from heed.interpret.parts import parts, sizes

if TYPE_CHECKING:
    import heed.interpret.trace

SCRIPTS = (
    "data",
    "dom",
    "format",
    "radio-group",
    "heat-map",
    "forward-pass",
    "overview",
    "heads",
    "all-heads",
    "steps",
    "attention-steps",
    "positions",
    "beam-search",
    "output",
    "main",
)
BUDGET = 200_000  # activations that a page may embed: about 300 KB
TOP_HIDDEN = 24  # hidden activations of the feed-forward network kept per token, the largest


def html_report(trace: "heed.interpret.trace.Trace", document: dict[str, Any], *, full: bool = False) -> bytes:
    """The page of a trace; document: its JSON document, which has everything but the activations."""
    layers = embedded_layers(trace, full=full)
    activations = _activations(trace, layers)
    hidden = {name: activations.pop(name) for name in list(activations) if name.endswith(".hidden")}
    units = {name: np.argsort(-np.abs(values), -1, "stable")[:, :TOP_HIDDEN] for name, values in hidden.items()}
    activations |= {name: np.take_along_axis(hidden[name], indices, -1) for name, indices in units.items()}
    shown = {
        **{key: value for key, value in document.items() if key != "attention"},
        "embedded_layers": layers,
        "alignment_layer": alignment_layer(trace.config),
        "hidden": {
            name: {"units": indices.tolist(), "active": (hidden[name] > 0).sum(-1).tolist()}
            for name, indices in units.items()
        },
    }
    maps = {kind: np.array(values) for kind, values in document["attention"].items() if values}
    data = {
        "document": deflated_json(shown),
        "attention": quantized(
            {kind: weights.reshape(*weights.shape[:2], -1) for kind, weights in maps.items()}, levels=1023
        ),
        "activations": quantized(activations | _norms(trace, layers), levels=511),
    }
    return assemble(data).encode()


def alignment_layer(config: ModelConfig) -> int | None:
    """The layer that alignment is read off, from 1; see `heed.decoding.forced_decoding`."""
    return max(1, config.decoder_layers - 1) if config.kind == "encoder-decoder" else None


def assemble(data: dict[str, Any]) -> str:
    """Fill the template with style, script, data and a Content-Security-Policy that allows only these."""
    style, script = style_and_script()
    policy = (
        f"default-src 'none'; script-src '{csp_hash(script)}'; style-src '{csp_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _page("report.html")
    for field, text in {"policy": policy, "style": style, "script": script, "data": json_for_script(data)}.items():
        page = page.replace("{{" + field + "}}", text)
    return page


def style_and_script() -> tuple[str, str]:
    """The style sheet and the script of every page."""
    return _page("report.css"), '"use strict";\n' + "\n".join(_page(f"{name}.js") for name in SCRIPTS)


def csp_hash(text: str) -> str:
    """The hash of an inline script or style in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_for_script(data: Any) -> str:
    """JSON escaped so that it is safe inside a <script> element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def embedded_layers(trace: "heed.interpret.trace.Trace", *, full: bool = False) -> int:
    """The number of layers, from the first, whose activations the page embeds."""
    config = trace.config
    specs, lengths = parts(config), sizes(config, len(trace.source.ids), len(trace.target.ids))
    for layers in range(max(_layers(config).values()), 1, -1):
        shapes = (specs[name].shape(lengths) for name in _names(config, layers) if not name.endswith(".hidden"))
        if full or sum(int(np.prod(shape)) for shape in shapes) <= BUDGET:
            return layers
    return 1


def _layers(config: ModelConfig) -> dict[str, int]:
    """The number of layers of each side that the model has."""
    sides = (
        ("encoder", config.has_encoder, config.encoder_layers),
        ("decoder", config.has_decoder, config.decoder_layers),
    )
    return {side: layers for side, exists, layers in sides if exists}


def _names(config: ModelConfig, layers: int) -> list[str]:
    """The parts embedded for so many layers; the page computes all others from them."""
    rotated = ("turned_query", "turned_key") if config.positions == "rotary" else ()
    ends = ("query", "key", "value", *rotated, "output", "hidden")
    layer_paths = tuple(f"{side}.{number}." for side in ("encoder", "decoder") for number in range(1, layers + 1))
    always = {"encoder.embedding", "decoder.embedding"}
    if config.positions == "learned":
        always |= {"encoder.positions", "decoder.positions"}
    always |= {f"{side}.output" for side, number in _layers(config).items() if number <= layers}
    return [
        name
        for name in parts(config)
        if name in always or (name.startswith(layer_paths) and name.split(".")[-1] in ends)
    ]


def _activations(trace: "heed.interpret.trace.Trace", layers: int) -> dict[str, np.ndarray]:
    """A row per token, with the heads concatenated."""
    values = {name: part.values for name, part in trace.parts(_names(trace.config, layers)).items()}
    return {
        name: rows.transpose(1, 0, 2).reshape(rows.shape[1], -1) if rows.ndim == 3 else rows
        for name, rows in values.items()
    }


def _norms(trace: "heed.interpret.trace.Trace", layers: int) -> dict[str, np.ndarray]:
    """Gain and bias of every layer norm, by the path of its sub-layer."""
    return {
        f"{name}.{end}": values.detach().float().cpu().numpy()[None]
        for name, norm in _all_norms(trace.text_model.model, layers)
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


def quantized(arrays: Mapping[str, np.ndarray], levels: int) -> dict[str, Any]:
    """Arrays as {shapes: {name: shape}, data: base64}, quantised along the last axis to ±`levels`.

    The data are deflated: all scales as float32, then all low bytes of the int16 values, then all high bytes.
    """
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
    """Compressed bytes in base64, which cannot be markup."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def deflated_json(value: Any) -> str:
    """JSON, compressed and in base64."""
    return deflated(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def _page(name: str) -> str:
    return (files("heed.interpret") / "page" / name).read_text(encoding="utf-8")

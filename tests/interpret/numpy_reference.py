"""The Transformer in numpy: each activation computed from the activations before it and the weights."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from heed import ModelConfig

Arrays = dict[str, np.ndarray]


def expected(config: ModelConfig, weights: Arrays, observed: Arrays, ids: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Recompute each part of `seen`; ids: (B, tokens) by side."""
    real = {side: rows != config.pad_id for side, rows in ids.items()}
    for side, rows in ids.items():
        table = (
            "source_embedding" if side == "encoder" and "vocabulary.source_embedding.weight" in weights else "embedding"
        )
        yield f"{side}.embedding", weights[f"vocabulary.{table}.weight"][rows] * math.sqrt(config.d_model)
        positions = np.maximum(real[side].cumsum(1) - 1, 0)
        yield from _positions(config, weights, observed, side, positions)
        x = observed[f"{side}.embedding" if config.positions == "rotary" else f"{side}.sum"]
        for layer in range(getattr(config, f"{side}_layers")):
            for sublayer in ("self", "cross", "feed_forward"):
                path = f"{side}.{layer + 1}.{sublayer}"
                if sublayer != "cross" or (side == "decoder" and config.has_encoder):
                    inner = x if config.norm == "post" else observed[f"{path}.norm"]
                    if sublayer == "feed_forward":
                        yield from _feed_forward(config, weights, observed, path, inner)
                    else:
                        yield from _attention(config, weights, observed, path, inner, real)
                    yield from _residual(config, weights, observed, path, x)
                    x = observed[f"{path}.{'norm' if config.norm == 'post' else 'residual'}"]
        yield f"{side}.output", x if config.norm == "post" else _norm(config, weights, f"{side}.norm", x)
    last = observed["decoder.output" if config.has_decoder else "encoder.output"]
    if config.labels is not None:
        count = real["encoder"].sum(1)[:, None, None]
        yield "mean", (last * real["encoder"][..., None]).sum(1, keepdims=True) / count
        yield "logits", observed["mean"] @ weights["classes.output.weight"].T + weights["classes.output.bias"]
        yield "probabilities", _softmax(observed["logits"])
        return
    bias = weights.get("vocabulary.bias", np.zeros(config.vocab_size))
    yield "logits", last @ weights["vocabulary.embedding.weight"].T + bias
    yield "probabilities", _softmax(observed["logits"])


def _positions(
    config: ModelConfig, weights: Arrays, observed: Arrays, side: str, positions: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    if config.positions == "rotary":
        pairs = np.arange(config.head_width // 2)
        yield f"{side}.angles", positions[..., None] / 10_000.0 ** (2 * pairs / config.head_width)
        return
    if config.positions == "learned":
        yield f"{side}.positions", weights[f"{side}.positions.table.weight"][positions]
    else:
        number = np.arange(config.d_model)
        angle = positions[..., None] / 10_000.0 ** ((number - number % 2) / config.d_model)
        yield f"{side}.positions", np.where(number % 2, np.cos(angle), np.sin(angle))
    yield f"{side}.sum", observed[f"{side}.embedding"] + observed[f"{side}.positions"]


def _attention(
    config: ModelConfig, weights: Arrays, observed: Arrays, path: str, x: np.ndarray, real: dict[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    side, module = path.partition(".")[0], _module(path)
    context, other = (observed["encoder.output"], "encoder") if path.endswith("cross") else (x, side)

    def project(name: str, given: np.ndarray) -> np.ndarray:
        flat = _linear(weights, f"{module}.{name}", given)
        return flat.reshape(*flat.shape[:2], config.heads, -1).transpose(0, 2, 1, 3)

    yield f"{path}.query", project("query", x)
    yield f"{path}.key", project("key", context)
    yield f"{path}.value", project("value", context)
    query, key = observed[f"{path}.query"], observed[f"{path}.key"]
    if config.positions == "rotary" and not path.endswith("cross"):
        yield f"{path}.turned_query", _turned(query, observed[f"{side}.angles"])
        yield f"{path}.turned_key", _turned(key, observed[f"{side}.angles"])
        query, key = observed[f"{path}.turned_query"], observed[f"{path}.turned_key"]
    yield f"{path}.scores", query @ key.transpose(0, 1, 3, 2)
    yield f"{path}.scaled", observed[f"{path}.scores"] / math.sqrt(config.d_model / config.heads)
    mask = np.broadcast_to(real[other][:, None], (len(x), x.shape[1], context.shape[1]))
    if side == "decoder" and other == "decoder":
        mask = mask & (np.arange(x.shape[1])[:, None] >= np.arange(x.shape[1]))
    yield f"{path}.mask", mask
    visible = observed[f"{path}.mask"][:, None]
    yield f"{path}.weights", _softmax(np.where(visible, observed[f"{path}.scaled"], -1e300)) * visible
    yield f"{path}.heads", observed[f"{path}.weights"] @ observed[f"{path}.value"]
    yield f"{path}.concat", observed[f"{path}.heads"].transpose(0, 2, 1, 3).reshape(x.shape)
    yield f"{path}.output", _linear(weights, f"{module}.output", observed[f"{path}.concat"])


def _feed_forward(
    config: ModelConfig, weights: Arrays, observed: Arrays, path: str, x: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    module = _module(path)
    yield f"{path}.wide", _linear(weights, f"{module}.widen", x)
    wide = observed[f"{path}.wide"]
    if config.activation == "swiglu":
        yield f"{path}.gate", _linear(weights, f"{module}.gate", x)
        gate = observed[f"{path}.gate"]
        yield f"{path}.hidden", gate / (1 + np.exp(-gate)) * wide
    else:
        ways: dict[str, Callable[[float], float]] = {"relu": _relu, "gelu": _gelu, "swish": _swish}
        yield f"{path}.hidden", np.vectorize(ways[config.activation])(wide)
    yield f"{path}.output", _linear(weights, f"{module}.narrow", observed[f"{path}.hidden"])


def _residual(
    config: ModelConfig, weights: Arrays, observed: Arrays, path: str, before: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    names = {"self": "around_attention", "cross": "around_cross_attention", "feed_forward": "around_feed_forward"}
    side, number, sublayer = path.split(".")
    module = f"{side}.layers.{int(number) - 1}.{names[sublayer]}"
    added = observed[f"{path}.output"]
    if config.norm == "sandwich":
        yield f"{path}.outer_norm", _norm(config, weights, f"{module}.outer_norm", added)
        added = observed[f"{path}.outer_norm"]
    yield f"{path}.residual", before + added
    normed = observed[f"{path}.residual"] if config.norm == "post" else before
    yield f"{path}.norm", _norm(config, weights, f"{module}.norm", normed)


def _module(path: str) -> str:
    names = {"self": "attention", "cross": "cross_attention", "feed_forward": "feed_forward"}
    side, number, sublayer = path.split(".")
    return f"{side}.layers.{int(number) - 1}.{names[sublayer]}"


def _linear(weights: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(config: ModelConfig, weights: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + config.norm_eps)
    return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _turned(heads: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotary positions: pairs of features as complex numbers, multiplied by a phase."""
    turned = (heads[..., 0::2] + 1j * heads[..., 1::2]) * np.exp(1j * angles[:, None])
    return np.stack((turned.real, turned.imag), -1).reshape(heads.shape)


def _relu(x: float) -> float:
    return max(0.0, x)


def _gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def _swish(x: float) -> float:
    return x / (1 + math.exp(-x))

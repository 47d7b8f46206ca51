"""Exports a model to ONNX in float32: an encoder graph and a decoder-step graph, or one of them.

    encoder.onnx    src (B, S) -> real (B, S), False at padding, and each decoder layer's keys and values of the source
                    (B, H, S, K)
    decoder.onnx    ids (R), real, those keys and values, each layer's past (R, H, C, K) -> logits (R, V) and that past
                    with one column more

    encoder.onnx    encoder-only: src -> real, vectors (B, S, D), and logits: over the vocabulary (B, S, V) or over
                    the labels (B, labels)
    decoder.onnx    decoder-only: the same without a source

B sentences, S source tokens, R = B·W hypotheses, C tokens so far: none is fixed in the files, and C may be 0. The
graphs are written node by node and not traced, so that writing takes less than a second, needs only `onnx`, and keeps
the names and shapes of the weights. Every norm, activation and positional encoding is supported.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from heed.config import ModelConfig
from heed.interop.onnx_graph import DOUBLE, FLOAT, INT64, DynamicShape, Graph
from heed.model.positions import angles
from heed.model.transformer import Transformer


def onnx_files(model: Transformer) -> dict[str, bytes]:
    """The files of the exported model, by name."""
    model.attention_stacks()  # raises for a model without attention layers
    encoder = _encoder if model.config.has_decoder else _encoder_only
    graphs = {
        "encoder.onnx": encoder if model.config.has_encoder else None,
        "decoder.onnx": _decoder if model.config.has_decoder else None,
    }
    return {name: write(model) for name, write in graphs.items() if write is not None}


def memory_names(layers: int) -> list[str]:
    """Outputs of the encoder that the decoder reads: keys and values of the source."""
    return [f"source_{kind}_{layer}" for layer in range(layers) for kind in ("keys", "values")]


def past_names(layers: int) -> list[str]:
    """Outputs of a step that the next step reads: keys and values of the tokens so far."""
    return [f"past_{kind}_{layer}" for layer in range(layers) for kind in ("keys", "values")]


def _encoder(model: Transformer) -> bytes:
    config = model.config
    write, x = _write_encoder(model)
    shape = ("sentences", config.heads, "source", config.head_width)
    names = memory_names(config.decoder_layers)
    for layer in range(config.decoder_layers):
        for name, part in zip(names[2 * layer : 2 * layer + 2], ("key", "value"), strict=True):
            rows = write.heads(x, f"decoder.layers.{layer}.cross_attention.{part}")
            write.g.output(write.by_head(rows), name, np.float32, shape)
    return write.g.serialized()


def _encoder_only(model: Transformer) -> bytes:
    config = model.config
    write, x = _write_encoder(model)
    g = write.g
    vectors = write.by_sentence(x, config.d_model)
    g.output(vectors, "vectors", np.float32, ("sentences", "source", config.d_model))
    if config.labels is None:
        logits = write.by_sentence(write.logits(x), config.vocab_size)
        g.output(logits, "logits", np.float32, ("sentences", "source", config.vocab_size))
    else:
        token_mask = g("Unsqueeze", g("Cast", "real", to=FLOAT), g.constant([2]))
        sums, counts = (
            g("ReduceSum", values, g.constant([1]), keepdims=0)
            for values in (g("Mul", vectors, token_mask), token_mask)
        )
        logits = write.linear(g("Div", sums, counts), "classes.output")
        g.output(logits, "logits", np.float32, ("sentences", config.labels))
    return g.serialized()


def _write_encoder(model: Transformer) -> "tuple[_Writer, str]":
    """The encoder, written; and its last layer's output, as rows."""
    config = model.config
    g = Graph("encoder", model.state_dict())
    write = _Writer(g, config)
    src = g.input("src", np.int64, ("sentences", "source"))
    token_mask = g("Not", g("Equal", src, g.constant(config.pad_id)))
    positions = g("Sub", g("CumSum", g("Cast", token_mask, to=INT64), g.constant(1)), g.constant(1))
    write.positions_at("encoder", g("Reshape", positions, g.constant([-1])))  # where padding stands does not matter
    write.sentences, write.padding_bias = g("Shape", src), _padding_bias(g, token_mask)
    x = write.embed("vocabulary.embedding" if config.shares_embedding else "vocabulary.source_embedding", src)
    for layer in range(config.encoder_layers):
        name = f"encoder.layers.{layer}"
        x = write.around(x, f"{name}.around_attention", partial(write.encoder_attention, name=f"{name}.attention"))
        x = write.feed_forward(x, name)
    g.output(token_mask, "real", np.bool_, ("sentences", "source"))
    return write, write.last_norm(x, "encoder")


def _decoder(model: Transformer) -> bytes:
    config = model.config
    g = Graph("decoder", model.state_dict())
    write = _Writer(g, config)
    ids = g.input("ids", np.int64, ("hypotheses",))
    memory: list[str] = []
    if config.has_encoder:
        token_mask = g.input("real", np.bool_, ("sentences", "source"))
        source_shape: DynamicShape = ("sentences", config.heads, "source", config.head_width)
        memory = [g.input(name, np.float32, source_shape) for name in memory_names(config.decoder_layers)]
        write.sentences, write.padding_bias = g("Shape", token_mask, end=1), _padding_bias(g, token_mask)
    past_shape: DynamicShape = ("hypotheses", config.heads, "written", config.head_width)
    new_shape: DynamicShape = ("hypotheses", config.heads, "written + 1", config.head_width)
    past = [g.input(name, np.float32, past_shape) for name in past_names(config.decoder_layers)]
    write.positions_at("decoder", g("Shape", past[0], start=2, end=3))  # every hypothesis has as many tokens
    x = write.embed("vocabulary.embedding", ids)
    for layer in range(config.decoder_layers):
        name = f"decoder.layers.{layer}"
        past_of_layer, source_kv = past[2 * layer : 2 * layer + 2], memory[2 * layer : 2 * layer + 2]
        self_attention = partial(write.self_attention, name=f"{name}.attention", past=past_of_layer)
        x = write.around(x, f"{name}.around_attention", self_attention)
        if source_kv:
            cross_attention_step = partial(write.cross_attention_step, name=f"{name}.cross_attention", source=source_kv)
            x = write.around(x, f"{name}.around_cross_attention", cross_attention_step)
        x = write.feed_forward(x, name)
    for value, name in zip(write.new_kv, past_names(config.decoder_layers), strict=True):
        g.output(value, f"new_{name}", np.float32, new_shape)
    logits = write.logits(write.last_norm(x, "decoder"))
    g.output(logits, "logits", np.float32, ("hypotheses", config.vocab_size))
    return g.serialized()


def _padding_bias(g: Graph, token_mask: str) -> str:
    """Added to attention scores, (B, 1, 1, S): 0 for tokens, the most negative float for padding."""
    zero = g.constant(0.0, np.float32)
    lowest = g.constant(np.finfo(np.float32).min, np.float32)
    return g("Unsqueeze", g("Where", token_mask, zero, lowest), g.constant([1, 2]))


class _Writer:
    """Writes the parts of a Transformer into a graph. Tokens are rows, (N, D), wherever attention does not mix them."""

    def __init__(self, graph: Graph, config: ModelConfig) -> None:
        self.g = graph
        self.config = config
        self.positions = ""  # added to the embeddings, (N, D); nothing where positions are rotary
        self.rotation: tuple[str, str] | None = None  # cosines and sines, (N, 1, K/2, 1)
        self.sentences = ""  # the lengths (B, S) that the encoder's rows unfold to, or (B) for the decoder's
        self.padding_bias = ""  # added to the scores of source tokens: masks padding
        self.new_kv: list[str] = []  # keys and values of all tokens so far, layer by layer

    def positions_at(self, side: str, positions_input: str) -> None:
        """Compute the positional encoding of these positions: an embedding to add, or rotary angles."""
        g, config = self.g, self.config
        if config.positions == "learned":
            self.positions = g("Gather", g.weight(f"{side}.positions.table.weight"), positions_input)
            return
        width = config.d_model if config.positions == "sinusoidal" else config.head_width
        frequencies = g.constant(angles(torch.tensor([1]), width).numpy(), np.float64)  # (1, width / 2)
        angle = g("Mul", g("Unsqueeze", g("Cast", positions_input, to=DOUBLE), g.constant([1])), frequencies)
        quarter = g.constant(math.pi / 2, np.float64)  # cos x = sin (x + π/2); not every runtime has cosines of doubles
        cos, sin = (
            g("Unsqueeze", g("Cast", g("Sin", shifted), to=FLOAT), g.constant([2]))
            for shifted in (g("Add", angle, quarter), angle)
        )
        if config.positions == "sinusoidal":
            self.positions = g("Reshape", g("Concat", sin, cos, axis=2), g.constant([-1, config.d_model]))
        else:
            self.rotation = (g("Unsqueeze", cos, g.constant([1])), g("Unsqueeze", sin, g.constant([1])))

    def embed(self, matrix: str, ids: str) -> str:
        """Embeddings of the tokens times √d_model, plus positions; one row per token."""
        g = self.g
        rows = g("Gather", g.weight(f"{matrix}.weight"), g("Reshape", ids, g.constant([-1])))
        x = g("Mul", rows, g.constant(math.sqrt(self.config.d_model), np.float32))
        return g("Add", x, self.positions) if self.positions else x

    def logits(self, x: str) -> str:
        if not self.config.tie_embeddings:
            return self.linear(x, "vocabulary.output")
        bias = [self.g.weight("vocabulary.bias")] if self.config.output_bias else []
        return self.g("Gemm", x, self.g.weight("vocabulary.embedding.weight"), *bias, transB=1)

    def linear(self, x: str, name: str) -> str:
        """x Wᵀ + b, with W as the model has it."""
        return self.g("Gemm", x, self.g.weight(f"{name}.weight"), self.g.weight(f"{name}.bias"), transB=1)

    def norm(self, x: str, name: str) -> str:
        """Layer norm with the weights of a module."""
        scale, bias = self.g.weight(f"{name}.weight"), self.g.weight(f"{name}.bias")
        return self.g("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.config.norm_eps)

    def last_norm(self, x: str, side: str) -> str:
        """The norm after the last layer; post-norm models have none."""
        return x if self.config.norm == "post" else self.norm(x, f"{side}.norm")

    def around(self, x: str, name: str, sublayer: Callable[[str], str]) -> str:
        """Residual sum and norm, in one of three orders."""
        if self.config.norm == "post":
            return self.norm(self.g("Add", x, sublayer(x)), f"{name}.norm")
        y = sublayer(self.norm(x, f"{name}.norm"))
        return self.g("Add", x, self.norm(y, f"{name}.outer_norm") if self.config.norm == "sandwich" else y)

    def feed_forward(self, x: str, layer: str) -> str:
        """The feed-forward sub-layer with its residual sum and norm."""
        return self.around(x, f"{layer}.around_feed_forward", lambda y: self._network(y, f"{layer}.feed_forward"))

    def _network(self, y: str, name: str) -> str:
        g, hidden = self.g, self.linear(y, f"{name}.widen")
        match self.config.activation:
            case "relu":
                hidden = g("Relu", hidden)
            case "gelu":
                hidden = g("Gelu", hidden)
            case "swish":
                hidden = self._swish(hidden)
            case "swiglu":
                hidden = g("Mul", self._swish(self.linear(y, f"{name}.gate")), hidden)
        return self.linear(hidden, f"{name}.narrow")

    def _swish(self, y: str) -> str:
        return self.g("Mul", y, self.g("Sigmoid", y))

    def heads(self, x: str, name: str, *, rotate: bool = False) -> str:
        """A projection of each row, split into heads, (N, H, K); rotate: by rotary positions, if the model has them."""
        g, heads, width = self.g, self.config.heads, self.config.head_width
        rows = self.linear(x, name)
        if self.rotation is None or not rotate:
            return g("Reshape", rows, g.constant([-1, heads, width]))
        cos, sin = self.rotation
        pairs = g("Reshape", rows, g.constant([-1, heads, width // 2, 2]))
        even, odd = (g("Slice", pairs, *(g.constant([bound]) for bound in (side, side + 1, 3))) for side in (0, 1))
        rotated_even = g("Sub", g("Mul", even, cos), g("Mul", odd, sin))
        rotated_odd = g("Add", g("Mul", even, sin), g("Mul", odd, cos))
        return g("Reshape", g("Concat", rotated_even, rotated_odd, axis=3), g.constant([-1, heads, width]))

    def by_sentence(self, rows: str, width: int) -> str:
        """Rows (B·S, width) as (B, S, width)."""
        return self.g("Reshape", rows, self.g("Concat", self.sentences, self.g.constant([width]), axis=0))

    def by_head(self, rows: str) -> str:
        """Rows (B·S, H, K) as (B, H, S, K)."""
        g = self.g
        shape = g("Concat", self.sentences, g.constant([self.config.heads, self.config.head_width]), axis=0)
        return g("Transpose", g("Reshape", rows, shape), perm=(0, 2, 1, 3))

    def encoder_attention(self, y: str, name: str) -> str:
        """Every token attends to every token of its sentence."""
        queries, keys = (self.by_head(self.heads(y, f"{name}.{part}", rotate=True)) for part in ("query", "key"))
        values = self.by_head(self.heads(y, f"{name}.value"))
        return self._merge_heads(self._attend(queries, keys, values, self.padding_bias), name)

    def self_attention(self, y: str, name: str, past: Sequence[str]) -> str:
        """The new token attends to its prefix and itself, (R, H, C + 1, K)."""
        g = self.g
        new = (self.heads(y, f"{name}.{part}", rotate=part != "value") for part in ("query", "key", "value"))
        query, *new_kv = (g("Unsqueeze", rows, g.constant([2])) for rows in new)
        keys, values = (g("Concat", *past_and_new, axis=2) for past_and_new in zip(past, new_kv, strict=True))
        self.new_kv += (keys, values)
        return self._merge_heads(self._attend(query, keys, values), name)

    def cross_attention_step(self, y: str, name: str, source: Sequence[str]) -> str:
        """The W hypotheses of a sentence attend to its source as one row, (B, H, W, K)."""
        g, heads, width = self.g, self.config.heads, self.config.head_width
        shape = g("Concat", self.sentences, g.constant([-1, heads, width]), axis=0)
        queries = g("Transpose", g("Reshape", self.linear(y, f"{name}.query"), shape), perm=(0, 2, 1, 3))
        return self._merge_heads(self._attend(queries, source[0], source[1], self.padding_bias), name)

    def _attend(self, queries: str, keys: str, values: str, padding_bias: str = "") -> str:
        """softmax(Q Kᵀ / √d_k) V"""
        g = self.g
        scale = g.constant(1 / math.sqrt(self.config.head_width), np.float32)
        scores = g("MatMul", g("Mul", queries, scale), g("Transpose", keys, perm=(0, 1, 3, 2)))
        return g("MatMul", g("Softmax", g("Add", scores, padding_bias) if padding_bias else scores, axis=-1), values)

    def _merge_heads(self, heads: str, name: str) -> str:
        """Concatenate the heads of each token, and apply the output projection."""
        g = self.g
        rows = g("Reshape", g("Transpose", heads, perm=(0, 2, 1, 3)), g.constant([-1, self.config.d_model]))
        return self.linear(rows, f"{name}.output")

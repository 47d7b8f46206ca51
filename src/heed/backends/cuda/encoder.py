"""A model's encoder in few kernels: packed sentences, and between matmuls only attention and `add_residual_norm`.

The reference is `Transformer.encode`, which takes several times as long to launch all its kernels.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from heed.backends.cuda.step_ops import StepOps
from heed.backends.fused_weights import closings, feed_forward, joined, queries_keys_values
from heed.model.layers import Encoder, EncoderLayer
from heed.model.layout import AttentionPattern, Packed
from heed.model.positions import sinusoids
from heed.model.transformer import Transformer


class StaticEncoder:
    """Encodes with the weights of a model, in their type."""

    def __init__(self, model: Transformer, ops: StepOps) -> None:
        self._encoder, self._vocabulary, self._ops = cast("Encoder", model.encoder), model.vocabulary, ops
        layers = cast("Sequence[EncoderLayer]", list(self._encoder.layers))
        self._first, self._closings = closings(
            [
                pair
                for layer in layers
                for pair in (
                    (layer.around_attention, layer.attention.output),
                    (layer.around_feed_forward, layer.feed_forward.narrow),
                )
            ],
            self._encoder.norm,
        )
        self._layers = [
            (joined(queries_keys_values(layer.attention)), layer.attention, feed_forward(layer.feed_forward))
            for layer in layers
        ]
        self._places = model.vocabulary.embedding.weight.new_empty(0, model.config.d_model)

    def __call__(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        """Each token in the light of its sentence."""
        pattern = AttentionPattern.between(layout, layout)
        stream = self._placed(self._vocabulary.source(src), pattern)
        rotation = self._encoder.positions.rotation(pattern, stream.dtype)
        ready, closing = stream, iter(self._closings)
        if self._first is not None:
            ready = functional.layer_norm(stream, stream.shape[1:], *self._first)
        for (weight, bias), attention, widen_and_narrow in self._layers:
            three = functional.linear(ready, weight, bias).unflatten(-1, (3, *attention.split))
            queries, keys, values = three.unbind(1)
            if rotation is not None:
                queries, keys = rotation(queries), rotation(keys)
            heads = self._ops.encoder_attention(queries, keys, values, pattern, 0.0).flatten(1)
            stream, ready = self._ops.add_residual_norm(stream, heads @ attention.output.weight.t(), next(closing))
            stream, ready = self._ops.add_residual_norm(stream, widen_and_narrow(ready), next(closing))
        return ready

    def _placed(self, embedded: Float[Tensor, "N D"], pattern: AttentionPattern) -> Float[Tensor, "N D"]:
        """With places added; the formula's are kept, for it takes a dozen kernels."""
        code, layout = self._encoder.positions, cast("Packed", pattern.queries)
        if code.kind != "sinusoidal":
            return code(embedded, pattern)
        if layout.longest > len(self._places):
            places = torch.arange(2 * layout.longest, device=embedded.device)
            self._places = sinusoids(places, embedded.shape[1]).to(embedded.dtype)
        return embedded + self._places[layout.positions]
